"""`long_subjects="hash"`: a subject that others choose, as long as it likes, under every verb."""

import asyncio

import pytest

from capline import AsyncLimiter, Attempt, InvalidValueError, Limiter, Policy

LONG, OTHER = "k" * 600, "k" * 599 + "j"
WIDE = "é" * 300
POLICIES = [Policy("p", ["2/day"])]


@pytest.mark.parametrize("options", [{}, {"deny_cache": 10}, {"subject_key": b"k" * 32}])
def test_a_long_subject_is_one_of_its_own(options: dict[str, object]) -> None:
    with Limiter("memory://", POLICIES, long_subjects="hash", **options) as limiter:  # pyright: ignore[reportArgumentType]
        first = limiter.decide("p", LONG)
        assert limiter.decide("p", LONG, 1)
        assert not limiter.decide("p", LONG)
        assert [bool(limiter.decide("p", other)) for other in (OTHER, WIDE)] == [True, True]
        assert not limiter.peek("p", LONG)
        assert not limiter.decide_all([Attempt("p", LONG), Attempt("p", "short")])
        assert limiter.decide_many("p", [LONG, "a", OTHER]).allowed.tolist() == [False, True, True]
        assert limiter.explain("p", LONG).decision.allowed is False
        assert limiter.refund("p", LONG, first.hit)
        assert limiter.refund_many("p", [OTHER], [1]).tolist() == [False]
        assert limiter.decide("p", LONG)
        assert limiter.erase(LONG) == 1
        with pytest.raises(InvalidValueError, match="1 to 512 bytes"):
            limiter.decide("p", "")


def test_the_awaited_limiter_has_it_too() -> None:
    async def answers() -> list[bool]:
        async with AsyncLimiter("memory://", POLICIES, long_subjects="hash") as limiter:
            await limiter.decide("p", "short")
            return [bool(await limiter.decide("p", LONG)) for _ in range(3)]

    assert asyncio.run(answers()) == [True, True, False]


def test_unless_it_is_chosen_a_long_subject_is_refused() -> None:
    limiter = Limiter("memory://", POLICIES)
    limiter.decide("p", "short")
    for call in (limiter.decide, limiter.peek):
        with pytest.raises(InvalidValueError, match="not 600"):
            call("p", LONG)
    with pytest.raises(InvalidValueError, match="refuse or hash"):
        Limiter("memory://", long_subjects="cut")
