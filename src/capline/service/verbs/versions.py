"""The published versions of the segments that are served: which there are, and back to an earlier one.

    GET    /v1/segments/versions    as `capline segments list ADDRESS`
    POST   /v1/segments/rollback    as `capline segments rollback ADDRESS`; this process follows at once, others soon

Each request opens the address anew, in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, TypedDict, TypeVar

import msgspec

from capline.service.http.problems import Problem
from capline.service.http.table import get, post
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.limiter.policies.segments import SegmentSource
    from capline.segment import Publisher
    from capline.segment.publish.pointer import Pointer
    from capline.service.http.app import Request

T = TypeVar("T")

_ONE = {"version": "2026-11-21", "published": "2026-11-21T16:00:00Z", "who": "ann", "ids": 3, "bytes": 4096} | {
    "pinned": False
}
_ALL = {"current": "2026-11-21", "changed": "2026-11-21T16:00:00Z", "versions": [_ONE]}


class Rollback(msgspec.Struct, forbid_unknown_fields=True):
    """Which version to serve again, None for the one before; `if_current`: only while that one is current."""

    to: str | None = None
    if_current: str | None = None


class VersionFacts(TypedDict):
    """A version that can be served: how many ids are in its segments, who published it if that is known."""

    version: str
    published: str
    who: str | None
    ids: int
    bytes: int
    pinned: bool


class PublishedVersions(TypedDict):
    """What is current, since when, and all versions, the newest first."""

    current: str
    changed: str
    versions: list[VersionFacts]


class VersionVerbs:
    """The paths of what is published at this address, from which `source` follows it; None where nothing is."""

    def __init__(self, source: SegmentSource | None, address: str | None) -> None:
        self._source, self._address = source, address
        self._turn = asyncio.Semaphore(1)

    @get("/v1/segments/versions", PublishedVersions, examples={"GET": _ALL})
    async def versions(self, _request: Request) -> PublishedVersions:
        """The published versions, the newest first."""
        return await self._ask(lambda publisher: _told(publisher, publisher.pointer()))

    @post("/v1/segments/rollback", Rollback, PublishedVersions, roles=("admin",))
    async def rollback(self, _request: Request, form: Rollback) -> PublishedVersions:
        """Serve an earlier version again; later ones stay."""

        def rolled_back(publisher: Publisher) -> PublishedVersions:
            from capline.segment import SegmentWatch  # noqa: PLC0415 - an extra

            pointer = publisher.rollback(form.to, expected=form.if_current)
            if isinstance(self._source, SegmentWatch):
                self._source.poll()
            return _told(publisher, pointer)

        return await self._ask(rolled_back)

    async def _ask(self, what: Callable[[Publisher], T]) -> T:
        if self._address is None:
            raise Problem(HTTPStatus.NOT_FOUND, "this service has no segments; start it with --segments ADDRESS")
        async with self._turn:
            return await asyncio.to_thread(self._asked, self._address, what)

    @staticmethod
    def _asked(address: str, what: Callable[[Publisher], T]) -> T:
        from capline.segment import Publisher, is_publication  # noqa: PLC0415 - an extra

        if not is_publication(address):
            raise Problem(
                HTTPStatus.NOT_FOUND, "a snapshot is served, which has no versions; publish it, and serve that"
            )
        with Publisher(address) as publisher:
            return what(publisher)


def _told(publisher: Publisher, pointer: Pointer) -> PublishedVersions:
    by = publisher.publishers(pointer)
    versions: list[VersionFacts] = [
        {
            "version": each.version,
            "published": instant_text(each.published_us),
            "who": by.get(each.version),
            "ids": each.cardinality,
            "bytes": each.bytes,
            "pinned": each.pinned,
        }
        for each in reversed(pointer.versions)
    ]
    return {"current": pointer.current, "changed": instant_text(pointer.changed_us), "versions": versions}
