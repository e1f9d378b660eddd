"""The forms of requests, in JSON or msgpack. Strict: no unknown key, no key twice, no value of another type.

Durations are in seconds. Stamps (`hit`) are the store's microseconds, to be sent back as they came. A subject is text
or an integer, and 42 is not "42".
"""

from __future__ import annotations

import json
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from capline.limiter.prepared import MOST_JOINT
from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError, UnknownNameError, quoted
from capline.model.limit import LARGEST_QUOTA
from capline.model.policy import POLICY_FORM
from capline.model.subject import LARGEST_ID, LONGEST_TEXT_BYTES, Subject, check_subject, parse_subject
from capline.service.problems import Problem
from capline.support.override import override

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "LOOP_BYTES",
    "AttemptRequest",
    "BatchReader",
    "BatchRequest",
    "Cost",
    "JointRefundRequest",
    "JointRequest",
    "JointScheduleRequest",
    "Reader",
    "RefundRequest",
    "ReserveRequest",
    "ReservedRequest",
    "ScheduleRequest",
    "SettleRequest",
    "SubjectForm",
    "UsageRequest",
    "described_as",
    "number_of",
    "query_of",
    "subject_named",
    "subject_of",
    "word_of",
]

T = TypeVar("T")

LOOP_BYTES = 32_768
"""A batch of a larger body is read and answered in a thread: other requests get their turn."""


def described_as(**schema: Any) -> msgspec.Meta:
    """What OpenAPI says of a field besides its type. The limiter checks it: its errors say how to fix the call."""
    return msgspec.Meta(extra_json_schema=schema)


SubjectForm = (
    Annotated[str, described_as(minLength=1, maxLength=LONGEST_TEXT_BYTES)]
    | Annotated[int, described_as(minimum=0, maximum=LARGEST_ID)]
)
Cost = Annotated[int, described_as(minimum=0, maximum=LARGEST_QUOTA)]
Name = Annotated[str, described_as(pattern=f"^{POLICY_FORM.pattern}$")]
Id = Annotated[str, described_as(minLength=1)]
Seconds = Annotated[float, described_as(minimum=0)]
Stamp = Annotated[int, described_as(minimum=0)]


class AttemptRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One attempt."""

    policy: Name
    subject: SubjectForm
    cost: Cost = 1
    id: Id | None = None
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None

    def attempt(self) -> Attempt:
        """What the limiter is asked."""
        return Attempt(self.policy, self.subject, self.cost, self.id, self.segment, self.channel, self.zone)

    def fewest_quotes(self) -> int:
        """The fewest quotation marks that the form takes in JSON: two for each key, two for each text."""
        quotes = 8 if type(self.subject) is str else 6
        if self.cost != 1:
            quotes += 2
        if self.id is not None:
            quotes += 4
        if self.segment is not None:
            quotes += 4
        if self.channel is not None:
            quotes += 4
        return quotes if self.zone is None else quotes + 4


class ScheduleRequest(AttemptRequest, forbid_unknown_fields=True):
    """One attempt that may wait: at most `max_wait` seconds, at least `not_before`."""

    max_wait: Seconds | None = None
    not_before: Seconds = 0


class ReserveRequest(AttemptRequest, forbid_unknown_fields=True):
    """One attempt whose hit holds for `ttl` seconds, unless it is committed."""

    ttl: Annotated[float, described_as(exclusiveMinimum=0, maximum=86_400)] = 60


class ReservedRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A reserved hit, to be committed or cancelled."""

    policy: Name
    subject: SubjectForm
    hit: Stamp


class RefundRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A hit to be given back."""

    policy: Name
    subject: SubjectForm
    hit: Stamp
    cost: Cost = 1


class SettleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What a hit, made as an estimate, really cost."""

    policy: Name
    subject: SubjectForm
    hit: Stamp
    cost: Cost


class UsageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A subject and the limits that are asked for."""

    policy: Name
    subject: SubjectForm
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None


class JointRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Parts of one attempt."""

    attempts: Annotated[list[AttemptRequest], described_as(minItems=1, maxItems=MOST_JOINT)]


class JointScheduleRequest(JointRequest, forbid_unknown_fields=True):
    """Parts of one attempt that may wait: at most `max_wait` seconds, at least `not_before`."""

    max_wait: Seconds | None = None
    not_before: Seconds = 0


class JointRefundRequest(JointRequest, forbid_unknown_fields=True):
    """The attempts of an answer to several, and its hits."""

    hits: list[Stamp]


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Many subjects of one policy, as columns; or `attempts` of any policies, and nothing beside them."""

    policy: str | None = None
    subjects: list[Subject] | None = None
    segment: str | None = None
    segments: list[str | None] | None = None
    codes: list[int] | None = None
    channel: str | None = None
    zone: str | None = None
    cost: Cost = 1
    receipt: str | None = None
    attempts: list[AttemptRequest] | None = None

    def check(self) -> None:
        """Raise where it is neither of the two, or both."""
        if self.attempts is not None:
            if self != BatchRequest(attempts=self.attempts):
                raise InvalidValueError(
                    "attempts name all that is theirs: give policy, subjects and the rest, or attempts"
                )
        elif self.policy is None or self.subjects is None:
            raise InvalidValueError("a batch has policy and subjects, or attempts")
        if self.segment is not None and self.segments is not None:
            raise InvalidValueError("give segment, one for all, or segments, not both")


class Reader:
    """Reads bodies of one form; `has_maps` says that it has maps whose keys are the caller's."""

    def __init__(self, form: type[Any], *, has_maps: bool = False) -> None:
        self._has_maps = has_maps
        self._decoder = msgspec.json.Decoder(form)
        self._unpacker = msgspec.msgpack.Decoder(form)
        parts = AttemptRequest.__struct_fields__ if "attempts" in form.__struct_fields__ else ()
        names = {*form.__struct_fields__, *parts}
        self._packed_keys = [msgspec.msgpack.encode(name) for name in names]
        self._keys = [f'"{name}"'.encode() for name in names]
        self._is_attempt = issubclass(form, AttemptRequest)

    def __call__(self, body: bytes, packed: bool = False) -> Any:
        """Decode a body, JSON or (`packed`) msgpack; raises the `Problem` that says what is wrong with it."""
        try:
            form = self._unpacker.decode(body) if packed else self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, _one_line(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            kind = "msgpack" if packed else "JSON in UTF-8"
            raise Problem(HTTPStatus.BAD_REQUEST, f"the body is not {kind}: {_one_line(error)}") from None
        # The decoder keeps the last of two equal keys, so they are looked for here. There are none if the values
        # account for every quotation mark, or if each key is spelled once; a key with escapes has other spellings.
        if packed:
            may_be = self._has_maps or any(body.count(key) > 1 for key in self._packed_keys)
            if may_be and _has_twice(body):
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "a key is there twice; give it once")
        elif self._has_maps or b"\\" in body:
            json.loads(body, object_pairs_hook=_once)
        elif self._is_attempt and body.count(b'"') == form.fewest_quotes():
            return form
        elif any(body.count(key) > 1 for key in self._keys):
            json.loads(body, object_pairs_hook=_once)
        return form


class _Parts(msgspec.Struct, forbid_unknown_fields=True):
    """A batch of attempts that are not decoded yet."""

    attempts: list[msgspec.Raw]


class BatchReader(Reader):
    """Reads a large batch attempt by attempt: one decoding of them all would hold up every other thread."""

    def __init__(self) -> None:
        super().__init__(BatchRequest)
        self._attempt = Reader(AttemptRequest)
        self._parts = msgspec.json.Decoder(_Parts)

    @override
    def __call__(self, body: bytes, packed: bool = False) -> Any:
        if not packed and len(body) > LOOP_BYTES:
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError, Problem):
                raw = [bytes(attempt) for attempt in self._parts.decode(body).attempts]
                # Besides the attempts there is their own key, once; whatever else it may be is looked at as a whole.
                if body.count(b'"') == 2 + sum(attempt.count(b'"') for attempt in raw):
                    return BatchRequest(attempts=[self._attempt(attempt) for attempt in raw])
        return super().__call__(body, packed)


def _has_twice(value: bytes) -> bool:
    """Whether a map of msgpack, or one in it, has a key twice: its header says how many keys were sent."""
    kind = value[0]
    if kind & 0xF0 == 0x80 or kind in (0xDE, 0xDF):  # noqa: PLR2004 - the format's maps
        named = _MAP.decode(value)
        return len(named) != _keys_of(value) or any(_has_twice(bytes(one)) for one in named.values())
    if kind & 0xF0 == 0x90 or kind in (0xDC, 0xDD):  # noqa: PLR2004 - its arrays
        return any(_has_twice(bytes(one)) for one in _ARRAY.decode(value))
    return False


_MAP = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.msgpack.Decoder(list[msgspec.Raw])


def _keys_of(body: bytes) -> int:
    """How many keys a msgpack map says that it has."""
    kind = body[0]
    if kind & 0xF0 == 0x80:  # noqa: PLR2004 - the format's: a small map has its size in its first byte
        return kind & 0x0F
    return int.from_bytes(body[1:3] if kind == 0xDE else body[1:5], "big")  # noqa: PLR2004 - as above


def subject_of(rest: bytes) -> Subject:
    """The subject in a path."""
    return subject_named(word_of(rest))


def subject_named(word: str) -> Subject:
    """The subject that a word stands for: `i:42` the integer, `s:42` the text; any other word is text."""
    return parse_subject(word) if word.startswith(("i:", "s:")) else check_subject(word)


def number_of(word: str, most_digits: int) -> int | None:
    """The whole number that a word writes in at most so many digits; else None."""
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= most_digits else None


def query_of(query: bytes, known: Iterable[str]) -> dict[str, str]:
    """The parameters of the query; raises for one that is unknown or there twice."""
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


def word_of(word: bytes) -> str:
    """A word of a path, decoded."""
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
