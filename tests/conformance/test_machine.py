"""Random steps of every store beside the reference: 10,000 in the deep part."""

from tests.profiles import size, sized

from capline.testing import state_machine

pytestmark = sized
STEPS = size(2_500, 10_000)

TestMemory = state_machine("memory://", steps=STEPS)
TestMemoryChanging = state_machine("memory://", steps=STEPS, changing=True)
TestLmdbChanging = state_machine("lmdb://{tmp}/store", steps=STEPS, changing=True)
TestLmdbNextChanging = state_machine("lmdb://{tmp}/store?forms=next", steps=STEPS, changing=True)
TestLmdb = state_machine("lmdb://{tmp}/store", steps=STEPS)
