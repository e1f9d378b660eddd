"""Parses `--and`: the further subjects of a joint attempt."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError, quoted
from capline.model.subject import parse_subject

if TYPE_CHECKING:
    from collections.abc import Sequence

_COST = re.compile(r"[0-9]{1,20}")


def read_also(also: Sequence[str], id: str | None, *, as_text: bool) -> list[Attempt]:
    """The further parts of a joint attempt, each `policy=subject` or `policy:cost=subject`.

    A policy's name has no `=`. What stands behind its last colon is the cost, unless there is a `/` in it:
    `GET:/search=x` names no cost, and a policy `a:b` is written with one, `a:b:1=x`.
    """
    attempts: list[Attempt] = []
    for words in also:
        named, equals, subject = words.partition("=")
        policy, colon, cost = named.rpartition(":")
        if not colon or "/" in cost:
            policy, cost = named, ""
        if not equals or (policy != named and not _COST.fullmatch(cost)):
            raise InvalidValueError(
                f"--and {quoted(words)}: write policy=subject, or policy:cost=subject, like tenant:2=acme"
            )
        attempts.append(Attempt(policy, parse_subject(subject, as_text=as_text), int(cost or 1), id))
    return attempts
