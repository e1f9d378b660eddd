"""What a limiter is made of, given wrongly: one line that says how to write it."""

import asyncio
from typing import Any

import pytest

from capline import AsyncLimiter, InvalidTypeError, Limiter, LogRecord, Policy, PolicyError

ONE = Policy("promo", ["3/day"])
LIKE = r"^policies come as a list, like policies=\[Policy\('promo', \['3/day'\]\)\], not [^\n]+$"


@pytest.mark.parametrize("wrong", [ONE, {"promo": ["3/day"]}, {"promo": ONE}, "promo", None, 5], ids=repr)
def test_policies_are_a_list(wrong: Any) -> None:
    with pytest.raises(InvalidTypeError, match=LIKE):
        Limiter("memory://", wrong)
    with Limiter("memory://", [ONE]) as limiter:
        for verb in (limiter.use, limiter.beside):
            with pytest.raises(InvalidTypeError, match=LIKE):
                verb(wrong)
        assert limiter.decide("promo", "u")

    async def awaited() -> None:
        AsyncLimiter("memory://", wrong)

    with pytest.raises(InvalidTypeError, match=LIKE):
        asyncio.run(awaited())


def test_what_is_in_the_list_is_a_policy() -> None:
    wrong: Any = ["promo"]
    with pytest.raises(PolicyError, match="policies are Policy objects, not str"):
        Limiter("memory://", wrong)
    with Limiter("memory://", (policy for policy in [ONE])) as limiter:
        assert list(limiter.policies) == ["promo"]


@pytest.mark.parametrize("wrong", ["5", [5], float("nan")])
def test_a_timeout_is_a_number_of_seconds_and_one_that_is_over_is_0(wrong: Any) -> None:
    with Limiter("memory://", [ONE]) as limiter:
        with pytest.raises((TypeError, ValueError), match="timeout is a number of seconds"):
            limiter.acquire("promo", "u", timeout=wrong).__enter__()
        with limiter.acquire("promo", "u", timeout=-1) as slot:
            assert slot.wait == 0


WRONG_HITS: list[Any] = [None, 5, [5], ["xyz"], [None], {1: 2}, [(1, 1)]]
WRONG_LOGS: list[Any] = [None, ["x"], 7]


@pytest.mark.parametrize(
    "wrong",
    [
        *(LogRecord("promo", "u", hits) for hits in WRONG_HITS),
        *(LogRecord(name, "u", [(1, 1, 0)]) for name in WRONG_LOGS),
    ],
    ids=repr,
)
def test_a_record_of_wrong_types_is_told_by_its_number(wrong: LogRecord) -> None:
    with Limiter("memory://", [ONE]) as limiter, pytest.raises(InvalidTypeError, match=r"^record 1: [^\n]+$"):
        limiter.load([wrong])


def test_what_all_rows_keep_free_is_for_their_segments_alone() -> None:
    limiter = Limiter("memory://", [Policy("promo", ["2/day", "3/week"], by_segment={"new": ["1/day"]})])
    named: Any = {"segment": [None, "new"], "codes": [0, 0], "keep_free": [[1, 0], [1, 0]]}
    assert limiter.decide_many("promo", [1, 1], **named).allowed.tolist() == [True, False]
