"""The courier's own process: makes the calls that come down its pipe (see `courier`), until the pipe ends."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from capline.model.errors import SegmentError
from capline.segment.courier import Answered, Asked
from capline.segment.place import ObjectMissingError
from capline.segment.remote import ObjectPlace

if TYPE_CHECKING:
    from capline.segment.place import Place

__all__ = ["main"]


def main() -> None:
    """Answer the lines of standard input until it ends."""
    lines = sys.stdin.buffer
    address = msgspec.json.decode(lines.readline(), type=tuple[str, dict[str, str]])
    place: ObjectPlace | None = None
    for line in lines:
        try:
            place = ObjectPlace(*address) if place is None else place
            answered = _answer(place, msgspec.json.decode(line, type=Asked))
        except SegmentError as error:
            answered = Answered(str(error), isinstance(error, ObjectMissingError))
        sys.stdout.buffer.write(msgspec.json.encode(answered) + b"\n")
        sys.stdout.buffer.flush()


def _answer(place: Place, asked: Asked) -> Answered:
    match asked.verb:
        case "get":
            return Answered(got=place.get(asked.path, asked.most_bytes, asked.tag))
        case "download":
            return Answered(text=place.download(asked.path, Path(asked.file), asked.most_bytes))
        case "upload":
            return Answered(text=place.upload(asked.path, Path(asked.file)))
        case "put":
            place.put(asked.path, asked.data)
        case "swap":
            return Answered(truth=place.swap(asked.path, asked.data, asked.tag))
        case "list":
            return Answered(found=place.list(asked.path))
        case "delete":
            place.delete(asked.paths)
    return Answered()


if __name__ == "__main__":
    main()
