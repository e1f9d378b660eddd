"""Limits that come with the call: `decide("search", "user:42", limits=["10/minute"])`, with no policy made before.

Each (name, limits) is a policy of its own, kept by value: a limiter of that one policy on the same store. Its log is
named after the limits too, so that other limits under the same name begin another history, and no log is kept shorter
than its widest window. At most `MOST` are kept; one that was dropped is made again, and finds its log.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

from capline.model.errors import InvalidTypeError, quoted
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.support.fork import ForkLock

MOST = 1_024
"""Sets of limits that a limiter keeps."""

_NAME_LETTERS = 40
L = TypeVar("L")
Key = tuple[str, tuple[Limit | str, ...]]


def unnamed_policy(name: str, limits: Sequence[Limit | str]) -> Policy:
    """The policy of these limits, in any order and notation; its log is named by both."""
    policy = Policy(name, limits)
    hashed = sorted(str(limit) for limit in policy.limits)
    begins = policy
    if len(name) > _NAME_LETTERS:
        # Names that begin alike are told apart by the hash.
        hashed.append(name)
        begins = Policy(name[:_NAME_LETTERS], policy.limits)
    digest = blake2b("\n".join(hashed).encode(), digest_size=8).hexdigest()
    return Policy(name, policy.limits, log=f"{begins.log}.{digest}")


class UnnamedPolicies(Generic[L]):
    """What was made for each name and limits, as an LRU cache. Threads share it."""

    def __init__(self, make: Callable[[Policy], L]) -> None:
        self._make = make
        self._made: OrderedDict[Key, L] = OrderedDict()
        self._lock = ForkLock()

    def __len__(self) -> int:
        return len(self._made)

    def get(self, name: str, limits: Sequence[Limit | str]) -> L:
        """What is made for these; raises as `Policy` does."""
        if isinstance(limits, (str, Limit)):
            raise InvalidTypeError(f"limits come as a list, like ['10/minute'], not {quoted(limits)}")
        try:
            key = (name, tuple(limits))
            made = self._made.get(key)
        except TypeError:
            raise InvalidTypeError(f"limits come as a list, like ['10/minute'], not {quoted(limits)}") from None
        with self._lock:
            if made is None:
                made = self._made[key] = self._make(unnamed_policy(*key))
                if len(self._made) > MOST:
                    self._made.popitem(last=False)
            elif key in self._made:
                self._made.move_to_end(key)
        return made

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._made.clear()
