"""The further parts of a joint attempt, as they are typed."""

import pytest

from capline import Attempt
from capline.cli.input.target import read_also
from capline.model.errors import InvalidValueError


def test_a_part_is_a_policy_a_subject_and_perhaps_a_cost() -> None:
    assert read_also(["tenant=acme", "tenant:2=a=b", "ids:3=7"], "i", as_text=False) == [
        Attempt("tenant", "acme", 1, "i"),
        Attempt("tenant", "a=b", 2, "i"),
        Attempt("ids", 7, 3, "i"),
    ]


@pytest.mark.parametrize("words", ["tenant", "tenant:=acme", "tenant:2x=acme", "tenant:-1=acme", "tenant:²=acme"])
def test_what_is_none_is_one_line_that_says_how_to_write_it(words: str) -> None:
    with pytest.raises(InvalidValueError, match="write policy=subject, or policy:cost=subject"):
        read_also([words], None, as_text=False)
