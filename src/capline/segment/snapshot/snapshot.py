"""A snapshot: one versioned, immutable state of the segments, in memory, and the questions that it answers.

Its sets are of two kinds. *Exclusive* ones are the segments that limits are chosen by: an id is in one of them or in
none, which is verified whenever a snapshot is made. *Overlapping* ones, declared as such (audiences, hold-outs), may
share ids with any; they are queried by name, in expressions, and by `segments_of`.

Ids are of one kind: uint32, uint64, or text. Text ids have numbers in a dictionary (`dictionary`), and the sets hold
the numbers: one goes from text to number and back through the snapshot's `ids`. A text without a number is in no set.

Cost: a segment takes what its bitmap takes (270M ids in 4 segments: about 95 MB). `write` has its form on disk,
`load` how it is read back or mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from capline.model.clock import SystemClock
from capline.model.errors import InvalidTypeError, SegmentError, UnknownNameError
from capline.segment.manifest import check_names
from capline.segment.sets.codes import Codes, codes_of, codes_of_64
from capline.segment.sets.expression import Expression, parse_expression

if TYPE_CHECKING:
    from capline.segment.dictionary.dictionary import Dictionary
    from capline.segment.sets.idset import IdSet

Id = SupportsIndex | str

_FEW = 256
"""For up to this many ids, single look-ups beat setting up a table."""

_UNROLLED = 4


class Snapshot:
    """Named sets of ids, in a fixed order; immutable, and safe for any number of reading threads.

    >>> snapshot = Snapshot({"new": IdSet([1, 2]), "active": IdSet([7]), "vip": IdSet([2])}, overlapping=["vip"])
    >>> snapshot.segment_of(7), snapshot.segment_of(8), snapshot.segments_of(2)
    ('active', None, ('new', 'vip'))

    `version` is any text of up to 128 characters that names this state of the segments; left out, it is `created_us`,
    the instant of making in microseconds since 1970, written in UTC. `overlapping` names the sets that may share ids,
    `ids` is the dictionary where ids are text. Raises `SegmentError` for names that policies could not use, and for ids
    that are in two of the other sets.

    `segment_of(id)` names the exclusive segment that the id is in, None for none: 100 to 400 ns, a look at each segment
    (some µs for text). An invalid id raises; it is never "in no segment".
    """

    __slots__ = ("_numbered", "_sets", "created_us", "ids", "kind", "names", "overlapping", "segment_of", "version")

    version: str
    created_us: int
    names: tuple[str, ...]
    """The exclusive segments: code i of `codes` is the i-th of them."""
    overlapping: tuple[str, ...]
    kind: str
    ids: Dictionary | None
    segment_of: Callable[[Id], str | None]

    def __init__(
        self,
        sets: Mapping[str, IdSet],
        version: str | None = None,
        created_us: int | None = None,
        *,
        overlapping: Collection[str] = (),
        ids: Dictionary | None = None,
    ) -> None:
        self._set(sets, version, created_us, overlapping, ids)
        overlap = describe_overlap({name: sets[name] for name in self.names}, ids)
        if overlap:
            raise SegmentError(overlap)

    @classmethod
    def verified(
        cls,
        sets: Mapping[str, IdSet],
        version: str | None,
        created_us: int | None,
        *,
        overlapping: Collection[str] = (),
        ids: Dictionary | None = None,
    ) -> Snapshot:
        """A snapshot of sets that were verified to be disjoint before (or, for a partial one, need not be)."""
        self = cls.__new__(cls)
        self._set(sets, version, created_us, overlapping, ids)
        return self

    def _set(
        self,
        sets: Mapping[str, IdSet],
        version: str | None,
        created_us: int | None,
        overlapping: Collection[str],
        ids: Dictionary | None,
    ) -> None:
        self.created_us = SystemClock().now_us() if created_us is None else created_us
        self.version = _version(self.created_us) if version is None else version
        check_names(tuple(sets))
        unknown = set(overlapping).difference(sets)
        if unknown:
            raise SegmentError(f"{min(unknown)!r} may overlap, and is no segment; there are: {', '.join(sets)}")
        self.overlapping = tuple(name for name in sets if name in overlapping)
        self.names = tuple(name for name in sets if name not in overlapping)
        self._sets = MappingProxyType(dict(sets))
        kinds = {each.kind for each in sets.values()}
        if len(kinds) > 1:
            raise SegmentError(f"sets of {' and of '.join(sorted(kinds))} ids; a snapshot has one kind")
        self.kind = kinds.pop() if ids is None else "text"
        self.ids = ids
        # The largest first: most ids are found at the first look.
        largest_first = sorted(((sets[name], name) for name in self.names), key=lambda pair: -len(pair[0]))
        self._numbered = _asker(largest_first, self._type)
        self.segment_of = self._numbered if ids is None else self._segment_of_text

    @property
    def sets(self) -> Mapping[str, IdSet]:
        """Each set's ids by name, in order; read only. Numbers, where ids are text."""
        return self._sets

    @property
    def largest(self) -> int:
        """The largest id that its sets can hold; of text ids, the largest number."""
        return self._type.largest

    @property
    def _type(self) -> type[IdSet]:
        return type(next(iter(self._sets.values())))

    def cardinality(self, name: str) -> int:
        """How many ids the set has."""
        return len(self._of(name))

    def overlap(self, one: str, other: str) -> int:
        """How many ids are in both sets."""
        return self._of(one).overlap(self._of(other))

    def contains(self, name: str, id: Id) -> bool:
        """Whether the id is in this set."""
        ids, number = self._of(name), self._number(id)
        return number is not None and number in ids

    def segments_of(self, id: Id) -> tuple[str, ...]:
        """Every set that the id is in, exclusive or not, in order."""
        number = self._number(id)
        return () if number is None else tuple(name for name, ids in self._sets.items() if number in ids)

    def codes(self, ids: npt.NDArray[np.integer[Any]] | Sequence[str]) -> Codes:
        """Give the exclusive segment of each id, in any order, repeated or not: 0 for none, i for `names[i - 1]`.

        An array of integers, or a sequence of text ids. uint8 for up to 255 segments, else uint16. Raises like
        `segment_of`, for any one id. Cost: some 15 to 50 ns an id; 14 bytes an id and a table of at most 64 MiB (128
        for uint16) while it runs. 0.3 µs for uint64 ids, 1 to 2 µs for text.
        """
        dtype = np.uint8 if len(self.names) <= np.iinfo(np.uint8).max else np.uint16
        sets = [self._sets[name] for name in self.names]
        if self.ids is not None:
            if isinstance(ids, (np.ndarray, str)):
                raise InvalidTypeError(f"ids come as a sequence of text, not {type(ids).__name__}")
            numbers = self.ids.numbers(ids)
            known = np.flatnonzero(numbers >= 0)
            found = np.zeros(numbers.size, dtype=dtype)
            found[known] = codes_of(sets, numbers[known].astype(np.uint32), dtype)
            return found
        wanted = self._type.array(ids)  # pyright: ignore[reportArgumentType] - it refuses what cannot be an array
        if wanted.size <= _FEW:
            code = {name: number for number, name in enumerate(self.names, start=1)}
            return np.array([code.get(self._numbered(id) or "", 0) for id in wanted.tolist()], dtype=dtype)
        return (codes_of_64 if self.kind == "uint64" else codes_of)(sets, wanted, dtype)

    def classify(self, audience: IdSet) -> dict[str | None, IdSet]:
        """Split the audience by segment, in the order of `names`; last, under None, those in no exclusive segment.

        Every name is there, empty or not. The parts are disjoint and their union is the audience. About 10 ns an id.
        Where ids are text, an audience holds their numbers: `IdSet.from_array(snapshot.ids.numbers(texts))`.
        """
        parts: dict[str | None, IdSet] = {name: audience & self._sets[name] for name in self.names}
        parts[None] = audience - type(audience).union(tuple(parts.values()))
        return parts

    def members(self, name: str, after: Id | None = None, limit: int = 1000) -> list[Any]:
        """Return a page of the set's ids: at most `limit` above `after`; see `page`."""
        return self.page(self._of(name), after, limit)

    def page(self, ids: IdSet, after: Id | None = None, limit: int = 1000) -> list[Any]:
        """At most `limit` ids of a set above `after` (None: from the first); the last one is the next cursor.

        Numbers, ascending; text ids in the order of their numbers, which is the order in which they were first seen in
        a build and never changes. An empty page is the end.
        """
        if self.ids is None:
            return ids.page(after, limit)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - text is refused there
        cursor = None
        if after is not None:
            cursor = self._number(after)
            if cursor is None:
                raise SegmentError(f"id {after!r} is not in this snapshot; a cursor is the last id of a page")
        return [self.ids.text(number) for number in ids.page(cursor, limit)]

    def evaluate(self, expression: str | Expression) -> IdSet:
        """Return the ids that an expression such as `(active | new) - churned` names; see its module."""
        parsed = parse_expression(expression) if not isinstance(expression, Expression) else expression
        return parsed.evaluate(self._sets)

    def __repr__(self) -> str:
        return f"<Snapshot {self.version}: {', '.join(f'{name} {len(ids)}' for name, ids in self._sets.items())}>"

    def _of(self, name: str) -> IdSet:
        try:
            return self._sets[name]
        except KeyError:
            raise UnknownNameError(f"no segment {name!r}; there are: {', '.join(self._sets)}") from None

    def _number(self, id: Id) -> int | None:
        if self.ids is not None:
            return self.ids.number(id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - checked there
        return self._type.check(id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - checked there

    def _segment_of_text(self, id: Id) -> str | None:
        number = self._number(id)
        return None if number is None else self._numbered(number)


def _asker(pairs: Sequence[tuple[IdSet, str]], kind: type[IdSet]) -> Callable[[Id], str | None]:
    """Return a function that names the set an id is in. The first four are unrolled: a loop costs 40 ns more."""
    padded = [(ids.probe(), name) for ids, name in pairs]
    padded += [(frozenset[int](), "")] * (_UNROLLED - len(padded))
    (a, a_name), (b, b_name), (c, c_name), (d, d_name) = padded[:_UNROLLED]
    others = tuple(padded[_UNROLLED:])

    def segment_of(id: Id) -> str | None:  # noqa: PLR0911 - one for each unrolled set
        # Nothing between an int and the sets: every step here is a tenth of the answer's time.
        if type(id) is not int:
            return segment_of(kind.check(id))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - checked there
        try:
            if id in a:
                return a_name
            if id in b:
                return b_name
            if id in c:
                return c_name
            if id in d:
                return d_name
            for holds, name in others:
                if id in holds:
                    return name
        except OverflowError:
            kind.check(id)
            raise
        return None

    return segment_of


def describe_overlap(sets: Mapping[str, IdSet], texts: Dictionary | None = None) -> str | None:
    """None where the sets are disjoint, else how many ids are in two or more, and the first ten with their segments."""
    # One union instead of every pair: it stays linear for a thousand segments.
    if not sets:
        return None
    kind = type(next(iter(sets.values())))
    if sum(map(len, sets.values())) == len(kind.union(tuple(sets.values()))):
        return None
    seen, twice = kind(), kind()
    for ids in sets.values():
        twice |= seen & ids
        seen |= ids
    first = twice.page(limit=10)
    shown = {id: id if texts is None else texts.text(id) for id in first}
    listed = ", ".join(f"{shown[id]} ({' and '.join(name for name, ids in sets.items() if id in ids)})" for id in first)
    return f"{len(twice)} id{'s are' if len(twice) > 1 else ' is'} in two segments or more: {listed}" + (
        ", …" if len(twice) > len(first) else ""
    )


def _version(created_us: int) -> str:
    second, micros = divmod(created_us, 1_000_000)
    return f"{datetime.fromtimestamp(second, UTC):%Y%m%dT%H%M%S}.{micros:06d}Z"
