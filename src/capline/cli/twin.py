"""42 and "42" are two subjects: where nothing is found for the one, say so, and whether there is the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.cli.common import note, plain
from capline.model.subject import LARGEST_ID, Subject, subject_text

if TYPE_CHECKING:
    from capline.limiter.explain import Explanation
    from capline.limiter.limiter import Limiter

__all__ = ["is_empty", "say_twin", "twin_of"]


def twin_of(subject: Subject) -> Subject | None:
    """The other subject of the same digits; None where there is none."""
    if isinstance(subject, int):
        return str(subject)
    if subject.isascii() and subject.isdecimal() and int(subject) <= LARGEST_ID and str(int(subject)) == subject:
        return int(subject)
    return None


def is_empty(why: Explanation) -> bool:
    """Whether nothing at all is held."""
    return not why.hits and not any(state.used for state in why.limits)


def say_twin(limiter: Limiter, subject: Subject, policy: str | None = None) -> Subject | None:
    """Nothing was found for this subject: say what else its digits may mean; gives the other one where it exists.

    Looks in this policy, or in all of them.
    """
    twin = twin_of(subject)
    if twin is None:
        return None
    names = limiter.policies if policy is None else [policy]
    there = any(not is_empty(_explained(limiter, name, twin)) for name in names)
    found = f"{_named(twin)} has hits here" if there else "neither has a hit here"
    note.print(
        plain(f"nothing is held for {_named(subject)}; {_named(twin)} is another subject: {found}"),
        style="yellow",
        soft_wrap=True,
    )
    return twin if there else None


def _explained(limiter: Limiter, name: str, subject: Subject) -> Explanation:
    policy = limiter.policies[name]
    return limiter.explain(name, subject, channel=None if policy.limits else next(iter(policy.channels)))


def _named(subject: Subject) -> str:
    """The subject as it can be typed, and which of the two it is."""
    return f"i:{subject} (the integer)" if isinstance(subject, int) else f"{subject_text(subject)} (the text)"
