"""Who published each version: an object beside the pointer, which refuses what it does not know.

    publishers.json    {"format": "capline-segments-publishers", "format_version": 1,
                        "publishers": {"<SHA-256 of a manifest>": [<published_us of its version>, "ann"]}}

The rule: it is written after the pointer, whose swap decides, and a name counts only for the instant in the pointer. So
after an older capline, a publisher that was killed in between, or damage a version has no name, never another's.
Nothing is refused for its sake. It has the names of the pointer's versions.
"""

from contextlib import suppress

import msgspec

from capline.model.errors import SegmentError
from capline.segment.objects.store import ObjectMissingError, ObjectStore
from capline.segment.publish.pointer import LARGEST_POINTER_BYTES, LONGEST_VERSION, Pointer, Published
from capline.segment.publish.versions import TRIES
from capline.support.system import who as account

PUBLISHERS = "publishers.json"
_FORMAT, _FORMAT_VERSION = "capline-segments-publishers", 1

_Names = dict[str, tuple[int, str]]


class _File(msgspec.Struct, frozen=True):
    format: str
    format_version: int
    publishers: _Names


def check_publisher(who: str | None) -> str:
    """The name as given, or that of this process's account."""
    name = account()[:LONGEST_VERSION] if who is None else who
    if not (1 <= len(name) <= LONGEST_VERSION and name.isprintable() and name == name.strip()):
        raise SegmentError(f"who {name[:40]!r} is not 1 to {LONGEST_VERSION} printable characters; name another")
    return name


def publishers_of(objects: ObjectStore, pointer: Pointer) -> dict[str, str]:
    """By version who published it, as far as is known."""
    names, _ = _read(objects)
    at = {each.version: (each.published_us, names.get(each.manifest, (0, ""))) for each in pointer.versions}
    return {version: who for version, (published_us, (told_us, who)) in at.items() if told_us == published_us}


def note_publisher(objects: ObjectStore, pointer: Pointer, ours: Published, who: str) -> None:
    """Write who published this version, beside those in the pointer and what came after it; where it can be written."""
    listed = {each.manifest for each in pointer.versions}
    with suppress(SegmentError):
        for _ in range(TRIES):
            before, tag = _read(objects)
            kept = {name: entry for name, entry in before.items() if name in listed or entry[0] > ours.published_us}
            names: _Names = {**kept, ours.manifest: (ours.published_us, who)}
            if objects.swap(PUBLISHERS, msgspec.json.encode(_File(_FORMAT, _FORMAT_VERSION, names)), tag):
                return


def _read(objects: ObjectStore) -> tuple[_Names, str | None]:
    """The names, none where it is damaged or cannot be read; and the tag that `swap` needs."""
    tag: str | None = None
    try:
        got = objects.get(PUBLISHERS, LARGEST_POINTER_BYTES)
        if got is not None:
            tag = got.tag
            file = msgspec.json.decode(got.data, type=_File)
            if (file.format, file.format_version) == (_FORMAT, _FORMAT_VERSION):
                return file.publishers, tag
    except (ObjectMissingError, SegmentError, ValueError, RecursionError):
        pass
    return {}, tag
