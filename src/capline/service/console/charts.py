"""The geometry of the console's charts: numbers and paths, which the templates put into SVG."""

from collections.abc import Sequence
from math import ceil, floor, log10

WIDTH, HEIGHT = 1000, 160


def areas(
    spans: Sequence[tuple[float, float]], rows: Sequence[Sequence[float]], begin: float, end: float
) -> tuple[list[str], float]:
    """A path for each row of numbers, stacked on those before, and the scale's top; a number holds for its span."""
    top = nice(max((sum(column) for column in zip(*rows, strict=True)), default=0.0))
    xs = [WIDTH * (max(at, begin) - begin) / (end - begin) for span in spans for at in span]
    below = [0.0] * len(xs)
    paths: list[str] = []
    for row in rows:
        steps = [value for value in row for _ in range(2)]
        above = [low + value for low, value in zip(below, steps, strict=True)]
        there = [_point(x, value / top) for x, value in zip(xs, above, strict=True)]
        back = [_point(x, value / top) for x, value in zip(xs, below, strict=True)]
        paths.append(f"M{' L'.join(there + back[::-1])} Z" if any(row) else "")
        below = above
    return paths, top


def nice(value: float) -> float:
    """The least of 1, 2, 5, 10, 20 … (or 0.1, 0.2 …) that is not below the value."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return next(step * unit for step in (1, 2, 5, 10) if step * unit >= value * 0.999999)


def places(at: Sequence[int], begin: int, end: int) -> list[float]:
    """Where these instants are on a line of `WIDTH` from begin to end; those outside are left out."""
    span = max(1, end - begin)
    return [round(WIDTH * (one - begin) / span, 1) for one in at if begin <= one <= end]


def share(part: float, whole: float) -> int:
    """A bar's width of a hundred; something is never shown as nothing, nor all but something as all."""
    if whole <= 0 or part <= 0:
        return 0
    return min(100, ceil(100 * part / whole)) if part * 2 < whole else min(100, floor(100 * part / whole))


def _point(x: float, height: float) -> str:
    return f"{x:.1f} {HEIGHT * (1 - height):.1f}"
