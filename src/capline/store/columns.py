"""Many decisions as columns: what `decide_many` answers for a whole batch."""

from __future__ import annotations

import zlib
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

_DTYPES = ("bool", "int16", "int64", "int64", "int64", "int64")


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

    __slots__ = (
        "allowed",
        "errors",
        "hit",
        "limit_index",
        "limits",
        "origin",
        "origins",
        "remaining",
        "reset_after_us",
        "retry_after_us",
    )

    def __init__(
        self,
        limits: tuple[Limit, ...],
        allowed: NDArray[np.bool_],
        limit_index: NDArray[np.int16],
        remaining: NDArray[np.int64],
        retry_after_us: NDArray[np.int64],
        reset_after_us: NDArray[np.int64],
        hit: NDArray[np.int64],
        errors: dict[int, CaplineError] | None = None,
        origin: str = "store",
        origins: dict[int, str] | None = None,
    ) -> None:
        self.limits = limits
        self.allowed = allowed
        self.limit_index = limit_index
        self.remaining = remaining
        self.retry_after_us = retry_after_us
        self.reset_after_us = reset_after_us
        self.hit = hit
        self.errors = errors or {}
        self.origin = origin
        self.origins = origins or {}

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
        return cls(
            limits,
            np.concatenate([part.allowed for part in parts]),
            np.concatenate([part.limit_index for part in parts]),
            np.concatenate([part.remaining for part in parts]),
            np.concatenate([part.retry_after_us for part in parts]),
            np.concatenate([part.reset_after_us for part in parts]),
            np.concatenate([part.hit for part in parts]),
        )

    def put(self, rows: NDArray[np.intp], part: Decisions) -> None:
        """Take over the answers to these rows from a batch of their own."""
        known = {*self.limits}
        self.limits += tuple(limit for limit in dict.fromkeys(part.limits) if limit not in known)
        places = {limit: place for place, limit in enumerate(self.limits)}
        index = [places[limit] for limit in part.limits]
        self.allowed[rows] = part.allowed
        self.limit_index[rows] = np.array([*index, -1], np.int16)[part.limit_index]
        self.remaining[rows] = part.remaining
        self.retry_after_us[rows] = part.retry_after_us
        self.reset_after_us[rows] = part.reset_after_us
        self.hit[rows] = part.hit
        self.errors |= {int(rows[row]): error for row, error in part.errors.items()}

    def pack(self) -> bytes:
        """The columns as bytes, for a receipt; limits are left to whoever unpacks.

        An error is kept as a refusal without an end, which no answer is.
        """
        columns = (self.allowed, self.limit_index, self.remaining, self.retry_after_us, self.reset_after_us, self.hit)
        return zlib.compress(b"".join(column.tobytes() for column in columns), level=1)

    @classmethod
    def unpack(cls, data: bytes, limits: tuple[Limit, ...]) -> tuple[Decisions, bytes]:
        """The columns that `pack` wrote, and what stands behind them; raises `StoreDamagedError` for anything else."""
        try:
            unpacked = zlib.decompressobj()
            raw = unpacked.decompress(data)
        except zlib.error as error:
            raise StoreDamagedError(f"a receipt is damaged ({error}); its batch cannot be answered again") from None
        row_bytes = sum(np.dtype(dtype).itemsize for dtype in _DTYPES)
        n, rest = divmod(len(raw), row_bytes)
        if rest or not unpacked.eof:
            raise StoreDamagedError("a receipt is damaged: not whole rows; its batch cannot be answered again")
        columns: list[NDArray[Any]] = []
        offset = 0
        for dtype in _DTYPES:
            columns.append(np.frombuffer(raw, dtype, n, offset).copy())
            offset += columns[-1].nbytes
        allowed, limit_index, remaining, retry_after_us, reset_after_us, hit = columns
        errors: dict[int, CaplineError] = dict.fromkeys(
            np.flatnonzero(~allowed & (reset_after_us == NEVER_US)).tolist(), StoreDamagedError(_WAS_DAMAGED)
        )
        decided = cls(limits, allowed, limit_index, remaining, retry_after_us, reset_after_us, hit, errors)
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
