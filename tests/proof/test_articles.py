"""Each published limiter breaks on its case, capline does not, and the page says what was found."""

from collections.abc import Iterator

import pytest
from proof.articles.cases import CASES, Outcome, outcomes
from proof.articles.page import PAGE, markdown, text
from tests.kit.servers import single


@pytest.fixture(scope="module")
def found() -> Iterator[list[Outcome]]:
    # A server of its own: the cases empty its database.
    with single("redis") as server:
        yield outcomes(server.url)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.fault for case in CASES])
def test_the_published_limiter_breaks_and_capline_does_not(found: list[Outcome], number: int) -> None:
    outcome = found[number]
    assert outcome.capline == outcome.case.expected
    assert outcome.played != outcome.case.expected
    assert outcome.holds


def test_the_page_is_what_the_program_writes(found: list[Outcome]) -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(found), "type `make articles`"


def test_a_case_that_does_not_break_would_be_seen(found: list[Outcome]) -> None:
    right = found[0]._replace(played=found[0].case.expected)
    wrong = found[0]._replace(capline=found[0].capline + 1)
    assert not right.holds
    assert not wrong.holds
    assert text(found).count("\n") == len(CASES)
