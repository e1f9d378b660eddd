"""Object stores: S3, Google Cloud Storage and Azure, by obstore; the only module that imports it.

    s3://bucket/prefix      AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, roles, …
    gs://bucket/prefix      GOOGLE_SERVICE_ACCOUNT, application default credentials, …
    az://container/prefix   AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, …

The rule: `swap` is a conditional PUT (If-None-Match: * for the first, then If-Match with the entity tag; on Google's
store the generation), so of two publishers the store itself refuses one.

Sizes are checked before anything is read. Every call has a timeout: 5 s to connect, 30 s without a byte.
"""

from __future__ import annotations

import fnmatch
import io
import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from capline.model.errors import SegmentError, quoted
from capline.segment import files
from capline.segment.objects.store import (
    ObjectData,
    ObjectInfo,
    ObjectMissingError,
    ObjectStore,
    check_size,
    chunks_of,
    write_chunks,
)
from capline.support.network import LATE, REFUSED, UNNAMED
from capline.support.override import override

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        NotModifiedError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )
    from obstore.store import from_url
except ModuleNotFoundError:
    raise SegmentError('object stores need obstore: pip install "capline[segments]"') from None

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Bucket

_RETRIES: RetryConfig = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
_PART_BYTES = 8 << 20
_READ_BYTES = 4 << 20
_MOST_LISTED = 1_000_000

_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist|container does not exist", re.IGNORECASE)
_DENIED = re.compile(r"status code: 40[13]\b")
_FAULTS = {
    "ConnectionRefused": REFUSED,
    "dns error": UNNAMED,
    "kind: Timeout": LATE,
    "InvalidCertificate": "its certificate is not accepted",
    "InvalidMessage": "TLS failed; is it a server without TLS? then write http://",
}
"""What stands in obstore's message, behind its first line, where nobody was reached."""
_ENDPOINT = re.compile(r"https?://[^/\s]", re.IGNORECASE)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


_runtime_pid: int | None = None
"""The process that has obstore's threads: this one, or the one it was forked from; None before the first call."""


def runs_here() -> bool:
    """Whether obstore runs in this process, which is noted as the one that has its threads; ask before each call."""
    global _runtime_pid  # noqa: PLW0603 - obstore's threads belong to the process, so this does too
    if _runtime_pid is None:
        _runtime_pid = os.getpid()
    return _runtime_pid == os.getpid()


class BucketStore(ObjectStore):
    """A bucket, used from this process. After a fork it does not work: use `RemoteStore` of `fork_proxy`."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self.where = url.rstrip("/")
        self._store = _open(url, options)

    @override
    def get(self, path: str, most_bytes: int, unless: str | None = None) -> ObjectData | None:
        shown = f"{self.where}/{path}"
        try:
            with _errors(shown, "read it"):
                # An object that changed and changed back has another tag: see the pointer's `writer`.
                result = obstore.get(
                    self._store, path, options={"if_none_match": unless.split("\n")[0]} if unless else None
                )
                size_bytes = result.meta["size"]
                if size_bytes > most_bytes:
                    raise SegmentError(f"{shown}: {size_bytes} bytes, at most {most_bytes} are allowed")
                return ObjectData(bytes(result.bytes()), _tag(result.meta["e_tag"], result.meta["version"]))
        except NotModifiedError:
            return None

    @override
    def download(self, path: str, into: Path, size_bytes: int) -> str:
        shown = f"{self.where}/{path}"
        with _errors(shown, "read it"):
            result = obstore.get(self._store, path)
            check_size(shown, result.meta["size"], size_bytes)
            return write_chunks(result.stream(1 << 20), into, size_bytes, shown)

    @override
    def upload(self, path: str, file: Path, sha256: str, progress: Callable[[int], object] | None = None) -> None:
        """Large files are sent in several parts at once; the object appears after the last one."""
        with files.os_errors("read it", file), file.open("rb") as source:
            size_bytes = os.fstat(source.fileno()).st_size
            chunks = chunks_of(source, sha256, progress)
            with _errors(f"{self.where}/{path}", "write it"):
                if size_bytes <= _PART_BYTES:
                    obstore.put(self._store, path, b"".join(chunks), use_multipart=False)
                else:
                    obstore.put(self._store, path, chunks, chunk_size=_PART_BYTES, max_concurrency=4)

    @override
    def put(self, path: str, data: bytes) -> None:
        with _errors(f"{self.where}/{path}", "write it"):
            obstore.put(self._store, path, data, use_multipart=False)

    @override
    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        shown = f"{self.where}/{path}"
        try:
            with _errors(shown, "write it"):
                if tag is None:
                    obstore.put(self._store, path, data, mode="create", use_multipart=False)
                else:
                    obstore.put(self._store, path, data, mode=cast("Any", _state(tag)), use_multipart=False)
        except (AlreadyExistsError, PreconditionError, ObjectMissingError):
            return False
        return True

    @override
    def list(self, folder: str) -> dict[str, ObjectInfo]:
        found: dict[str, ObjectInfo] = {}
        with _errors(f"{self.where}/{folder}", "list it"):
            for page in obstore.list(self._store, folder, chunk_size=1000):  # pyright: ignore[reportUnknownMemberType] - its overloads for Arrow, which is not installed
                for each in page:
                    name = each["path"].removeprefix(f"{folder}/")
                    found[name] = ObjectInfo(each["size"], int(each["last_modified"].timestamp() * 1_000_000))
                if len(found) > _MOST_LISTED:
                    raise SegmentError(f"{self.where}/{folder}: more than {_MOST_LISTED:,} objects; use another prefix")
        return found

    @override
    def delete(self, paths: Iterable[str]) -> None:
        """Some stores fail a batch in which one object is missing; those are asked one by one."""
        doomed = list(paths)
        if not doomed:
            return
        try:
            with _errors(self.where, "delete from it"):
                obstore.delete(self._store, doomed)
        except ObjectMissingError:
            for path in doomed:
                try:
                    with _errors(f"{self.where}/{path}", "delete it"):
                        obstore.delete(self._store, path)
                except ObjectMissingError:
                    continue

    @override
    def close(self) -> None:
        """Do nothing: obstore closes idle connections by itself."""


def open_object(url: str) -> BinaryIO:
    """Open an object as a seekable file, buffered by 4 MiB; raises `SegmentError`."""
    root, path = _parts(url)
    _check_runs_here(url)
    with _errors(url, "read it"):
        return io.BufferedReader(
            _Reader(obstore.open_reader(_open(root, {}), path, buffer_size=_READ_BYTES), url), _READ_BYTES
        )


def head_object(url: str) -> tuple[int, int, str]:
    """The size of an object in bytes, when it was written in microseconds, and its tag; raises `SegmentError`."""
    root, path = _parts(url)
    _check_runs_here(url)
    with _errors(url, "read it"):
        found = obstore.head(_open(root, {}), path)
    return found["size"], int(found["last_modified"].timestamp() * 1_000_000), str(found["e_tag"])


def list_objects(pattern: str) -> list[str]:
    """The URLs of the objects that `*`, `?` and `[...]` in a URL's path stand for, sorted; raises `SegmentError`."""
    root, path = _parts(pattern)
    _check_runs_here(pattern)
    # Only the folder before the first wildcard is listed.
    folder = path[: min(path.find(mark) for mark in "*?[" if mark in path)].rpartition("/")[0]
    form = re.compile(fnmatch.translate(path).replace(".*", "[^/]*"))
    found: list[str] = []
    with _errors(pattern, "list it"):
        for page in obstore.list(_open(root, {}), folder or None, chunk_size=1000):  # pyright: ignore[reportUnknownMemberType] - as above
            found += [f"{root}/{each['path']}" for each in page if form.fullmatch(each["path"])]
            if len(found) > _MOST_LISTED:
                raise SegmentError(f"{pattern}: more than {_MOST_LISTED:,} objects; name fewer")
    return sorted(found)


class _Reader(io.RawIOBase):
    """An object as a Python file."""

    def __init__(self, reader: Any, url: str) -> None:
        super().__init__()
        self._reader = reader
        self._url = url

    def readinto(self, buffer: Any, /) -> int:
        with _errors(self._url, "read it"):
            data = self._reader.read(len(buffer))
        buffer[: len(data)] = memoryview(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _check_runs_here(url: str) -> None:
    """Raise where a call would hang: a stream of rows does not come through a proxy."""
    if not runs_here():
        raise SegmentError(
            f"{url}: cannot be read in a process that was forked from one which uses object stores; "
            "read it before the fork, or in a new process (spawn)"
        )


def _parts(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    if not (bucket and path):
        raise SegmentError(f"{url}: names no object; write it like s3://bucket/export/part-0.parquet")
    return f"{scheme}://{bucket}", path


def _open(url: str, options: Mapping[str, str]) -> Bucket:
    for name in _ENDPOINTS:
        if not _ENDPOINT.match(os.environ.get(name) or "http://-"):  # obstore would panic
            raise SegmentError(f"{name} {quoted(os.environ[name])}: write it like http://host:port")
    stated = [*options.values(), *(os.environ.get(name, "") for name in _ENDPOINTS)]
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=5),
        "read_timeout": timedelta(seconds=30),
        "timeout": timedelta(hours=1),
        # Only for an endpoint that was given with http://.
        "allow_http": any(value.lower().startswith("http://") for value in stated),
    }
    try:
        return from_url(url, config=cast("Any", dict(options)), client_options=client, retry_config=_RETRIES)
    except (BaseError, ValueError, TypeError) as error:
        raise SegmentError(f"{url}: {_reason(error)}") from None


@contextmanager
def _errors(shown: str, doing: str) -> Generator[None]:
    """Turn what obstore raises into one line with the fix; a failed condition passes unchanged."""
    try:
        yield
    except (AlreadyExistsError, NotModifiedError, PreconditionError):
        raise
    except FileNotFoundError as error:
        if error.errno is not None:  # of a file on this host
            raise
        if _NO_BUCKET.search(str(error)):
            raise SegmentError(f"{shown}: no such bucket; create it, or fix the address") from None
        raise ObjectMissingError(f"{shown}: there is no such object") from None
    except BaseError as error:
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or _DENIED.search(str(error)):
            raise SegmentError(f"{shown}: access denied; check the credentials and their permissions") from None
        raise SegmentError(f"{shown}: cannot {doing}: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """What a fault of the network was, or the first line of obstore's message, without query strings (signatures)."""
    line, _, source = str(error).partition("\n")
    fault = next((text for sign, text in _FAULTS.items() if sign in source), None)
    where = re.search(r"https?://[^/\s]+", line)
    if fault and where:
        return f"no connection to {where[0]} ({fault})"
    return re.sub(r"\?\S*", "", line)[:300]


def _tag(entity: str | None, version: str | None) -> str:
    """Both identifiers of an object's state: the entity tag of S3 and Azure, and Google's generation."""
    return f"{entity or ''}\n{version or ''}"


def _state(tag: str) -> dict[str, str]:
    entity, version = tag.split("\n")
    return {name: value for name, value in (("e_tag", entity), ("version", version)) if value}
