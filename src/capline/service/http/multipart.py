"""A form with a file, as a browser sends it (multipart/form-data), read as it comes: the file is never whole in memory.

    form = Multipart(request.headers, request.pieces())
    while part := await form.part(): ...        # its name, and the name of its file, None for a field
        await form.text()                       # the field, or, as it comes, the file: form.file()

The rule: what is read before the form's own end has come is not the form. One that was cut raises.
"""

from __future__ import annotations

import re
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING

from capline.service.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_BOUNDARY = re.compile(rb'multipart/form-data;\s*boundary="?([^"; ]{1,70})"?\s*', re.IGNORECASE)
_NAMED = re.compile(r'content-disposition: *form-data; *name="([^"]*)"(?:; *filename="([^"]*)")?', re.IGNORECASE)
_MOST_BYTES = 8192
"""Of a field, and of the head of a part."""
_END = b"--"


class Multipart:
    """The parts of a body that comes in these pieces, in their order; raises the `Problem` of one that has none."""

    def __init__(self, headers: list[tuple[bytes, bytes]], pieces: AsyncGenerator[bytes]) -> None:
        kind = next((value for name, value in headers if name == b"content-type"), b"")
        found = _BOUNDARY.fullmatch(kind)
        if found is None:
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the form as multipart/form-data")
        self._pieces, self._mark = pieces, b"\r\n--" + found[1]
        self._held = bytearray(b"\r\n")

    async def part(self) -> tuple[str, str | None] | None:
        """The next part once the one before was read: its name and its file's; None at the form's end."""
        await self._short(self._mark)
        while len(self._held) < len(_END):
            await self._more()
        if self._held.startswith(_END):
            return None
        head = await self._short(b"\r\n\r\n")
        found = _NAMED.search(head.decode("utf-8", "replace"))
        if found is None:
            raise Problem(HTTPStatus.BAD_REQUEST, "a part of the form has no name")
        return found[1], found[2]

    async def text(self) -> str:
        """The field of this part."""
        text = await self._short(self._mark, keeps=True)
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise Problem(HTTPStatus.BAD_REQUEST, "a field of the form is not UTF-8") from None

    def file(self) -> AsyncGenerator[bytes]:
        """The bytes of this part, as they come."""
        return self._until(self._mark)

    async def _short(self, mark: bytes, *, keeps: bool = False) -> bytes:
        found = bytearray()
        async with aclosing(self._until(mark)) as pieces:
            async for piece in pieces:
                found += piece
                if len(found) > _MOST_BYTES:
                    raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a field has more than {_MOST_BYTES} bytes")
        if not keeps:
            del self._held[: len(mark)]
        return bytes(found)

    async def _until(self, mark: bytes) -> AsyncGenerator[bytes]:
        """What comes before this mark, which is left."""
        while (at := self._held.find(mark)) < 0:
            known = len(self._held) - len(mark)  # what follows may be the begin of the mark
            if known > 0:
                piece = bytes(self._held[:known])
                del self._held[:known]
                yield piece
            await self._more()
        if at:
            piece = bytes(self._held[:at])
            del self._held[:at]
            yield piece

    async def _more(self) -> None:
        try:
            self._held += await anext(self._pieces)
        except StopAsyncIteration:
            raise Problem(HTTPStatus.BAD_REQUEST, "the form ended before its end; send it again") from None
