"""For which policies a caller may ask. Here alone it is decided, for every way to ask.

The rule: what does not say that it keeps to a scope is refused to a token that has one, so a new path forgets nothing.
"""

from collections.abc import Sequence
from functools import lru_cache
from http import HTTPStatus

from capline.policy.joint import MARK
from capline.service.http.problems import Problem


class Scope:
    """Of the token `who`: names of policies, and beginnings of names that end in `*`; None is everything."""

    __slots__ = ("_beginnings", "_names", "_said", "is_all")

    def __init__(self, who: str, policies: tuple[str, ...] | None) -> None:
        self.is_all = policies is None
        named = policies or ()
        self._names = frozenset(named)
        self._beginnings = tuple(name[:-1] for name in named if name.endswith("*"))
        self._said = f"token {who} is for {'policy' if len(named) == 1 else 'policies'} {', '.join(named)}"

    def __contains__(self, policy: str) -> bool:
        """Whether the policy is in it; several as one, like `daily+global`, where all of them are."""
        return self.is_all or all(
            name in self._names or name.startswith(self._beginnings) for name in policy.split(MARK)
        )

    def of(self, policies: Sequence[str]) -> Sequence[str]:
        """Those of these policies that are in it."""
        return policies if self.is_all else [name for name in policies if name in self]

    def check(self, *policies: str) -> None:
        """Raise the `Problem` of a policy that is not in it."""
        for policy in () if self.is_all else policies:
            if policy not in self:
                raise Problem(HTTPStatus.FORBIDDEN, f"{self._said}, not for {policy}")

    def check_all(self) -> None:
        """Raise the `Problem` where there is a scope at all: what is asked is of no policy, or of all."""
        if not self.is_all:
            raise Problem(HTTPStatus.FORBIDDEN, f"{self._said} alone; this needs a token for all policies")


EVERYTHING = Scope("", None)


@lru_cache(1024)
def scope_of(who: str, policies: tuple[str, ...]) -> Scope:
    """The scope of this token; cached, since it is asked for at each request."""
    return Scope(who, policies)
