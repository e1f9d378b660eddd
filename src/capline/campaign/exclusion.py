"""Who of an audience is not sent to: those excluded now by files of rows, bitmaps or segments, and those held out.

The rule of exclusion: a source is looked at whenever someone asks, and read again once it has changed: a file by its
stamp and size, published segments by their version. What cannot be read raises, so nobody is sent to meanwhile.

A holdout is a share of the audience, so that what a message does can be measured. Whoever is in it is so in each
campaign that names the same group: the first 8 bytes of SHA-256(group, NUL, subject), a number with the most
significant byte first, are below share * 2^64. A subject that is a number counts as decimal text.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from capline.model.errors import CampaignError, InvalidValueError, quoted
from capline.segment import SegmentWatch, expand, fetch_snapshot, is_publication, read_ids, set_type
from capline.segment.manifest import MANIFEST
from capline.segment.publish.follow import DEFAULT_CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from capline.campaign.audience import AudienceSource
    from capline.campaign.store.packed import Ids
    from capline.segment import Snapshot

_SHARE = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,18})?)\s?%", re.ASCII)
_HASHES = 1 << 64

_Set = frozenset[str] | np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(slots=True)
class Exclusion:
    """The sources of a campaign file that is in the directory `base`; `segments` is where its segments are."""

    sources: tuple[AudienceSource, ...]
    segments: Path | str | None
    base: Path
    _seen: dict[AudienceSource, tuple[object, _Set]] = field(default_factory=dict[Any, Any])
    _watch: SegmentWatch | None = None

    def among(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these are excluded. `CaplineError` where a source cannot be read, or has other ids."""
        out = np.zeros(len(ids), bool)
        for source in self.sources:
            excluded = self._now(source, text=ids.dtype == object)
            if isinstance(excluded, frozenset):
                out |= np.fromiter((subject in excluded for subject in ids.tolist()), bool, len(ids))
            elif excluded.size:
                places = np.minimum(np.searchsorted(excluded, ids.astype(np.uint64)), excluded.size - 1)
                out |= excluded[places] == ids
        return out

    def _now(self, source: AudienceSource, *, text: bool) -> _Set:
        stamp, seen = self._stamp(source), self._seen.get(source)
        if seen is None or seen[0] != stamp:
            seen = self._seen[source] = stamp, self._read(source, text=text)
        return seen[1]

    def _stamp(self, source: AudienceSource) -> object:
        """A value that differs once the source has changed."""
        if source.kind != "segments":
            paths = _files(source)
        elif self.segments is not None and is_publication(self.segments):
            self._watch = self._watch or SegmentWatch(self.segments, self.base / DEFAULT_CACHE)
            self._watch.poll()
            if self._watch.error is not None:
                raise self._watch.error
            return self._watch.served[1]
        else:
            paths = (Path(self.segments or "") / MANIFEST,)
        try:
            return tuple((path, (it := path.stat()).st_mtime_ns, it.st_size, it.st_ino) for path in paths)
        except OSError as error:
            raise CampaignError(f"exclude: {error.filename}: {error.strerror}") from None

    def _read(self, source: AudienceSource, *, text: bool) -> _Set:
        parts = [*self._parts(source, text=text)]
        if any(isinstance(part, np.ndarray) == text for part in parts):
            mine, theirs = ("text", "numbers") if text else ("numbers", "text")
            raise CampaignError(f"exclude: the ids of its {source.kind} are {theirs}, the audience's {mine}")
        if text:
            return frozenset[str]().union(*parts)
        return np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))

    def _parts(self, source: AudienceSource, *, text: bool) -> Iterator[Any]:
        if source.kind == "bitmap":
            for path in _files(source):
                yield set_type("uint32").from_file(path).to_array()
        elif source.kind == "segments":
            snapshot = self._snapshot()
            numbers, texts = snapshot.evaluate(source.expression).to_array(), snapshot.ids
            yield numbers if texts is None else [texts.text(number) for number in numbers.tolist()]
        else:
            for path in _files(source):
                for ids, _ in read_ids(path, source.column, (), text=text if source.kind == "csv" else None):
                    yield ids if isinstance(ids, np.ndarray) else ids.to_pylist()

    def _snapshot(self) -> Snapshot:
        if self._watch is not None:
            return self._watch.current
        return fetch_snapshot(self.segments or "", None, trust="nothing")[0]


def _files(source: AudienceSource) -> tuple[Path, ...]:
    return tuple(path for path in expand(source.paths) if isinstance(path, Path))


@dataclass(frozen=True, slots=True)
class Holdout:
    """Those of a group whose hash is below a number."""

    group: str
    below: int

    @classmethod
    def parse(cls, share: str, group: str) -> Self:
        """A share such as 5% or 0.25%, exactly; `InvalidValueError` for a text that is not a share."""
        found = _SHARE.fullmatch(share)
        part = Fraction(found[1]) / 100 if found else Fraction(0)
        if not part:
            raise InvalidValueError(f"{quoted(share)} is not a share above 0% and below 100%; write it like 5%")
        return cls(group, math.ceil(part * _HASHES))

    def among(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of these are held out; 1 us each."""
        head = hashlib.sha256(self.group.encode() + b"\0")

        def is_in(subject: object) -> bool:
            digest = head.copy()
            digest.update(str(subject).encode())
            return int.from_bytes(digest.digest()[:8]) < self.below

        return np.fromiter((is_in(subject) for subject in ids.tolist()), bool, len(ids))
