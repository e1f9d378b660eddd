"""Charts as SVG that stands in a page: no script, and colours by role, which the style defines for light and dark.

Each chart is drawn twice, wide and narrow, of which the page shows one: scaled down, a wide one could not be read on a
phone. The mouse shows the figures of a bar or a dot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log, log10

from capline.replay.page import Html

_SIZES = (("wide", 980, 330, 8), ("narrow", 350, 290, 3))
"""The two drawings: their class, width, height, and the most numbers below them."""
_LEFT, _TOP, _BOTTOM, _ROW, _LETTER = 56, 12, 44, 26, 7.5
_LABEL_LENGTH = 46


def stacked(
    label: str, x: Sequence[str], series: Sequence[tuple[str, str, Sequence[int]]], titles: tuple[str, str]
) -> Html:
    """Bars of parts over each other; a series is its name, the role of its colour, and its values."""
    sums = [sum(values) for values in zip(*(values for _, _, values in series), strict=True)]
    top = max([*sums, 1])

    def draw(width: int, height: int, _labels: int) -> list[str]:
        step = (width - _LEFT) / len(x)
        scale = (height - _TOP - _BOTTOM) / top
        parts = _grid(width, height, {value: height - _BOTTOM - value * scale for value in _ticks(top)}, titles)
        below = [0] * len(x)
        for _, role, values in series:
            path: list[str] = []
            for place, value in enumerate(values):
                below[place] += value
                left, upper = _LEFT + step * place, height - _BOTTOM - below[place] * scale
                path += [f"M{left:.1f} {upper:.1f}h{step * 0.84:.1f}v{value * scale:.1f}h{-step * 0.84:.1f}z"] * bool(
                    value
                )
            parts.append(f'<path d="{"".join(path)}" style="fill:var(--{role})"/>')
        label_width = _LETTER * (max(map(len, x)) + 2)
        every = ceil(len(x) * label_width / (width - _LEFT))
        for place, name in enumerate(x):
            if place % every == 0 and _LEFT + step * place + label_width <= width + 2 * _LETTER:
                parts.append(_text(_LEFT + step * place, height - _BOTTOM + 18, name, "start"))
            figures = "\n".join(f"{what}: {values[place]:,}" for what, _, values in series)
            box = f'x="{_LEFT + step * place:.1f}" y="{_TOP}" width="{step:.1f}" height="{height - _TOP - _BOTTOM}"'
            told = f"<title>{escape(name)}\n{escape(figures)}</title>"
            parts.append(f'<rect class="mark" {box} fill="transparent">{told}</rect>')
        return parts

    return _chart(label, [(name, role, True) for name, role, _ in series], draw)


def dots(label: str, series: Sequence[tuple[str, str, bool, Mapping[int, int]]], titles: tuple[str, str]) -> Html:
    """Dots over a logarithmic scale; a series is its name, the role of its colour, whether dots are filled, and counts.

    Dots and not bars, for a bar's length means nothing where there is no zero.
    """
    furthest = max((number for *_, counts in series for number in counts), default=1)
    decades = max(1, ceil(log10(max((count for *_, counts in series for count in counts.values()), default=1))))

    def draw(width: int, height: int, labels: int) -> list[str]:
        across, up = (width - _LEFT - 14) / max(1, furthest), (height - _TOP - _BOTTOM) / decades
        lines = {10**decade: height - _BOTTOM - up * decade for decade in range(decades + 1)}
        parts = _grid(width, height, lines, titles)
        for number in _ticks(furthest, labels):
            parts.append(_text(_LEFT + across * number, height - _BOTTOM + 18, f"{number}", "middle"))
        for name, role, filled, counts in series:
            style = f"stroke:var(--{role});stroke-width:2;fill:{f'var(--{role})' if filled else 'none'}"
            for number, count in counts.items():
                place = f'cx="{_LEFT + across * number:.1f}" cy="{height - _BOTTOM - up * log10(count):.1f}"'
                told = f"<title>{escape(name)}\n{number:,}: {count:,}</title>"
                parts.append(f'<circle class="mark" {place} r="4.5" style="{style}">{told}</circle>')
        return parts

    return _chart(label, [(name, role, filled) for name, role, filled, _ in series], draw)


def curves(
    label: str, series: Sequence[tuple[str, str, Mapping[int, tuple[float, str]]]], marked: int, titles: tuple[str, str]
) -> Html:
    """Lines of shares over numbers from 1 on, each step a ratio, and a broken line at the number that is marked.

    A series is its name, the role of its colour, and for each number the share and what the mouse shows.
    """
    furthest = max((number for *_, points in series for number in points), default=1)
    top = max((share for *_, points in series for share, _ in points.values()), default=0.0) or 1.0

    def draw(width: int, height: int, labels: int) -> list[str]:
        def x(number: float) -> float:
            return _LEFT + (width - _LEFT - 24) * (log(number) / log(furthest) if furthest > 1 else 0.5)

        def y(share: float) -> float:
            return height - _BOTTOM - (height - _TOP - _BOTTOM) * share / top

        shares = {percent: y(percent / 100) for percent in _ticks(max(1, floor(top * 100)))}
        parts = _grid(width, height, shares, titles)
        ratios = [factor * 10**power for power in range(ceil(log10(furthest)) + 1) for factor in (1, 2, 5)]
        ratios = [number for number in ratios if number <= furthest]
        for number in ratios[:: ceil(len(ratios) / labels)]:
            parts.append(_text(x(number), height - _BOTTOM + 18, f"{number:,}", "middle"))
        parts.append(f'<path class="marked" d="M{x(marked):.1f} {_TOP}V{height - _BOTTOM}"/>')
        for name, role, points in series:
            places = [(x(number), y(share), told) for number, (share, told) in points.items()]
            line = "L".join(f"{across:.1f} {up:.1f}" for across, up, _ in places)
            parts.append(f'<path d="M{line}" style="fill:none;stroke:var(--{role});stroke-width:2"/>')
            for across, up, told in places:
                shown = f"<title>{escape(name)}\n{escape(told)}</title>"
                place = f'cx="{across:.1f}" cy="{up:.1f}"'
                parts.append(f'<circle class="mark" {place} r="3.5" style="fill:var(--{role})">{shown}</circle>')
        return parts

    return _chart(label, [(name, role, True) for name, role, _ in series], draw)


def bars(label: str, rows: Sequence[tuple[str, float, str]], role: str) -> Html:
    """Bars that lie below their names; a row is its name, its value, and the value as it is written."""
    top = max((value for _, value, _ in rows), default=1) or 1

    def draw(width: int, _height: int, _labels: int) -> list[str]:
        parts: list[str] = []
        for place, (name, value, written) in enumerate(rows):
            y = _ROW * 1.6 * place
            parts.append(_text(0, y + 14, name if len(name) <= _LABEL_LENGTH else f"{name[:_LABEL_LENGTH]}…", "start"))
            length = (width - 90) * value / top
            told = f"<title>{escape(name)}: {escape(written)}</title>"
            box = f'x="0" y="{y + 20:.1f}" width="{max(1.0, length):.1f}" height="12"'
            parts.append(f'<rect class="mark" {box} style="fill:var(--{role})">{told}</rect>')
            parts.append(_text(length + 8, y + 31, written, "start"))
        return parts

    return _chart(label, [], draw, ceil(_ROW * 1.6 * len(rows)))


def intervals(label: str, rows: Sequence[tuple[str, float, float | None, float | None, str]], role: str) -> Html:
    """A dot and its interval below each name, on one scale; a row is its name, value, bounds, and the text."""
    ends = [each for _, value, low, high, _ in rows for each in (value, low, high) if each is not None]
    least, most = min(0.0, *ends), max(0.0, *ends)
    scale = (most - least) or 1.0

    def draw(width: int, _height: int, _labels: int) -> list[str]:
        def x(value: float) -> float:
            return 6 + (width - 12) * (value - least) / scale

        parts = [_text(x(0), _ROW * 1.6 * len(rows) + 10, "0", "middle")]
        for place, (name, value, low, high, written) in enumerate(rows):
            y = _ROW * 1.6 * place
            shown = name if len(name) <= _LABEL_LENGTH else f"{name[:_LABEL_LENGTH]}…"
            parts.append(_text(0, y + 14, shown, "start"))
            parts.append(_text(width, y + 14, written, "end"))
            parts.append(f'<path class="grid" d="M0 {y + 26:.1f}H{width}"/>')
            parts.append(f'<path class="marked" d="M{x(0):.1f} {y + 19:.1f}v14"/>')
            if low is not None and high is not None:
                line = f"M{x(low):.1f} {y + 26:.1f}H{x(high):.1f}"
                parts.append(f'<path d="{line}" style="stroke:var(--{role});stroke-width:6;stroke-opacity:.45"/>')
            told = f"<title>{escape(name)}: {escape(written)}</title>"
            at = f'cx="{x(value):.1f}" cy="{y + 26:.1f}"'
            parts.append(f'<circle class="mark" {at} r="5" style="fill:var(--{role})">{told}</circle>')
        return parts

    return _chart(label, [], draw, ceil(_ROW * 1.6 * len(rows)) + 14)


def _chart(
    label: str,
    legend: Sequence[tuple[str, str, bool]],
    draw: Callable[[int, int, int], list[str]],
    height: int | None = None,
) -> Html:
    names = "".join(
        f'<span><i style="border-color:var(--{role});background:{f"var(--{role})" if filled else "none"}"></i>'
        f"{escape(name)}</span>"
        for name, role, filled in legend
    )
    drawings = "".join(
        f'<svg class="{kind}-drawing" viewBox="0 0 {width} {height or tall}" role="img" aria-label="{escape(label)}">'
        f"{''.join(draw(width, tall, labels))}</svg>"
        for kind, width, tall, labels in _SIZES
    )
    return Html(f'<div class="chart"><p class="legend">{names}</p>{drawings}</div>')


def _grid(width: int, height: int, lines: Mapping[int, float], titles: tuple[str, str]) -> list[str]:
    parts = [
        _text(_LEFT, height - 4, titles[0], "start"),
        _text(0, 0, titles[1], "end", f"translate(12 {_TOP})rotate(-90)"),
    ]
    for value, y in lines.items():
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{width}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _short(value), "end"))
    return parts


def _short(value: int) -> str:
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if value >= size and value % (size // 10) == 0:
            return f"{value / size:g}{unit}"
    return f"{value}"


def _ticks(top: int, most: int = 5) -> list[int]:
    """Some round numbers from 0 to `top`."""
    least = max(1, top / most)
    power = 10 ** floor(log10(least))
    step = next(int(power * factor) for factor in (1, 2, 5, 10) if power * factor >= least)
    return list(range(0, top + 1, step))


def _text(x: float, y: float, words: str, anchor: str, transform: str = "") -> str:
    turned = f' transform="{transform}"' if transform else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{escape(words)}</text>'
