"""A population of the shape of a real one, for the programs that time segments.

Sign-ups get ids in order, so the newest 5 % are one contiguous run; of the others activity falls off with age, who is
not active is churned or at risk, and 3 % are in no segment.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["NAMES", "truth_of"]

NAMES = ("new", "active", "at-risk", "churned")

_CHUNK = 1 << 23
_SEED = 20261121


def truth_of(users: int, version: int = 0) -> npt.NDArray[np.uint8]:
    """Code of each id by its place: 0 for no segment, i for NAMES[i - 1]; versions differ in every tenth chunk."""
    truth = np.empty(users, dtype=np.uint8)
    newest = users - max(1, users // 20)
    for number, low in enumerate(range(0, newest, _CHUNK)):
        random = np.random.default_rng((_SEED, number, 0 if number % 10 else version))
        high = min(low + _CHUNK, newest)
        age_ratio = 1 - np.arange(low, high, dtype=np.float32) / users
        draw = random.random(high - low, dtype=np.float32)
        active = 0.7 * np.exp(-3 * age_ratio)
        truth[low:high] = np.select([draw < 0.03, draw < 0.03 + active, draw < 0.15 + active], [0, 2, 3], 4)
    truth[newest:] = 1
    return truth
