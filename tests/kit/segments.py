"""Tools for tests of published segments: snapshots in a line, and a site of either kind to publish them at."""

import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tests.kit.s3 import S3
from tests.kit.segment import text_rows_of

from capline.segment import IdSet, SegmentWatch, Snapshot, build_segments, keep, number_rows, write_snapshot
from capline.segment.objects.address import open_objects
from capline.segment.objects.store import ObjectStore
from capline.segment.publish.pointer import Pointer
from capline.segment.publish.publish import Publisher
from capline.segment.publish.versions import read_pointer
from capline.segment.seal import seal


def make(directory: Path, version: str, **sets: Iterable[int]) -> Path:
    """A snapshot on disk; its path."""
    path = directory / f"snapshot-{secrets.token_hex(4)}"
    write_snapshot(Snapshot({name: IdSet(ids) for name, ids in sets.items()}, version), path)
    return path


def make_text(directory: Path, ids: Path, version: str, **sets: list[str]) -> Path:
    """A snapshot of text ids on disk, built with the dictionary that is kept in `ids`; its path."""
    rows = [(text, name) for name, texts in sets.items() for text in texts]
    path = directory / f"snapshot-{secrets.token_hex(4)}"
    with keep(ids) as builder:
        built = build_segments(number_rows(text_rows_of(rows), builder))
        builder.commit()
        write_snapshot(Snapshot(built, version, ids=builder.dictionary()), path)
    return path


def file_of(snapshot: Path, segment: str) -> Path:
    """The segment's file."""
    (found,) = snapshot.glob(f"{segment}*.roaring")
    return found


@dataclass
class Site:
    """Where versions are published, with a way around the front door."""

    url: str
    options: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def place(self) -> ObjectStore:
        return open_objects(self.url, self.options)

    def publisher(self, **more: Any) -> Publisher:
        return Publisher(self.url, self.options, **more)

    def watch(self, cache: Path, **more: Any) -> SegmentWatch:
        return SegmentWatch(self.url, cache, options=self.options, **more)

    def pointer(self) -> Pointer:
        found = read_pointer(self.place)
        assert found is not None
        return found.pointer

    def read(self, path: str) -> bytes:
        got = self.place.get(path, 1 << 30)
        assert got is not None
        return got.data

    def write(self, path: str, data: bytes) -> None:
        self.place.put(path, data)

    def delete(self, *paths: str) -> None:
        self.place.delete(paths)

    def names(self, folder: str) -> set[str]:
        return set(self.place.list(folder))

    def reseal(self, **changes: Any) -> None:
        """Change the pointer and seal it again: what only a faulty or hostile publisher would do."""
        self.write("pointer.json", seal(msgspec.structs.replace(self.pointer(), **changes)))

    def smuggle(self, version: str, manifest: bytes, objects: Iterable[bytes] = ()) -> None:
        """Publish by hand what the publisher would refuse, as if a faulty one had written it."""
        pointer, sha256 = self.pointer(), hashlib.sha256(manifest).hexdigest()
        for data in objects:
            self.write(f"objects/{hashlib.sha256(data).hexdigest()}", data)
        self.write(f"manifests/{sha256}.json", manifest)
        entry = msgspec.structs.replace(
            pointer.serving, version=version, manifest=sha256, manifest_bytes=len(manifest), pinned=False
        )
        kept = [each for each in pointer.versions if each.version != version]
        self.reseal(
            current=version, versions=(*kept, entry), sequence=pointer.sequence + 1, writer=secrets.token_hex(8)
        )


def directory_site(directory: Path) -> Site:
    return Site(str(directory / "published"))


def s3_site(server: S3) -> Site:
    bucket = f"b{secrets.token_hex(6)}"
    server.make_bucket(bucket)
    return Site(f"s3://{bucket}/some/segments", server.options)


def claiming(manifest: bytes, segments: list[dict[str, Any]]) -> bytes:
    """A manifest with these segments, and whatever proof goes with them, be it true or not."""
    fields, proof = json.loads(manifest), dict[str, Any]()
    if "union" in fields:
        count = len(segments)
        proof["union"] = sum(each["cardinality"] for each in segments)
        proof["pairs"] = [[one, other, 0] for other in range(count) for one in range(other)]
    return resealed(manifest, segments=segments, **proof)


def resealed(manifest: bytes, **changes: Any) -> bytes:
    """A manifest's bytes with changed fields and a seal that fits."""
    fields = json.loads(manifest)
    del fields["sha256"]
    body = msgspec.json.format(json.dumps({**fields, **changes}).encode(), indent=2).removesuffix(b"\n}")
    return body + b',\n  "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'
