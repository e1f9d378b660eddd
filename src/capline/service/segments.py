"""Segments over HTTP: membership, counts, pages of ids; and opening the segments that decisions use.

An id is text or an integer, as the segments have it: in JSON by its type, in a query by the segments' own kind (`i:42`
and `s:42` say it, and are refused where the segments have the other). Every answer names the version that gave it.

Slow calls on large segments run in a thread; roaring holds the GIL there, some 10 ms per operator on segments of a
country's size, so an expression has a bound.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

import msgspec

from capline.limiter.checks import check_subjects
from capline.limiter.segments import segment_codes
from capline.model.errors import InvalidValueError, quoted
from capline.model.subject import Subject, check_subject, parse_subject
from capline.service.forms import Reader, number_of, query_of, word_of
from capline.service.http import BATCH_BYTES, ONE_BODY_BYTES, Reply, Request, Route
from capline.service.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from capline.limiter.segments import SegmentSource
    from capline.segment import Snapshot

__all__ = ["MEMBERS", "MOST_MEMBERS", "check_address", "figures", "opened", "page_limit", "routes"]

MOST_IDS = 100_000
"""Ids in one call."""

MOST_MEMBERS = 10_000
MEMBERS = 1_000
MOST_NAMES = 32
"""The most ids in a page, and the default; the most names in an expression."""

_READ = ("read", "decide")


class Ids(msgspec.Struct, forbid_unknown_fields=True):
    """Whose segments are asked for."""

    ids: list[Subject]


class Evaluate(msgspec.Struct, forbid_unknown_fields=True):
    """An expression over segments."""

    expression: str


class Versioned(TypedDict):
    """What segments say: the version that gave it."""

    version: str


class SegmentFacts(TypedDict):
    """A segment: how many ids are in it, and whether they may be in others as well."""

    name: str
    count: int
    overlapping: bool


class Segments(Versioned):
    """All segments; `ids` is the kind of their ids."""

    ids: str
    created_us: int
    segments: list[SegmentFacts]


class Counted(Versioned):
    """How many ids a segment has."""

    segment: str
    count: int


class Contains(Versioned):
    """Whether an id is in a segment."""

    segment: str
    id: Subject
    contains: bool


class Members(Counted):
    """A page of ids; `next` is sent back as `after`, until it is null."""

    ids: list[Subject]
    next: Subject | None


class SegmentsOf(Versioned):
    """The segment of each id, and by row why an id can be in none."""

    segments: list[str | None]
    errors: dict[str, str]


class Evaluated(Versioned):
    """How many ids an expression has."""

    expression: str
    count: int


@asynccontextmanager
async def opened(address: str | None) -> AsyncGenerator[SegmentSource | None]:
    """The segments at this address, fetched in a thread, followed while the block lasts; may raise `SegmentError`."""
    if address is None:
        yield None
        return
    from capline.segment import open_segments  # noqa: PLC0415 - an extra, which a service without segments needs not

    source = await asyncio.to_thread(open_segments, address)
    try:
        yield source
    finally:
        await asyncio.to_thread(source.stop)


def check_address(address: str) -> str | None:
    """Raise for an invalid address; returns a snapshot's directory, None for a publication, which is not contacted."""
    from capline.segment import is_publication  # noqa: PLC0415 - an extra, as above
    from capline.segment.objects.address import open_objects  # noqa: PLC0415 - as above

    if not is_publication(address):
        return address
    open_objects(address).close()
    return None


def figures(source: SegmentSource) -> dict[str, object]:
    """The version served, for probes: seconds since it was built, and since it was last known to be the newest."""
    status = source.status
    return {
        "version": status.version,
        "age": None if status.age_us is None else status.age_us / 1e6,
        "behind": None if status.behind_us is None else status.behind_us / 1e6,
        "error": status.error,
    }


def routes(source: SegmentSource | None) -> dict[str, Route]:
    """The routes of these segments; without segments each answers 404."""
    asked = _Segments(source) if source is not None else _None()
    return {
        "/v1/segments": Route({"GET": asked.list}, gives=Segments),
        "/v1/segments/of": Route({"POST": asked.of}, BATCH_BYTES, roles=_READ, takes=Ids, gives=SegmentsOf),
        "/v1/segments/evaluate": Route(
            {"POST": asked.evaluate}, ONE_BODY_BYTES, roles=_READ, takes=Evaluate, gives=Evaluated
        ),
        "/v1/segments/{name}/count": Route({"GET": asked.count}, gives=Counted),
        "/v1/segments/{name}/contains": Route(
            {"GET": asked.contains}, gives=Contains, query={"GET": ("id",)}, needs=("id",)
        ),
        "/v1/segments/{name}/members": Route({"GET": asked.members}, gives=Members, query={"GET": ("after", "limit")}),
    }


class _Segments:
    def __init__(self, source: SegmentSource) -> None:
        self._source = source
        self._ids, self._expression = Reader(Ids), Reader(Evaluate)

    async def list(self, request: Request) -> Reply:
        """All segments, and how many are in each."""
        query_of(request.query, ())
        snapshot, version = self._source.served
        listed = [
            {"name": name, "count": len(ids), "overlapping": name in snapshot.overlapping}
            for name, ids in snapshot.sets.items()
        ]
        return _reply(version, ids=snapshot.kind, created_us=snapshot.created_us, segments=listed)

    async def count(self, request: Request) -> Reply:
        """How many are in it."""
        query_of(request.query, ())
        snapshot, version = self._source.served
        name = _name(snapshot, request)
        return _reply(version, segment=name, count=snapshot.cardinality(name))

    async def contains(self, request: Request) -> Reply:
        """Is this id in it?"""
        named = query_of(request.query, ("id",))
        snapshot, version = self._source.served
        name = _name(snapshot, request)
        if "id" not in named:
            raise InvalidValueError("contains whom? add ?id=… to the query")
        one = _id(snapshot, named["id"], "id")
        return _reply(version, segment=name, id=one, contains=snapshot.contains(name, one))

    async def members(self, request: Request) -> Reply:
        """The ids in it, page by page."""
        named = query_of(request.query, ("after", "limit"))
        snapshot, version = self._source.served
        name = _name(snapshot, request)
        limit = page_limit(named["limit"]) if "limit" in named else MEMBERS
        after = _id(snapshot, named["after"], "after") if "after" in named else None
        # One more than is shown says whether there is a next page.
        page = await asyncio.to_thread(snapshot.members, name, after, limit + 1)
        following = _word(page[limit - 1]) if len(page) > limit else None
        return _reply(version, segment=name, count=snapshot.cardinality(name), ids=page[:limit], next=following)

    async def of(self, request: Request) -> Reply:
        """The segment of each id."""
        ids: Ids = self._ids(request.body, request.packed)
        if len(ids.ids) > MOST_IDS:
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{len(ids.ids)} ids; at most {MOST_IDS} a call")
        snapshot, version = self._source.served
        segments, errors = await asyncio.to_thread(_segments_of, snapshot, ids.ids)
        return _reply(version, segments=segments, errors=errors)

    async def evaluate(self, request: Request) -> Reply:
        """How many an expression over segments holds."""
        from capline.segment import parse_expression  # noqa: PLC0415 - an extra, as above

        asked: Evaluate = self._expression(request.body, request.packed)
        parsed = parse_expression(asked.expression)
        names = sum(step.is_name for step in parsed.steps)
        if names > MOST_NAMES:
            raise InvalidValueError(f"{names} names in an expression; at most {MOST_NAMES}")
        snapshot, version = self._source.served
        found = await asyncio.to_thread(snapshot.evaluate, parsed)
        return _reply(version, expression=asked.expression, count=len(found))


class _None:
    """The handlers where there are no segments."""

    async def refuse(self, _request: Request) -> NoReturn:
        """There are no segments here."""
        raise Problem(HTTPStatus.NOT_FOUND, "this service has no segments; start it with --segments ADDRESS")

    list = count = contains = members = of = evaluate = refuse


def _reply(version: str, **answer: object) -> Reply:
    return Reply({**answer, "version": version})


def _segments_of(snapshot: Snapshot, ids: list[Subject]) -> tuple[list[str | None], dict[str, str]]:
    """The segment of each id, and by row why an id can be in none."""
    subjects, errors = check_subjects(ids)
    good = [row for row in range(len(ids)) if row not in errors]
    codes, faults = segment_codes(snapshot, [subjects[row] for row in good])
    errors |= {good[row]: fault for row, fault in faults.items()}
    found: list[str | None] = [None] * len(ids)
    for row, code in zip(good, codes.tolist(), strict=True):
        found[row] = snapshot.names[code - 1] if code else None
    return found, {str(row): str(errors[row]) for row in sorted(errors)}


def _name(snapshot: Snapshot, request: Request) -> str:
    name = word_of(request.names[0])
    if name not in snapshot.sets:
        raise Problem(HTTPStatus.NOT_FOUND, f"no segment {quoted(name)}; there are: {', '.join(snapshot.sets)}")
    return name


def _id(snapshot: Snapshot, word: str, parameter: str) -> Any:
    """The id that a word of a query stands for, in these segments."""
    if not word:
        raise InvalidValueError(f"parameter {parameter} is empty; give an id, or leave it out")
    marked = word.startswith(("i:", "s:"))
    one = parse_subject(word) if marked or snapshot.ids is None else check_subject(word)
    if isinstance(one, str) != (snapshot.ids is not None):
        kind = "numbers: write it as digits" if snapshot.ids is None else "text: write it as it is, or behind s:"
        raise InvalidValueError(f"{parameter} {quoted(word)}: the ids of these segments are {kind}")
    if isinstance(one, int) and one > snapshot.largest:
        raise InvalidValueError(f"{parameter} {quoted(word)}: the ids of these segments are at most {snapshot.largest}")
    return one


def _word(one: Any) -> Any:
    """The word that `_id` reads as this id."""
    return f"s:{one}" if isinstance(one, str) and one.startswith(("i:", "s:")) else one


def page_limit(word: str) -> int:
    """How many a page is to have; raises for a number that no page has."""
    number = number_of(word, len(str(MOST_MEMBERS))) or 0
    if not 1 <= number <= MOST_MEMBERS:
        raise InvalidValueError(f"limit {quoted(word)}: give a number from 1 to {MOST_MEMBERS}")
    return number
