"""Checks that text ids keep their numbers: a new publication's dictionary must extend the current one.

The rule: every text of the current version has the same number in the new one. A build with the dictionary of the last
build ensures that. With a dictionary that was lost, restored from an old copy or started again, stored cursors and
audiences would mean other users.

Files with the same hash and the same numbers are equal. Only files that were merged since are fetched, and each of
their texts is looked up, in less than 1 µs.
"""

import tempfile
from pathlib import Path

import numpy as np

from capline.model.errors import SegmentError
from capline.segment import files
from capline.segment.dictionary.dictionary import Dictionary, open_file
from capline.segment.dictionary.idfile import Group, IdFile
from capline.segment.manifest import DictionaryEntry
from capline.segment.objects.store import ObjectStore
from capline.segment.publish.fetch import download, read_manifest_of
from capline.segment.publish.pointer import Published

_CHUNK = 1 << 20


def check_extends(objects: ObjectStore, current: Published, ids: Dictionary, directory: Path) -> None:
    """Raise `SegmentError` unless each text of the current version has the same number in `ids`.

    Also raises if the dictionary of that version cannot be read. A version without text ids always passes.
    """
    try:
        published = read_manifest_of(objects, current)[1].dictionary
        here = {_place_of(entry) for entry in ids.entries}
        changed = [entry for entry in published if _place_of(entry) not in here]
        with files.os_errors("compare id dictionaries", directory), tempfile.TemporaryDirectory() as temporary:
            for entry in changed:
                path = Path(temporary) / entry.file
                download(objects, current, entry.sha256, entry.bytes, path)
                found = _first_changed(open_file(entry, path, verify=False), ids)
                path.unlink()
                if found is not None:
                    break
            else:
                return
    except SegmentError as error:
        raise SegmentError(
            f"{error} (the id dictionary is compared with that of {current.version!r}; --new-dictionary does not)"
        ) from None
    text, was, now = found
    raise SegmentError(
        f"{directory}: its id dictionary does not extend that of version {current.version!r}, which is served: "
        f"id {text!r} has {'no number' if now < 0 else f'the number {now}'} here, and {was} there; "
        "build with the dictionary of that version (--ids), or say that it is a new one (--new-dictionary)"
    )


def _place_of(entry: DictionaryEntry) -> tuple[int, int, str]:
    return entry.first, entry.cardinality, entry.sha256


def _first_changed(old: IdFile, ids: Dictionary) -> tuple[str, int, int] | None:
    """The first text whose number differs, with its old and new number (-1: none); None if all agree."""
    for length, cells, numbers in old.groups:
        for start in range(0, len(cells), _CHUNK):
            some = cells[start : start + _CHUNK]
            was = numbers[start : start + _CHUNK].astype(np.int64) + old.first
            now = ids.find(Group(length, np.arange(len(some)), some))
            changed = np.flatnonzero(was != now)
            if changed.size:
                at = int(changed[0])
                return old.text(int(was[at])), int(was[at]), int(now[at])
    return None
