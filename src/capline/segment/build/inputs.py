"""Sources by URL: what `source` asks for when a file of rows lies in an object store.

`s3://bucket/export/part-*.parquet` is expanded by `list_inputs`, and each object is read through `open_input`, in the
same batches and with the same checks as a local file.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

__all__ = ["Input", "RemoteFile", "is_url", "list_inputs", "open_input"]


class RemoteFile:
    """An object by its URL; behaves as a path does where `table` and messages need one: a name, and its text."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def name(self) -> str:
        """The last part of the URL: what tells CSV from Parquet."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def suffix(self) -> str:
        """As of a path."""
        return Path(self.name).suffix

    def __str__(self) -> str:
        return self.url

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)


Input = Path | RemoteFile


def is_url(path: object) -> bool:
    """Whether a source names an object store rather than a file."""
    return isinstance(path, str) and "://" in path


def open_input(url: str) -> BinaryIO:
    """Open an object for reading: a seekable binary file; raises OSError or `SegmentError`."""
    from capline.segment.objects.remote import open_object  # noqa: PLC0415 - obstore is loaded only where an object is named

    return open_object(url)


def list_inputs(pattern: str) -> list[str]:
    """The URLs that a URL with `*` and `?` in its path names, sorted; raises `SegmentError`."""
    from capline.segment.objects.remote import list_objects  # noqa: PLC0415 - as above

    return list_objects(pattern)
