"""At least 10,000 random steps of every store beside the reference."""

from capline.testing import state_machine

TestMemory = state_machine("memory://")
TestLmdb = state_machine("lmdb://{tmp}/store")
