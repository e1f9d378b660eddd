"""Opens the object store that an address means.

open_objects("/srv/segments")   open_objects("file:///srv/segments")    a directory
open_objects("s3://bucket/segments")   gs://…   az://…                an object store
"""

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment.objects.store import DirectoryStore, ObjectStore

REMOTE = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_objects(url: str | Path, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Open the object store at this address; nothing is read from it yet.

    A path or a `file://` address is a directory; `s3`, `gs` and `az` with their other spellings are object stores, with
    credentials from the environment as each cloud's own tools have them, or from `options` (the settings of obstore).
    `SegmentError` for any other address.
    """
    if not isinstance(url, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"an address is text like 's3://bucket/segments', not {url!r}")
    text = str(url)
    scheme = None if isinstance(url, Path) else _SCHEME.match(text)
    if scheme is None or scheme[1].lower() == "file":
        # Not by urlsplit: it stumbles over brackets, and a directory has neither query nor fragment.
        host, _, rest = ("", "", "") if scheme is None else text[scheme.end() :].partition("/")
        path = text if scheme is None else unquote(f"/{rest}" if rest else "")
        if not path or "\0" in path or host not in ("", "localhost"):
            raise SegmentError(f"{text!r} names no directory; write a path, or file:///path")
        if options:
            raise SegmentError(f"{text}: options are for object stores; a directory takes none")
        return DirectoryStore(Path(path))
    if scheme[1].lower() not in REMOTE:
        raise SegmentError(f"{scheme[0]}…: not an address to publish to; give a path, or s3://, gs:// or az://")
    from capline.segment.objects.fork_proxy import RemoteStore  # noqa: PLC0415 - brings obstore, which a directory does without

    return RemoteStore(text, dict(options or {}))
