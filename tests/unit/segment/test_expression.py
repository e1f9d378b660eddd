"""Expressions: what they mean, and where the fault is."""

from typing import Any

import pytest

from capline.model.errors import InvalidTypeError, SegmentError, UnknownNameError
from capline.segment import IdSet, parse_expression

SETS = {"a": IdSet([1, 2, 3]), "b": IdSet([3, 4]), "at-risk": IdSet([2, 4]), "v1.2": IdSet([1]), "risk": IdSet([9])}


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a", [1, 2, 3]),
        ("((a))", [1, 2, 3]),
        ("a|b", [1, 2, 3, 4]),
        ("a & b", [3]),
        ("a - b", [1, 2]),
        ("a - b - at-risk", [1]),
        ("a - (b - at-risk)", [1, 2]),
        ("b | a & at-risk", [2, 3, 4]),
        ("(b | a) & at-risk", [2, 4]),
        ("a & b - at-risk", [3]),
        ("b - a & at-risk", [4]),
        ("(a)-b", [1, 2]),
        ("a -b", [1, 2]),
        ("v1.2 | at-risk\n&\tb", [1, 4]),
        ("|".join(["a"] * 2000), [1, 2, 3]),
        ("(" * 64 + "a" + ")" * 64, [1, 2, 3]),
    ],
)
def test_what_it_means(text: str, ids: list[int]) -> None:
    assert list(parse_expression(text).evaluate(SETS)) == ids


def test_the_names_it_uses() -> None:
    assert parse_expression("b | (a - at-risk) & b").names == ("b", "a", "at-risk")


@pytest.mark.parametrize(
    ("text", "column", "why"),
    [
        ("", 1, "expected a segment name or '(', found the end"),
        ("   ", 4, "expected a segment name or '(', found the end"),
        ("a |", 4, "expected a segment name or '(', found the end"),
        ("| a", 1, "expected a segment name or '(', found '|'"),
        ("a b", 3, "expected '|', '&', '-' or ')', found 'b'"),
        ("a- b", 4, "expected '|', '&', '-' or ')', found 'b'"),
        ("a (b)", 3, "expected '|', '&', '-' or ')', found '('"),
        ("a & - b", 5, "expected a segment name or '(', found '-'"),
        ("a & ()", 6, "expected a segment name or '(', found ')'"),
        ("(a | b", 1, "'(' is not closed"),
        ("a | (b & (a)", 5, "'(' is not closed"),
        ("a) | b", 2, "')' closes nothing"),
        ("a ^ b", 3, "'^' is neither a name nor one of"),
        ("a | 'b'", 5, '"\'" is neither a name nor one of'),
        ("ä", 1, "'ä' is neither a name nor one of"),
        ("(" * 65 + "a" + ")" * 65, 65, "more than 64 open brackets"),
    ],
)
def test_a_fault_is_placed(text: str, column: int, why: str) -> None:
    with pytest.raises(SegmentError) as caught:
        parse_expression(text)
    assert f", column {column}: {why}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"column 5: no segment 'c'; there are: a, b, at-risk, v1\.2, risk$"):
        parse_expression("a | c").evaluate(SETS)
    with pytest.raises(UnknownNameError, match=r"no segment 'a-b'; .* write a space before the '-': 'a - b'\)"):
        parse_expression("a-b").evaluate(SETS)
    with pytest.raises(UnknownNameError, match=r"write a space before the '-': 'at-risk - b'\)"):
        parse_expression("at-risk-b").evaluate(SETS)
    with pytest.raises(UnknownNameError, match=r"write a space before the '-': 'a - …'\)"):
        parse_expression("a- | b").evaluate(SETS)


def test_text_is_bounded() -> None:
    assert parse_expression("a".rjust(4096)).names == ("a",)
    with pytest.raises(SegmentError, match="at most 4096 characters, not 4097"):
        parse_expression("a".rjust(4097))
    bad: Any = ["a"]
    with pytest.raises(InvalidTypeError, match="an expression is text"):
        parse_expression(bad)
