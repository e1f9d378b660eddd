"""Sources by URL: rows in an object store, read in the same batches and with the same checks as local files.

`list_inputs` expands a URL like `s3://bucket/export/part-*.parquet`, `open_input` opens one object.
"""

from pathlib import Path
from typing import BinaryIO


class RemoteFile:
    """An object by its URL, with the name and suffix of a path."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rsplit("/", 1)[-1]

    @property
    def suffix(self) -> str:
        """The suffix of the name, like `.csv`."""
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
    from capline.segment.objects.bucket import open_object  # noqa: PLC0415 - obstore is loaded only where an object is named

    return open_object(url)


def stamp_of(source: Input) -> tuple[int, int, str]:
    """The size of a source in bytes, when it was written in microseconds, and what else tells a change."""
    if isinstance(source, RemoteFile):
        from capline.segment.objects.bucket import head_object  # noqa: PLC0415 - as above

        return head_object(source.url)
    stat = source.stat()
    return stat.st_size, stat.st_mtime_ns // 1000, str(stat.st_mtime_ns)


def list_inputs(pattern: str) -> list[str]:
    """The URLs that match a URL with wildcards in its path, sorted; raises `SegmentError`."""
    from capline.segment.objects.bucket import list_objects  # noqa: PLC0415 - as above

    return list_objects(pattern)
