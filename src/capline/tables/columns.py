"""Columns of texts and of times, as Arrow has them; as lists of texts where pyarrow is not installed.

The forms of time that nearly all files have are read by Arrow, any other by `read_time_us`, each distinct text once. So
both give the same instants, and the same errors.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from capline.model.clock import LATEST_US
from capline.model.errors import CaplineError
from capline.tables.times import has_zone, read_time_us

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_WHOLE, _FRACTION = r"^[0-9]{1,10}$", r"^[0-9]{1,10}(\.[0-9]{1,6})?$"
_LOCAL, _ZONED = rf"^{_DAY}({_CLOCK})?$", rf"^{_DAY}{_CLOCK}(Z|[+-][01][0-9]:?[0-5][0-9])$"


def arrow(part: str = "") -> Any:
    """Find pyarrow, or a part of it, untyped; None where it is not installed."""
    try:
        return import_module(f"pyarrow{part}")
    except ModuleNotFoundError:
        return None


def texts_of(column: Any) -> Any:
    """Any column as text, null as empty."""
    pa = arrow()
    if isinstance(column, list) or pa is None:
        return cast("list[str]", column)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind):
        return arrow(".compute").fill_null(column.cast(pa.string()), "")
    return pa.array(["" if cell is None else str(cell) for cell in column.to_pylist()], pa.string())


def distinct(texts: Any) -> tuple[list[str], NDArray[np.int32]]:
    """The distinct texts of a column in order of first use, and the place of each row's text among them."""
    if isinstance(texts, list):
        rows = cast("list[str]", texts)
        places = {text: place for place, text in enumerate(dict.fromkeys(rows))}
        return [*places], np.fromiter(map(places.__getitem__, rows), np.int32)
    encoded = texts.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)


def first_bad(texts: Any, check: Callable[[str], object]) -> tuple[int, CaplineError] | None:
    """The first row whose text the check refuses, and why."""
    some, where = distinct(texts)
    for place, text in enumerate(some):  # in order of first use
        try:
            check(text)
        except CaplineError as error:
            return int(np.argmax(where == place)), error
    return None


def microseconds(column: Any, name: str = "time") -> tuple[NDArray[np.int64], bool]:
    """A column of times in microseconds since 1970, and whether a time of it is without a zone.

    Texts are as in `read_time_us`, which is raised from, with this name; Parquet has timestamps, dates, and numbers of
    seconds too. A null is an empty text.
    """
    found = None if isinstance(column, list) else _by_arrow(column)
    if found is not None and (not len(found[0]) or (int(found[0].min()) >= 0 and int(found[0].max()) <= LATEST_US)):
        return found
    some, where = distinct(texts_of(column))
    at_us = np.fromiter((read_time_us(text, name) for text in some), np.int64, len(some))
    return at_us[where], not all(map(has_zone, some))


def _by_arrow(column: Any) -> tuple[NDArray[np.int64], bool] | None:
    """The same where Arrow can read all of it; None where it must be read text by text."""
    pa = arrow()
    try:
        if column.null_count:
            return None
        return _of_texts(column) if pa.types.is_string(column.type) else _of_parquet(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _of_texts(column: Any) -> tuple[NDArray[np.int64], bool] | None:
    pa = arrow()
    if _all_match(column, _WHOLE):
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False) * 1_000_000, False
    if _all_match(column, _FRACTION):
        parts = arrow(".compute").multiply(column.cast(pa.decimal128(17, 6)), pa.scalar(1_000_000, pa.int64()))
        return _as_numbers(parts), False
    for pattern, zone in ((_LOCAL, None), (_ZONED, "UTC")):
        if _all_match(column, pattern):
            return _as_numbers(column.cast(pa.timestamp("us", zone))), zone is None
    return None


def _of_parquet(column: Any) -> tuple[NDArray[np.int64], bool] | None:
    pa, kind = arrow(), column.type
    if pa.types.is_integer(kind):
        return _as_numbers(arrow(".compute").multiply_checked(column.cast(pa.int64()), 1_000_000)), False
    if pa.types.is_floating(kind):
        numbers: NDArray[np.float64] = column.to_numpy(zero_copy_only=False).astype(np.float64)
        good = bool((np.abs(numbers) <= LATEST_US / 1e6).all())  # NaN is not
        return (np.rint(numbers * 1e6).astype(np.int64), False) if good else None
    zone = getattr(kind, "tz", None)
    return _as_numbers(column.cast(pa.timestamp("us", zone), safe=False)), zone is None


def _as_numbers(column: Any) -> NDArray[np.int64]:
    return column.cast(arrow().int64()).to_numpy(zero_copy_only=False)


def _all_match(column: Any, pattern: str) -> bool:
    found = arrow(".compute").match_substring_regex
    # The first row rules out most forms.
    return bool(found(column.slice(0, 1), pattern)[0].as_py() and arrow(".compute").all(found(column, pattern)).as_py())


def columns_of(rows: Sequence[Sequence[str]]) -> list[Any]:
    """The columns of at least one row of texts."""
    pa = arrow()
    return [list(column) if pa is None else pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
