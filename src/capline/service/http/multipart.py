"""A form with a file, as a browser sends it (multipart/form-data), read as it comes: the file is never whole in memory.

    form = Multipart(request.headers, request.pieces())
    while part := await form.part(): ...        # its name, and the name of its file, None for a field
        await form.text()                       # the field, or, as it comes, the file: form.file()

The rule: a part is read to its end before the next. One that was cut raises.
"""

from collections.abc import AsyncGenerator, Iterator
from http import HTTPStatus
from typing import Any

import multipart  # pyright: ignore[reportMissingTypeStubs] - it has none

from capline.service.http.problems import Problem

_MOST_BYTES = 8192
"""Of a field."""
_MORE, _END = object(), object()
_library: Any = multipart


class Multipart:
    """The parts of a body that comes in these pieces, in their order; raises the `Problem` of one that has none."""

    def __init__(self, headers: list[tuple[bytes, bytes]], pieces: AsyncGenerator[bytes]) -> None:
        value = next((value for name, value in headers if name == b"content-type"), b"").decode("latin-1")
        kind, options = _library.parse_options_header(value)
        if kind != "multipart/form-data" or not options.get("boundary"):
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the form as multipart/form-data")
        self._parser = _library.PushMultipartParser(options["boundary"], strict=True)
        self._pieces = pieces
        self._events: Iterator[Any] = iter(())

    async def part(self) -> tuple[str, str | None] | None:
        """The next part once the one before was read: its name and its file's; None at the form's end."""
        part = await self._event()
        return None if part is _END else (part.name, part.filename)

    async def text(self) -> str:
        """The field of this part."""
        text = bytearray()
        async for piece in self.file():
            text += piece
            if len(text) > _MOST_BYTES:
                raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a field has more than {_MOST_BYTES} bytes")
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise Problem(HTTPStatus.BAD_REQUEST, "a field of the form is not UTF-8") from None

    async def file(self) -> AsyncGenerator[bytes]:
        """The bytes of this part, as they come."""
        while (piece := await self._event()) is not None:
            yield piece

    async def _event(self) -> Any:
        """The parser's next: a part, some of its bytes, None at the part's end, `_END` at the form's."""
        try:
            while (event := next(self._events, _MORE)) is _MORE:
                piece = await anext(self._pieces, None)
                if piece is None:
                    self._parser.close()
                    return _END
                self._events = self._parser.parse(piece) if piece else iter(())
        except multipart.MultipartError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, f"the form is damaged: {error}; send it again") from None
        return event
