"""Spans and sizes have three digits, and none of them is written as a power of ten."""

import pytest

from capline.support.quantity import size, span


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (1_000, "1 kB"), (999_700, "1 MB"), (8_388_608, "8.39 MB")),
        *((123_456_789, "123 MB"), (None, "\N{EN DASH}")),
    ],
)
def test_a_size(number: float | None, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *(
            (0, "0 ms"),
            (0.0000473, "0.0473 ms"),
            (0.9994, "999 ms"),
            (0.9996, "1 s"),
            (59.6, "1 min"),
            (61, "1 min 1 s"),
        ),
        *((12_000, "3 h 20 min"), (86_400, "1 d"), (None, "never")),
    ],
)
def test_a_span(seconds: float | None, text: str) -> None:
    assert span(seconds) == text
