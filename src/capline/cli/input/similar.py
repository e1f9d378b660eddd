"""Hints that 42 and "42" are two subjects, where nothing is found for one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capline.cli.render.console import warn
from capline.model.subject import LARGEST_ID, Subject, subject_text

if TYPE_CHECKING:
    from capline.limiter.explain import Explanation
    from capline.limiter.limiter import Limiter


def twin_of(subject: Subject) -> Subject | None:
    """The other subject with the same digits, if there is one."""
    if isinstance(subject, int):
        return str(subject)
    if subject.isascii() and subject.isdecimal() and int(subject) <= LARGEST_ID and str(int(subject)) == subject:
        return int(subject)
    return None


def is_empty(why: Explanation) -> bool:
    """Whether nothing at all is held."""
    return not why.hits and not any(state.used for state in why.limits)


def warn_of_twin(limiter: Limiter, subject: Subject, policy: str | None = None) -> Subject | None:
    """Warn that nothing was found for this subject, but its digits name another one; return that if it has hits.

    Looks under this policy, or under all.
    """
    twin = twin_of(subject)
    if twin is None:
        return None
    names = limiter.policies if policy is None else [policy]
    there = any(not is_empty(_explained(limiter, name, twin)) for name in names)
    found = f"{_named(twin)} has hits here" if there else "neither has a hit here"
    warn(f"nothing is held for {_named(subject)}; {_named(twin)} is another subject: {found}")
    return twin if there else None


def _explained(limiter: Limiter, name: str, subject: Subject) -> Explanation:
    policy = limiter.policies[name]
    return limiter.explain(name, subject, channel=None if policy.limits else next(iter(policy.channels)))


def _named(subject: Subject) -> str:
    """The subject as it is typed, with its type."""
    return f"i:{subject} (the integer)" if isinstance(subject, int) else f"{subject_text(subject)} (the text)"
