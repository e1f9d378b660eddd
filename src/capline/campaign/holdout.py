"""A holdout: a share of the audience that is not sent to, so that what a message does can be measured.

Whoever is in it is so in each campaign that names the same group: the first 8 bytes of SHA-256(group, NUL, subject), a
number with the most significant byte first, are below share * 2^64. A subject that is a number counts as decimal text.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Self

import numpy as np

from capline.model.errors import InvalidValueError, quoted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capline.campaign.store.packed import Ids

_SHARE = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,18})?)\s?%", re.ASCII)
_HASHES = 1 << 64


@dataclass(frozen=True, slots=True)
class Holdout:
    """Those of a group whose hash is below a number."""

    group: str
    below: int

    @classmethod
    def parse(cls, share: str, group: str) -> Self:
        """A share such as 5% or 0.25%, exactly; `InvalidValueError` for what is none."""
        found = _SHARE.fullmatch(share)
        part = Fraction(found[1]) / 100 if found else Fraction(0)
        if not part:
            raise InvalidValueError(f"{quoted(share)} is not a share above 0% and below 100%; write it like 5%")
        return cls(group, math.ceil(part * _HASHES))

    def among(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these are held out; 1 us each."""
        head = hashlib.sha256(self.group.encode() + b"\0")

        def is_in(subject: object) -> bool:
            digest = head.copy()
            digest.update(str(subject).encode())
            return int.from_bytes(digest.digest()[:8]) < self.below

        return np.fromiter((is_in(subject) for subject in ids.tolist()), bool, len(ids))
