"""What an answer of a provider means for the request, turn by turn; no network."""

from collections.abc import Mapping

import pytest

from capline.middleware.slots.gate import Gate, Turn


def answered(status: int, seconds: float | None = None) -> tuple[int, Mapping[str, str]]:
    """A status, with the seconds after which to come again."""
    return status, {} if seconds is None else {"Retry-After": str(seconds)}


def turn(max_wait: float | None = None, retries: int = 3) -> Turn:
    return Turn(Gate[str]("p", str, subject="s", max_wait=max_wait, retries=retries))


@pytest.mark.parametrize(("seconds", "is_last"), [(4.999, False), (5.0, False), (5.001, True)])
def test_a_wait_as_long_as_the_longest_is_waited_and_a_longer_one_is_not(seconds: float, is_last: bool) -> None:
    one = turn(max_wait=5.0)
    assert one.is_last(*answered(429, seconds), repeatable=True) is is_last
    assert one.wait == seconds


def test_there_are_as_many_retries_as_said() -> None:
    one = turn(retries=2)
    assert [one.is_last(*answered(503, 1), repeatable=True) for _ in range(3)] == [False, False, True]
    assert turn().is_last(*answered(503, 1), repeatable=False)
    assert turn().is_last(*answered(200), repeatable=True)


def test_each_sending_is_named_after_the_request_and_comes_when_the_provider_says() -> None:
    named = Turn(Gate[str]("p", str, subject="s", max_wait=9.0, slack=0.5, retries=3), "pay-7")
    assert named.terms() == {"id": "pay-7", "timeout": 9.0, "not_before": 0.0, "slack": 0.5}
    assert not named.is_last(*answered(429, 2), repeatable=True)
    assert (named.terms()["id"], named.terms()["not_before"]) == ("pay-7:1", 2.0)
    assert turn().terms()["id"] is None
