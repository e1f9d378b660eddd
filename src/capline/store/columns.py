"""Many decisions as columns: what `decide_many` answers for a whole batch."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capline.model.decision import Decision
from capline.model.errors import StoreDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
else:
    from capline.model.arrays import np

NEVER_US = -1
"""In `retry_after_us`: this cost never fits (a `Decision` says None)."""

NO_HIT = -1
"""In `hit`: nothing was recorded (a `Decision` says None)."""
_WAS_DAMAGED = "the stored log was damaged when this receipt's batch was decided; nothing was recorded"

_COLUMNS = {
    "allowed": ("bool", False),
    "limit_index": ("int16", -1),
    "remaining": ("int64", 0),
    "retry_after_us": ("int64", NEVER_US),
    "reset_after_us": ("int64", NEVER_US),
    "hit": ("int64", NO_HIT),
}
"""The type of each column, and what stands in it for a row without an answer."""


@dataclass(slots=True, eq=False, repr=False)
class Decisions:
    """The answers to a batch, one row for each attempt, in order.

    allowed         bool    the verdicts
    limit_index     int16   into `limits`, the binding limit of each row; -1 for none
    remaining       int64   as in `Decision`
    retry_after_us  int64   `NEVER_US` (-1) for never
    reset_after_us  int64
    hit             int64   `NO_HIT` (-1) where nothing was recorded
    errors          dict    row -> why that row has no answer; such a row is not allowed, and its hit is unknown
    origin          str     who answered, as in `Decision`; `origins` has the rows with another origin
    """

    limits: tuple[Limit, ...]
    allowed: NDArray[np.bool_]
    limit_index: NDArray[np.int16]
    remaining: NDArray[np.int64]
    retry_after_us: NDArray[np.int64]
    reset_after_us: NDArray[np.int64]
    hit: NDArray[np.int64]
    errors: dict[int, CaplineError] = field(default_factory=dict[int, "CaplineError"])
    origin: str = "store"
    origins: dict[int, str] = field(default_factory=dict[int, str])

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """The arrays, in the order in which they are listed above."""
        return self.allowed, self.limit_index, self.remaining, self.retry_after_us, self.reset_after_us, self.hit

    @classmethod
    def unanswered(cls, limits: tuple[Limit, ...], rows: int) -> Decisions:
        """So many rows without an answer, to be filled in."""
        columns: list[Any] = [np.full(rows, empty, dtype) for dtype, empty in _COLUMNS.values()]
        return cls(limits, *columns)

    @classmethod
    def of(cls, decisions: Sequence[Decision], limits: tuple[Limit, ...]) -> Decisions:
        """Turn rows into columns; every binding limit must be among `limits`. About 0.3 µs a row."""
        n = len(decisions)
        # Limits are looked up by identity first: the same few objects come row after row.
        index_of = {id(limit): i for i, limit in enumerate(limits)}
        index_of[id(None)] = -1
        return cls(
            limits,
            np.fromiter([d.allowed for d in decisions], np.bool_, n),
            np.fromiter([index_of[id(d.limit)] for d in decisions], np.int16, n),
            np.fromiter([d.remaining for d in decisions], np.int64, n),
            np.fromiter([NEVER_US if d.retry_after_us is None else d.retry_after_us for d in decisions], np.int64, n),
            np.fromiter([NEVER_US if d.reset_after_us is None else d.reset_after_us for d in decisions], np.int64, n),
            np.fromiter([NO_HIT if d.hit is None else d.hit for d in decisions], np.int64, n),
        )

    @classmethod
    def joined(cls, parts: Sequence[Decisions], limits: tuple[Limit, ...]) -> Decisions:
        """The rows of all parts, one behind the other; the parts share these limits, and have no errors."""
        if len(parts) < 2:  # noqa: PLR2004 - nothing to join
            return parts[0] if parts else cls.of((), limits)
        joined: list[Any] = [np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)]
        return cls(limits, *joined)

    def put(self, rows: NDArray[np.intp], part: Decisions) -> None:
        """Take over the answers to these rows from a batch of their own."""
        known = {*self.limits}
        self.limits += tuple(limit for limit in dict.fromkeys(part.limits) if limit not in known)
        places = {limit: place for place, limit in enumerate(self.limits)}
        index = [places[limit] for limit in part.limits]
        self.place(rows, part)
        self.limit_index[rows] = np.array([*index, -1], np.int16)[part.limit_index]
        self.errors |= {int(rows[row]): error for row, error in part.errors.items()}

    def place(self, rows: NDArray[Any], part: Decisions) -> None:
        """Take over the columns of a batch of these rows, under the same limits."""
        for column, given in zip(self.columns, part.columns, strict=True):
            column[rows] = given

    def pack(self) -> bytes:
        """The columns as bytes, for a receipt; limits are left to whoever unpacks.

        An error is kept as a refusal without an end, which no answer is.
        """
        return zlib.compress(b"".join(column.tobytes() for column in self.columns), level=1)

    @classmethod
    def unpack(cls, data: bytes, limits: tuple[Limit, ...]) -> tuple[Decisions, bytes]:
        """The columns that `pack` wrote, and what stands behind them; raises `StoreDamagedError` for anything else."""
        try:
            unpacked = zlib.decompressobj()
            raw = unpacked.decompress(data)
        except zlib.error as error:
            raise StoreDamagedError(f"a receipt is damaged ({error}); its batch cannot be answered again") from None
        dtypes = [dtype for dtype, _ in _COLUMNS.values()]
        row_bytes = sum(np.dtype(dtype).itemsize for dtype in dtypes)
        n, rest = divmod(len(raw), row_bytes)
        if rest or not unpacked.eof:
            raise StoreDamagedError("a receipt is damaged: not whole rows; its batch cannot be answered again")
        columns: list[Any] = []
        offset = 0
        for dtype in dtypes:
            columns.append(np.frombuffer(raw, dtype, n, offset).copy())
            offset += columns[-1].nbytes
        decided = cls(limits, *columns)
        unanswered = np.flatnonzero(~decided.allowed & (decided.reset_after_us == NEVER_US))
        decided.errors = dict.fromkeys(unanswered.tolist(), StoreDamagedError(_WAS_DAMAGED))
        return decided, unpacked.unused_data

    def __len__(self) -> int:
        return len(self.allowed)

    def __repr__(self) -> str:
        """How many rows, and how many of them were allowed; a million rows are not listed."""
        allowed, errors = int(self.allowed.sum()), len(self.errors)
        refused = len(self) - allowed - errors
        return f"<Decisions of {len(self)} rows: {allowed} allowed, {refused} refused, {errors} without an answer>"

    def __getitem__(self, row: int) -> Decision:
        row = range(len(self))[row]  # from the end too: errors and origins are kept by the row's number
        if row in self.errors:
            raise self.errors[row]
        index, retry, reset, hit = (
            int(column[row]) for column in (self.limit_index, self.retry_after_us, self.reset_after_us, self.hit)
        )
        return Decision(
            bool(self.allowed[row]),
            None if index < 0 else self.limits[index],
            int(self.remaining[row]),
            None if retry == NEVER_US else retry,
            None if reset == NEVER_US else reset,
            None if hit == NO_HIT else hit,
            self.origins.get(row, self.origin),
        )

    def __iter__(self) -> Iterator[Decision]:
        return (self[row] for row in range(len(self)))


def plain(values: Sequence[Any] | NDArray[Any]) -> list[Any]:
    """A list of the values, NumPy's integers converted to Python's in one step."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
