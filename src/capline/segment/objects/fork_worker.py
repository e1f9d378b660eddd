"""The process behind `fork_proxy`: makes the calls that come through the pipe, until it is closed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from capline.model.errors import SegmentError
from capline.segment.objects.bucket import BucketStore
from capline.segment.objects.fork_proxy import ProxyCall, ProxyReply
from capline.segment.objects.store import ObjectMissingError

if TYPE_CHECKING:
    from capline.segment.objects.store import ObjectStore

__all__ = ["main"]


def main() -> None:
    """Answer the lines of standard input until it ends."""
    lines = sys.stdin.buffer
    address = msgspec.json.decode(lines.readline(), type=tuple[str, dict[str, str]])
    objects: BucketStore | None = None
    for line in lines:
        try:
            objects = BucketStore(*address) if objects is None else objects
            answered = _answer(objects, msgspec.json.decode(line, type=ProxyCall))
        except SegmentError as error:
            answered = ProxyReply(str(error), isinstance(error, ObjectMissingError))
        sys.stdout.buffer.write(msgspec.json.encode(answered) + b"\n")
        sys.stdout.buffer.flush()


def _answer(objects: ObjectStore, asked: ProxyCall) -> ProxyReply:
    match asked.verb:
        case "get":
            return ProxyReply(got=objects.get(asked.path, asked.most_bytes, asked.tag))
        case "download":
            return ProxyReply(text=objects.download(asked.path, Path(asked.file), asked.most_bytes))
        case "upload":
            objects.upload(asked.path, Path(asked.file), asked.sha256)
        case "put":
            objects.put(asked.path, asked.data)
        case "swap":
            return ProxyReply(truth=objects.swap(asked.path, asked.data, asked.tag))
        case "list":
            return ProxyReply(found=objects.list(asked.path))
        case "delete":
            objects.delete(asked.paths)
    return ProxyReply()


if __name__ == "__main__":
    main()
