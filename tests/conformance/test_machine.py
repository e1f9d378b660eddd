"""Random steps of every store beside the reference: two of them all day, and 5,000 steps in the proof."""

import pytest
from tests.profiles import size, sized

from capline.testing import state_machine

pytestmark = sized
deep = pytest.mark.deep
STEPS = size(800, 1_500, 5_000)

TestMemory = state_machine("memory://", steps=STEPS)
TestMemoryChanging = deep(state_machine("memory://", steps=STEPS, changing=True))
TestLmdbChanging = state_machine("lmdb://{tmp}/store", steps=STEPS, changing=True)
TestLmdbNextChanging = deep(state_machine("lmdb://{tmp}/store?forms=next", steps=STEPS, changing=True))
TestLmdb = deep(state_machine("lmdb://{tmp}/store", steps=STEPS))
