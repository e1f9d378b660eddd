"""Suggested limits: for each window the curve over all quotas, and the smallest quota that keeps within a bound.

A larger quota never refuses more, in one window or in several together, as no allowed event comes later by it. So every
search is by halves. A limit of a policy counts in the presence of the others: windows together are counted together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capline.model.errors import InvalidValueError
from capline.model.limit import Limit, window_text
from capline.model.subject import Subject
from capline.replay.count import most_refused
from capline.replay.suggest.histories import Histories, Window, window_of
from capline.replay.suggest.refusals import MOST_CELLS, Refusals, over, refusals

MOST_PAIRS = 200
"""Pairs of a frontier, which are spread evenly where there are more."""
_COLUMNS = 16
"""Sets of quotas that a search counts at once."""
_FEW_QUOTAS = 256
"""Below such a peak each quota is counted: all of them are quicker than those that matter found in rounds."""


class Bound(NamedTuple):
    """How many events may be refused, or how many subjects may have a refusal: a share, or else a number."""

    of: str
    """`events` or `subjects`."""
    share: Fraction | None
    number: int = 0

    @classmethod
    def parse(cls, text: str, of: str, name: str = "--refuse-at-most") -> Bound:
        """Read `1%`, or a whole number of them."""
        try:
            if text.endswith("%") and 0 <= (share := Fraction(Decimal(text.removesuffix("%"))) / 100) <= 1:
                return cls(of, share)
            if text.isascii() and text.isdecimal():
                return cls(of, None, int(text))
        except (ArithmeticError, ValueError):  # "x%", "nan%", "inf%"
            pass
        raise InvalidValueError(f"{name} is a share like 1%, or a whole number of {of}, not {text[:40]!r}")

    def most(self, total: int) -> int:
        """So many of this total."""
        return self.number if self.share is None else int(self.share * total)


class Curve(NamedTuple):
    """What each quota refuses; the first is 1, the last the smallest that refuses nothing."""

    events: NDArray[np.int64]
    """Refused events."""
    subjects: NDArray[np.int64]
    """Subjects with a refusal."""
    worst: NDArray[np.int64]
    """The most refused events of one subject."""


class Price(NamedTuple):
    """Limits that hold together, and what they refuse."""

    limits: tuple[Limit, ...]
    events: int
    subjects: int


class Choice(NamedTuple):
    """A window alone: its curve, the limit that is suggested, and whom that refuses most."""

    curve: Curve
    price: Price
    top: list[tuple[int, int, int]]
    """The codes of at most ten subjects, each with its refused events and all its events."""

    @property
    def limit(self) -> Limit:
        """The suggested limit."""
        return self.price.limits[0]

    @property
    def window(self) -> str:
        """The name of the window."""
        return window_text(self.limit.window_us)


class Suggestion(NamedTuple):
    """Limits for some events."""

    events: int
    subjects: int
    choices: list[Choice]
    together: Price
    """Limits for all windows that keep within the bound together, as near as may be to what each needs alone."""
    frontier: list[Price]
    """With two windows the pairs that keep within it, of which neither quota can be smaller."""


def suggest(
    histories: Histories,
    widths_us: Sequence[int],
    bound: Bound,
    name_of: Callable[[int], Subject],
    progress: Callable[[int], object] = lambda _work: None,
) -> Suggestion:
    """Suggest limits over windows of these widths; `progress` gets how many windows and searches are done.

    `name_of` gives the subject of a code: those with as many refusals are in the order of their names.
    """
    windows: list[Window] = []
    choices: list[Choice] = []
    most = bound.most(histories.events if bound.of == "events" else len(histories.codes))
    for width_us in widths_us:
        windows.append(window_of(histories, width_us))
        choices.append(_choice(histories, windows[-1], bound, most, name_of))
        progress(len(windows))
    if len(windows) == 1:
        return Suggestion(histories.events, len(histories.codes), choices, choices[0].price, [])
    search = _Search(histories, windows, bound, most, choices)
    together, frontier = search.together(), list[Price]()
    progress(len(windows) + 1)
    if len(windows) == 2:  # noqa: PLR2004 - a pair
        frontier = sorted({*search.frontier(), together}, key=lambda price: price.limits[0].quota)
    progress(len(windows) + 2)
    return Suggestion(histories.events, len(histories.codes), choices, together, frontier)


def curve_of(histories: Histories, window: Window) -> Curve:
    """Count for every quota, subjects of like peaks together."""
    found = np.zeros((3, int(window.peaks.max())), np.int64)
    steps = over([window], [1])
    subjects = histories.subjects[steps]
    classes = np.frexp(window.peaks)[1][subjects]  # by the binary digits of the peak
    convex = ~window.uneven[subjects] & (window.peaks[subjects] >= _FEW_QUOTAS)
    for each_class in np.unique(classes):
        for add, rows in ((_add, ~convex), (_add_convex, convex)):
            if (rows := rows & (classes == each_class)).any():
                add(found, histories, window, steps[rows])
    last = int(np.argmin(found[0])) + 1
    return Curve(*found[:, :last])


def _add(found: NDArray[np.int64], histories: Histories, window: Window, steps: NDArray[np.int64]) -> None:
    """Add what some subjects have refused at each quota; `steps` are the instants at which they have some at 1."""
    peak = int(window.within[steps].max())
    for quotas, counted in _counted(histories, window, steps, np.arange(1, peak)):
        rows = found[:, quotas - 1]
        rows[:2] += counted.events, counted.subjects
        np.maximum(rows[2], counted.counts.max(axis=0), out=rows[2])
        found[:, quotas - 1] = rows


def _add_convex(found: NDArray[np.int64], histories: Histories, window: Window, steps: NDArray[np.int64]) -> None:
    """The same for large peaks, of which not every quota need be counted.

    By `refusals`, the refusals of a subject are the most, over all k, of `(events that k windows apart can hold) - k *
    quota`: convex, and straight between few quotas, at most the square root of twice its events. Three quotas in line
    have all between them in line, also in a sum. So where two neighbours are not in line with a third, it is counted
    next where their lines meet.
    """
    subjects = np.unique(histories.subjects[steps])
    peaks = window.peaks[subjects]
    known = np.array([int(peaks.max())])
    counts = np.zeros((1, len(subjects)), np.int64)
    asked = np.unique(np.geomspace(1, max(1, known[0] - 1), _COLUMNS).astype(np.int64))
    while len(asked):
        more = np.zeros((len(asked), len(subjects)), np.int64)
        for quotas, counted in _counted(histories, window, steps, asked):
            more[np.searchsorted(asked, quotas)[:, None], np.searchsorted(subjects, counted.places)] = counted.counts.T
        known, counts = np.append(known, asked), np.concatenate((counts, more))
        order = np.argsort(known)
        known, counts = known[order], counts[order]
        asked = _to_ask(known, counts.sum(axis=1))
    for at, (low, high) in enumerate(pairwise(known.tolist())):
        slopes = (counts[at + 1] - counts[at]) // (high - low)
        for start in range(low, high, many := max(1, MOST_CELLS // 8 // len(subjects))):
            quotas = np.arange(start, min(high, start + many), dtype=np.int64)
            of_each: NDArray[np.int64] = counts[at] + slopes * (quotas - low)[:, None]
            rows = found[:, quotas[0] - 1 : quotas[-1]]
            rows[:2] += of_each.sum(axis=1), np.count_nonzero(of_each, axis=1)
            np.maximum(rows[2], of_each.max(axis=1), out=rows[2])


def _to_ask(quotas: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Quotas between known ones where a convex function of them may bend."""
    gaps, falls = np.diff(quotas), np.diff(counts)
    straight = falls[1:] * gaps[:-1] == falls[:-1] * gaps[1:]
    bends = (gaps > 1) & ~(np.append(straight, False) | np.insert(straight, 0, False))
    asked: list[int] = []
    for at in np.flatnonzero(bends).tolist():
        low, high = int(quotas[at]), int(quotas[at + 1])
        meet = (low + high) // 2
        if 0 < at < len(gaps) - 1:
            left, right = falls[at - 1] / gaps[at - 1], falls[at + 1] / gaps[at + 1]
            meet = int(low + (counts[at + 1] - counts[at] - right * (high - low)) / (left - right))
        asked += [min(max(each, low + 1), high - 1) for each in (meet, meet + 1)]
    return np.unique(np.array(asked, np.int64))


def _counted(
    histories: Histories, window: Window, steps: NDArray[np.int64], quotas: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], Refusals]]:
    """Count at these rising quotas, below the largest peak of these subjects.

    Quotas are taken some at a time: as many as refuse at half of the instants or more where the first does, and as fit
    in memory.
    """
    most, low = max(1, MOST_CELLS // int(window.within[steps].max())), 0
    while low < len(quotas):
        steps = over([window], [int(quotas[low])], steps)
        half = int(np.searchsorted(quotas, int(np.median(window.within[steps]))))
        high = min(len(quotas), low + max(1, min(half - low, most)))
        yield quotas[low:high], refusals(histories, [window], quotas[None, low:high].astype(np.int32), steps)
        low = high


def _choice(histories: Histories, window: Window, bound: Bound, most: int, name_of: Callable[[int], Subject]) -> Choice:
    curve = curve_of(histories, window)
    price = curve.events if bound.of == "events" else curve.subjects
    quota = int(np.argmax(price <= most)) + 1
    counted = refusals(histories, [window], np.array([[quota]], np.int32))
    counts, codes = counted.counts[:, 0], histories.codes[counted.places]
    order = most_refused(counts, lambda place: name_of(int(codes[place])))
    sizes = histories.sizes()[counted.places[order]]
    top = list(zip(codes[order].tolist(), counts[order].tolist(), sizes.tolist(), strict=True))
    refused = Price((Limit(quota, window.width_us),), int(curve.events[quota - 1]), int(curve.subjects[quota - 1]))
    return Choice(curve, refused, top)


def rows_of(choice: Choice, most: int) -> list[int]:
    """Some quotas of its curve, at most so many: the suggested one, its neighbours, and others evenly by ratio."""
    last, quota = len(choice.curve.events), choice.limit.quota
    near = {max(1, quota - 1), quota, min(quota + 1, last)}
    spread = [round(last ** (i / (most - 4))) for i in range(most - 3)] if last > most else range(1, last + 1)
    return sorted({*spread, *near})


class _Search:
    """Searches for quotas of all windows together; a set of quotas is a column, with a row for each window."""

    def __init__(
        self, histories: Histories, windows: list[Window], bound: Bound, most: int, choices: list[Choice]
    ) -> None:
        self._histories, self._windows, self._bound, self._most = histories, windows, bound, most
        self._least = np.array([choice.limit.quota for choice in choices], np.int32)
        """What each window needs alone: together none can do with less."""
        self._enough = np.array([len(choice.curve.events) for choice in choices], np.int32)
        """What refuses nothing."""

    def together(self) -> Price:
        """The quotas that are raised alike until they keep within the bound, and then lowered one by one."""
        far = self._enough - self._least
        steps = int(far.max())

        def raised(step: NDArray[np.int64]) -> NDArray[np.int32]:
            return (self._least[:, None] + far[:, None].astype(np.int64) * step // max(1, steps)).astype(np.int32)

        quotas = raised(self._smallest(raised, np.zeros(1, np.int64), np.full(1, steps)))
        for place in range(len(quotas)):
            quotas = self._lowered(place, quotas)
        return self._prices(quotas)[0]

    def frontier(self) -> list[Price]:
        """With two windows: for each quota of the one the smallest of the other, and for that again of the first."""
        # Where the other has what it needs alone, this one needs the most.
        ends = [self._lowered(place, self._corner(place))[place, 0] for place in range(2)]
        first = int(np.argmin(ends - self._least))
        span = int(ends[first] - self._least[first])
        quotas = np.repeat(self._enough[:, None], min(span + 1, MOST_PAIRS), axis=1)
        quotas[first] = self._least[first] + np.linspace(0, span, quotas.shape[1]).astype(np.int32)
        for place in (1 - first, first):
            quotas = np.unique(self._lowered(place, quotas), axis=1)
        return self._prices(quotas)

    def _corner(self, place: int) -> NDArray[np.int32]:
        quotas = self._least[:, None].copy()
        quotas[place] = self._enough[place]
        return quotas

    def _lowered(self, place: int, quotas: NDArray[np.int32]) -> NDArray[np.int32]:
        """The same with the quota at this place as small as it may be in each set."""

        def with_quota(values: NDArray[np.int64]) -> NDArray[np.int32]:
            changed = quotas.copy()
            changed[place] = values
            return changed

        low = np.full(quotas.shape[1], self._least[place], np.int64)
        return with_quota(self._smallest(with_quota, low, quotas[place].astype(np.int64)))

    def _smallest(
        self,
        quotas_of: Callable[[NDArray[np.int64]], NDArray[np.int32]],
        low: NDArray[np.int64],
        high: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """For each set the smallest number whose quotas keep within the bound; those of `high` do."""
        while (low < high).any():
            middle = (low + high) // 2
            kept = np.array([getattr(price, self._bound.of) <= self._most for price in self._prices(quotas_of(middle))])
            high = np.where(kept, middle, high)
            low = np.where(kept, low, np.minimum(middle + 1, high))
        return high

    def _prices(self, quotas: NDArray[np.int32]) -> list[Price]:
        widths = [window.width_us for window in self._windows]
        prices: list[Price] = []
        for start in range(0, quotas.shape[1], _COLUMNS):
            some = quotas[:, start : start + _COLUMNS]
            counted = refusals(self._histories, self._windows, some)
            found = zip(some.T.tolist(), counted.events.tolist(), counted.subjects.tolist(), strict=True)
            prices += [Price(tuple(map(Limit, column, widths)), events, subjects) for column, events, subjects in found]
        return prices
