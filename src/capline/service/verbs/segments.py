"""Segments over HTTP: membership, counts, pages of ids; and opening the segments that decisions use.

An id is text or an integer, as the segments have it: in JSON by its type, in a query by the segments' own kind (`i:42`
and `s:42` say it, and are refused where the segments have the other). Every answer names the version that gave it.

Slow calls on large segments run in a thread; roaring holds the GIL there, some 10 ms per operator on segments of a
country's size, so an expression has a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from capline.limiter.arguments.checks import check_subjects
from capline.limiter.policies.segments import segment_codes
from capline.model.errors import InvalidValueError, quoted
from capline.model.subject import Subject, check_subject, parse_subject
from capline.service.http.app import BATCH_BYTES
from capline.service.http.forms import page_limit
from capline.service.http.problems import Problem
from capline.service.http.table import get, post, routes_of
from capline.service.verbs.versions import VersionVerbs

if TYPE_CHECKING:
    from capline.limiter.policies.segments import SegmentSource
    from capline.segment import Snapshot
    from capline.service.http.app import Request, Route

    Answer = dict[str, Any]

MOST_IDS = 100_000
"""Ids in one call."""

MOST_NAMES = 32
"""Names in one expression."""

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


def routes(source: SegmentSource | None, address: str | None = None) -> dict[str, Route]:
    """The routes of these segments, which are at this address; without segments each answers 404."""
    return routes_of(_Segments(source), VersionVerbs(source, address))


class _Segments:
    def __init__(self, source: SegmentSource | None) -> None:
        self._source = source

    def _served(self, name: str | None = None) -> tuple[Snapshot, str]:
        """What is served, and its version; raises where there is none, or no segment of this name."""
        if self._source is None:
            raise Problem(HTTPStatus.NOT_FOUND, "this service has no segments; start it with --segments ADDRESS")
        snapshot, version = self._source.served
        if name is not None and name not in snapshot.sets:
            raise Problem(HTTPStatus.NOT_FOUND, f"no segment {quoted(name)}; there are: {', '.join(snapshot.sets)}")
        return snapshot, version

    @get("/v1/segments", Segments)
    async def list(self, _request: Request) -> Answer:
        """All segments, and how many are in each."""
        snapshot, version = self._served()
        listed = [
            {"name": name, "count": len(ids), "overlapping": name in snapshot.overlapping}
            for name, ids in snapshot.sets.items()
        ]
        return {"ids": snapshot.kind, "created_us": snapshot.created_us, "segments": listed, "version": version}

    @get("/v1/segments/{name}/count", Counted)
    async def count(self, _request: Request, name: str) -> Answer:
        """How many are in it."""
        snapshot, version = self._served(name)
        return {"segment": name, "count": snapshot.cardinality(name), "version": version}

    @get("/v1/segments/{name}/contains", Contains, query=("id",), needs=("id",))
    async def contains(self, request: Request, name: str) -> Answer:
        """Is this id in it?"""
        snapshot, version = self._served(name)
        if "id" not in request.parameters:
            raise InvalidValueError("contains whom? add ?id=… to the query")
        member = _id(snapshot, request.parameters["id"], "id")
        return {"segment": name, "id": member, "contains": snapshot.contains(name, member), "version": version}

    @get("/v1/segments/{name}/members", Members, query=("after", "limit"))
    async def members(self, request: Request, name: str) -> Answer:
        """The ids in it, page by page."""
        snapshot, version = self._served(name)
        limit = page_limit(request.parameters)
        after = _id(snapshot, request.parameters["after"], "after") if "after" in request.parameters else None
        # One more than is shown says whether there is a next page.
        page = await asyncio.to_thread(snapshot.members, name, after, limit + 1)
        following = page[limit - 1] if len(page) > limit else None
        if isinstance(following, str) and following.startswith(("i:", "s:")):  # as `_id` reads it
            following = f"s:{following}"
        facts = {"segment": name, "count": snapshot.cardinality(name), "ids": page[:limit], "next": following}
        return {**facts, "version": version}

    @post("/v1/segments/of", Ids, SegmentsOf, body_bytes=BATCH_BYTES, roles=_READ)
    async def of(self, _request: Request, body: Ids) -> Answer:
        """The segment of each id."""
        snapshot, version = self._served()
        if len(body.ids) > MOST_IDS:
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{len(body.ids)} ids; at most {MOST_IDS} a call")
        segments, errors = await asyncio.to_thread(_segments_of, snapshot, body.ids)
        return {"segments": segments, "errors": errors, "version": version}

    @post("/v1/segments/evaluate", Evaluate, Evaluated, roles=_READ)
    async def evaluate(self, _request: Request, body: Evaluate) -> Answer:
        """How many an expression over segments holds."""
        from capline.segment import parse_expression  # noqa: PLC0415 - an extra, as above

        snapshot, version = self._served()
        parsed = parse_expression(body.expression)
        names = sum(step.is_name for step in parsed.steps)
        if names > MOST_NAMES:
            raise InvalidValueError(f"{names} names in an expression; at most {MOST_NAMES}")
        found = await asyncio.to_thread(snapshot.evaluate, parsed)
        return {"expression": body.expression, "count": len(found), "version": version}


def _segments_of(snapshot: Snapshot, ids: list[Subject]) -> tuple[list[str | None], dict[str, str]]:
    subjects, errors = check_subjects(ids)
    good = [row for row in range(len(ids)) if row not in errors]
    codes, faults = segment_codes(snapshot, [subjects[row] for row in good])
    errors |= {good[row]: fault for row, fault in faults.items()}
    found: list[str | None] = [None] * len(ids)
    for row, code in zip(good, codes.tolist(), strict=True):
        found[row] = snapshot.names[code - 1] if code else None
    return found, {str(row): str(errors[row]) for row in sorted(errors)}


def _id(snapshot: Snapshot, word: str, parameter: str) -> Any:
    if not word:
        raise InvalidValueError(f"parameter {parameter} is empty; give an id, or leave it out")
    marked = word.startswith(("i:", "s:"))
    member = parse_subject(word) if marked or snapshot.ids is None else check_subject(word)
    if isinstance(member, str) != (snapshot.ids is not None):
        kind = "numbers: write it as digits" if snapshot.ids is None else "text: write it as it is, or behind s:"
        raise InvalidValueError(f"{parameter} {quoted(word)}: the ids of these segments are {kind}")
    if isinstance(member, int) and member > snapshot.largest:
        raise InvalidValueError(f"{parameter} {quoted(word)}: the ids of these segments are at most {snapshot.largest}")
    return member
