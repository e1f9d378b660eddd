"""Audiences that were uploaded: whole, verified, and under a name, or not there.

    PUT | DELETE   /v1/audiences/{name}    the bytes of a CSV, Parquet or bitmap file, as its name ends
    GET            /v1/audiences           a page of them

The rule: a name is that of the file of one upload, whole. The body goes to a file of its own below the working
directory, piece by piece, until its digest (RFC 9530) and every id of it are found right; then the object store writes
it under its name, in one step. What goes wrong before leaves the name as it was; of two uploads at once the last wins.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
import secrets
import time
from base64 import b64decode
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TypedDict, TypeVar

from capline.campaign.erase import IdColumn, delete_upload
from capline.campaign.file import SUFFIXES
from capline.model.errors import (
    CampaignNotFoundError,
    CampaignStoreError,
    CaplineError,
    InvalidValueError,
    SegmentError,
    quoted,
)
from capline.segment import read_audience, read_ids
from capline.segment.objects.address import open_objects
from capline.segment.objects.store import ObjectInfo, ObjectStore
from capline.service.http.app import AUDIENCE_BYTES, Request
from capline.service.http.forms import page_of
from capline.service.http.problems import Problem, busy
from capline.service.http.table import delete, get, put
from capline.support.instant import instant_text

T = TypeVar("T")

UPLOADS = Path(".capline/uploads")
"""Where bodies are until they are verified."""

_DIGEST = "Content-Digest"
_AT_ONCE = 4
_ABANDONED_S = 24 * 3600
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HELD_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_ENDS = {suffix: kind for kind, suffixes in SUFFIXES.items() for suffix in suffixes}
_HASHES = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
_MEMBER = re.compile(r"\s*([a-z0-9-]+)=:([A-Za-z0-9+/=]+):\s*", re.ASCII)


_UPLOADED = {"name": "summer.csv", "bytes": 4194304, "uploaded": "2026-11-21T16:00:00Z"}
_VERIFIED = {"name": "summer.csv", "bytes": 4194304, "rows": 524288, "audience": {"upload": "summer.csv"}}
_PAGE = {"audiences": [_UPLOADED], "next": None}


class Uploaded(TypedDict):
    """An audience: its size, and when it was uploaded."""

    name: str
    bytes: int
    uploaded: str


class Audiences(TypedDict):
    """Audiences by name; `next` is sent back as `after`, until it is null."""

    audiences: list[Uploaded]
    next: str | None


class Verified(TypedDict):
    """What was uploaded: `rows` have an id each. A campaign names it by `audience`, with its `column` and more."""

    name: str
    bytes: int
    rows: int
    audience: dict[str, str]


class AudienceVerbs:
    """The paths of the audiences at this address: a directory, or a place in an object store."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def named(self, name: str) -> tuple[str, str]:
        """The kind and the address of an audience, as a campaign file has them; it need not be there."""
        kind = _kind_of(name)
        with closing(open_objects(self._address)) as objects:
            return kind, f"{objects.where.rstrip('/')}/{name}"

    @get("/v1/audiences", Audiences, query=("after", "limit"), roles=("read", "compose"), examples={"GET": _PAGE})
    async def audiences(self, request: Request) -> Audiences:
        """The audiences that were uploaded, by name."""
        found = await self._ask(lambda objects: objects.list(""))
        page, following = page_of(sorted(filter(_NAME.fullmatch, found)), request.parameters)
        return {"audiences": [_line(name, found[name]) for name in page], "next": following}

    @put(
        "/v1/audiences/{name}",
        None,
        Verified,
        query=("column", "ids"),
        headers=(_DIGEST,),
        needs=(_DIGEST,),
        examples={"PUT": _VERIFIED, "DELETE": _UPLOADED},
        body_bytes=AUDIENCE_BYTES,
        streamed=True,
        types=None,
        roles=("compose",),
        also={HTTPStatus.INSUFFICIENT_STORAGE: "There is no room for it"},
    )
    async def upload(self, request: Request, name: str) -> Verified:
        """Upload an audience, in place of the one of its name: each row must have an id in its `column`."""
        ids, column = request.parameters.get("ids"), request.parameters.get("column", "id")
        if ids not in (None, "number", "text"):
            raise InvalidValueError(f"ids {quoted(ids)}: number or text")
        kind, digests = _kind_of(name), {} if request.is_framed else _digests_of(request.headers)
        if self._turns.locked():
            raise busy(f"{_AT_ONCE} uploads are under way, and no more are taken")
        async with self._turns:
            file = UPLOADS / f"{secrets.token_hex(8)}-{name}"
            try:
                with _on_disk():
                    size_bytes, sha256 = await _received(request, file, digests)
                    found = IdColumn(sha256, column, None if ids is None else ids == "text")
                    rows = await asyncio.to_thread(_rows_of, file, kind, found)
                await self._ask(lambda objects: _keep(objects, name, file, found))
            finally:
                file.unlink(missing_ok=True)
        return {"name": name, "bytes": size_bytes, "rows": rows, "audience": {"upload": name}}

    @delete("/v1/audiences/{name}", Uploaded)
    async def remove(self, _request: Request, name: str) -> Uploaded:
        """Delete an audience."""
        _kind_of(name)

        def removed(objects: ObjectStore) -> Uploaded:
            found = objects.list("").get(name)
            if found is None:
                raise CampaignNotFoundError(f"no audience {quoted(name)} was uploaded")
            delete_upload(objects, name)
            return _line(name, found)

        return await self._ask(removed)

    async def _ask(self, what: Callable[[ObjectStore], T]) -> T:
        def asked() -> T:
            with closing(open_objects(self._address)) as objects, _on_disk(SegmentError):
                return what(objects)

        return await asyncio.to_thread(asked)


def _line(name: str, found: ObjectInfo) -> Uploaded:
    return {"name": name, "bytes": found.bytes, "uploaded": instant_text(found.changed_us)}


def _keep(objects: ObjectStore, name: str, file: Path, ids: IdColumn) -> None:
    """Give the file its name, and delete what processes that were killed left beside it."""
    ids.keep(objects, name)
    objects.upload(name, file, ids.sha256)
    objects.delete([left for left in objects.list("") if left.startswith(".")])


def _kind_of(name: str) -> str:
    """What an upload of this name is; raises for a name that none may have."""
    kind = next((kind for suffix, kind in _ENDS.items() if name.endswith(suffix)), None)
    if kind is None or not _NAME.fullmatch(name):
        raise InvalidValueError(
            f"audience {quoted(name)}: a name has letters, digits, '.', '_' and '-', at most 200, and ends in "
            f"{', '.join(_ENDS)}"
        )
    return kind


def _digests_of(headers: list[tuple[bytes, bytes]]) -> dict[str, bytes]:
    """The digests that the body must have, by their algorithm; raises where there is none that is known."""
    said = ",".join(value.decode("latin-1") for name, value in headers if name == _DIGEST.lower().encode())
    digests: dict[str, bytes] = {}
    for member in said.split(","):
        found = _MEMBER.fullmatch(member)
        with suppress(ValueError):
            if found is not None and found[1] in _HASHES:
                digests[found[1]] = b64decode(found[2], validate=True)
    if not digests:
        raise InvalidValueError(f"send the file's digest: {_DIGEST}: sha-256=:BASE64:, or sha-512 (RFC 9530)")
    return digests


async def _received(request: Request, file: Path, digests: dict[str, bytes]) -> tuple[int, str]:
    """Write the body to this new file; its size and its SHA-256. Raises where its digest is another."""
    hashes = {name: _HASHES[name]() for name in {"sha-256", *digests}}
    await asyncio.to_thread(_make_room)
    size_bytes, held = 0, bytearray()
    with file.open("xb") as target:

        def write(data: bytes) -> None:
            target.write(data)
            for each in hashes.values():
                each.update(data)

        async for piece in request.pieces():
            held += piece
            if len(held) >= _HELD_BYTES:
                size_bytes += len(held)
                await asyncio.to_thread(write, bytes(held))
                held.clear()
        await asyncio.to_thread(write, bytes(held))
        size_bytes += len(held)
    for name, digest in digests.items():
        if hashes[name].digest() != digest:
            raise InvalidValueError(f"the body has another {name} than its {_DIGEST} says; it was cut or changed")
    return size_bytes, hashes["sha-256"].hexdigest()


def _make_room() -> None:
    """Make the place for bodies, and delete what processes that were killed left there."""
    UPLOADS.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in UPLOADS.iterdir():
        with suppress(FileNotFoundError):
            if left.stat().st_mtime < time.time() - _ABANDONED_S:
                left.unlink()


def _rows_of(file: Path, kind: str, ids: IdColumn) -> int:
    """How many rows a file of an audience has; raises for one that no campaign could take."""
    try:
        if kind == "bitmap":
            return len(read_audience(file))
        rows = sum(len(some) for some, _ in read_ids(file, ids.column, (), text=ids.text))
    except SegmentError as error:
        raise InvalidValueError(str(error).replace(str(file), file.name.partition("-")[2])) from error.__cause__
    if not rows:
        raise InvalidValueError("an empty audience; name at least one id")
    return rows


@contextmanager
def _on_disk(reads: type[CaplineError] | tuple[()] = ()) -> Generator[None]:
    """Say of what cannot be written whether the disk is full; `reads` are errors of a store that does not answer."""
    try:
        yield
    except (OSError, CaplineError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in _NO_ROOM:
            raise Problem(HTTPStatus.INSUFFICIENT_STORAGE, "there is no room for it; nothing was taken") from None
        if isinstance(error, (OSError, reads)):
            raise CampaignStoreError(f"audiences: {getattr(error, 'strerror', None) or error}") from None
        raise
