"""Requests and answers, as JSON has them. Strict: no unknown key, no key twice, no value of another type.

Spans are in seconds; `retry_after` null is never. Stamps (`hit`) are the store's microseconds, to be sent back as they
came. A subject is text or an integer, and 42 is not "42".
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError, UnknownNameError, quoted
from capline.model.subject import Subject, check_subject, parse_subject
from capline.service.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Ask", "Asks", "Batch", "Look", "Reader", "Refund", "Settle", "Slot", "query_of", "subject_of"]

T = TypeVar("T")


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """One attempt."""

    policy: str
    subject: Subject
    cost: int = 1
    id: str | None = None
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None

    def attempt(self) -> Attempt:
        """What the limiter is asked."""
        return Attempt(self.policy, self.subject, self.cost, self.id, self.segment, self.channel, self.zone)


class Slot(Ask, forbid_unknown_fields=True):
    """One attempt that may wait: at most `max_wait` seconds, at least `not_before`."""

    max_wait: float | None = None
    not_before: float = 0


class Refund(msgspec.Struct, forbid_unknown_fields=True):
    """A hit to be given back."""

    policy: str
    subject: Subject
    hit: int
    cost: int = 1


class Settle(msgspec.Struct, forbid_unknown_fields=True):
    """What a hit, made as an estimate, really cost."""

    policy: str
    subject: Subject
    hit: int
    cost: int


class Look(msgspec.Struct, forbid_unknown_fields=True):
    """A subject and the limits that are asked for."""

    policy: str
    subject: Subject
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None


class Asks(msgspec.Struct, forbid_unknown_fields=True):
    """Parts of one attempt."""

    attempts: list[Ask]


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """Many subjects of one policy, as columns; or `attempts` of any policies, and nothing beside them."""

    policy: str | None = None
    subjects: list[Subject] | None = None
    segment: str | None = None
    segments: list[str | None] | None = None
    codes: list[int] | None = None
    channel: str | None = None
    zone: str | None = None
    cost: int = 1
    receipt: str | None = None
    attempts: list[Ask] | None = None

    def check(self) -> None:
        """Raise where it is neither of the two, or both."""
        if self.attempts is not None:
            if self != Batch(attempts=self.attempts):
                raise InvalidValueError(
                    "attempts name all that is theirs: give policy, subjects and the rest, or attempts"
                )
        elif self.policy is None or self.subjects is None:
            raise InvalidValueError("a batch has policy and subjects, or attempts")
        if self.segment is not None and self.segments is not None:
            raise InvalidValueError("give segment, one for all, or segments, not both")


class Reader:
    """Reads bodies of one form."""

    def __init__(self, form: type[Any]) -> None:
        self._decoder = msgspec.json.Decoder(form)
        self._keys = [f'"{name}"'.encode() for name in form.__struct_fields__]

    def __call__(self, body: bytes) -> Any:
        """The body in this form; raises the `Problem` that says what is wrong with it."""
        try:
            form = self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, _one_line(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Problem(HTTPStatus.BAD_REQUEST, f"the body is not JSON in UTF-8: {_one_line(error)}") from None
        # The decoder takes the last of two. No key can be there twice where each is spelled once, and none in escapes.
        if b"\\" in body or any(body.count(key) > 1 for key in self._keys):
            json.loads(body, object_pairs_hook=_once)
        return form


def subject_of(rest: bytes) -> Subject:
    """The subject that a path ends in: `i:42` the integer, `s:42` the text; any other word is text."""
    word = _text(rest)
    return parse_subject(word) if word.startswith(("i:", "s:")) else check_subject(word)


def query_of(query: bytes, known: Iterable[str]) -> dict[str, str]:
    """The parameters behind the path, each known and given once."""
    named: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise Problem(HTTPStatus.BAD_REQUEST, "the query is not name=value&…, percent-encoded UTF-8") from None
    for name, value in pairs:
        if name not in known:
            raise UnknownNameError(f"no parameter {quoted(name)}; there are: {', '.join(known) or 'none'}")
        if name in named:
            raise InvalidValueError(f"parameter {quoted(name)} is there twice; give it once")
        named[name] = value
    return named


def _text(word: bytes) -> str:
    try:
        return unquote_to_bytes(word).decode()
    except UnicodeDecodeError:
        raise Problem(HTTPStatus.BAD_REQUEST, "the path is not percent-encoded UTF-8") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"key {quoted(twice)} is there twice; give it once")
    return named


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split("\n"))
