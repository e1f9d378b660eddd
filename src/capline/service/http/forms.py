"""The forms of requests, in JSON or msgpack. Strict: no unknown key, no key twice, no value of another type.

Durations are in seconds. Stamps (`hit`) are the store's microseconds, to be sent back as they came. A subject is text
or an integer, and 42 is not "42".
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec.structs import replace

from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError, UnknownNameError, quoted
from capline.model.limit import LARGEST_QUOTA
from capline.model.policy import POLICY_FORM
from capline.model.subject import LARGEST_ID, LONGEST_TEXT_BYTES, Subject, check_subject, parse_subject
from capline.service.http.problems import Problem
from capline.support.override import override

MOST_MEMBERS = 10_000
MEMBERS = 1_000
"""The most members of a page, and the default."""

T = TypeVar("T")


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
KeepFree = Cost | list[Cost]
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


class KeepingAttempt(AttemptRequest, forbid_unknown_fields=True, gc=False):
    """One attempt; `keep_free` units must stay free after it: of each limit, or so many of each in their order."""

    keep_free: KeepFree = 0

    @override
    def attempt(self) -> Attempt:
        return replace(super().attempt(), keep_free=self.keep_free)


class Reader:
    """Reads bodies of one form; `has_maps` says that it has maps whose keys are the caller's."""

    def __init__(self, form: type[Any], *, has_maps: bool = False) -> None:
        self._has_maps = has_maps
        self._decoder = msgspec.json.Decoder(form)
        self._unpacker = msgspec.msgpack.Decoder(form)
        parts = KeepingAttempt.__struct_fields__ if "attempts" in form.__struct_fields__ else ()
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


def _has_twice(value: bytes) -> bool:
    """Whether a map of msgpack, or one in it, has a key twice: its header says how many keys were sent."""
    kind = value[0]
    if kind & 0xF0 == 0x80 or kind in (0xDE, 0xDF):  # noqa: PLR2004 - the format's maps
        named = _MAP.decode(value)
        return len(named) != _keys_of(value) or any(_has_twice(bytes(part)) for part in named.values())
    if kind & 0xF0 == 0x90 or kind in (0xDC, 0xDD):  # noqa: PLR2004 - its arrays
        return any(_has_twice(bytes(part)) for part in _ARRAY.decode(value))
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


def page_limit(parameters: dict[str, str]) -> int:
    """How many a page is to have, by `limit`; raises for a number that no page has."""
    word = parameters.get("limit", str(MEMBERS))
    number = number_of(word, len(str(MOST_MEMBERS))) or 0
    if not 1 <= number <= MOST_MEMBERS:
        raise InvalidValueError(f"limit {quoted(word)}: give a number from 1 to {MOST_MEMBERS}")
    return number


def page_of(names: Sequence[str], parameters: dict[str, str]) -> tuple[list[str], str | None]:
    """A page of names in order, by `contains`, `after` and `limit`; and the `after` of the next, None at the end."""
    after, limit = parameters.get("after"), page_limit(parameters)
    if after == "":
        raise InvalidValueError("after '': give back what 'next' was, or leave it out")
    following = map(names.__getitem__, range(bisect_right(names, after or ""), len(names)))
    page = [*islice((name for name in following if parameters.get("contains", "") in name), limit + 1)]
    return page[:limit], page[limit - 1] if len(page) > limit else None


def query_of(query: bytes, allowed: Iterable[str]) -> dict[str, str]:
    """The parameters of the query; raises for one that is unknown or there twice."""
    named: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise Problem(HTTPStatus.BAD_REQUEST, "the query is not name=value&…, percent-encoded UTF-8") from None
    for name, value in pairs:
        if name not in allowed:
            raise UnknownNameError(f"no parameter {quoted(name)}; there are: {', '.join(allowed) or 'none'}")
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
