"""`decision.headers`: read back by a parser of structured fields (RFC 9651), never early, nothing made up."""

import pickle
import re
from typing import Any

import msgspec
import pytest

from capline import Attempt, CaplineError, Decision, Limit, Limiter, ManualClock, Policy
from capline.model.headers import headers_of, string_item
from capline.model.limit import LARGEST_QUOTA
from capline.model.limit_status import LimitStatus

_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_PARAMETER = re.compile(r";([a-z*][a-z0-9_.*-]*)=(-?[0-9]{1,15})(?![0-9.])")


def parsed(field: str) -> list[tuple[str, dict[str, int]]]:
    """A list of strings with whole numbers as parameters; fails on anything else."""
    items: list[tuple[str, dict[str, int]]] = []
    at = 0
    while True:
        text = _STRING.match(field, at)
        assert text, field[at:]
        at = text.end()
        parameters: dict[str, int] = {}
        while found := _PARAMETER.match(field, at):
            parameters[found[1]] = int(found[2])
            at = found.end()
        items.append((re.sub(r"\\(.)", r"\1", text[1]), parameters))
        if at == len(field):
            return items
        assert field[at : at + 2] == ", ", field[at:]
        at += 2


def one(*limits: str, **options: Any) -> tuple[Limiter, ManualClock]:
    clock = ManualClock(1_700_000_000_000_000)
    return Limiter("memory://", [Policy("api", list(limits), **options)], clock=clock), clock


def state(limit: str, left: int = 1, frees_us: int | None = 1, full_us: int = 1, name: str = "api") -> LimitStatus:
    return LimitStatus(Limit.parse(limit), left, frees_us, full_us, name)


def told(*states: LimitStatus, **answer: Any) -> dict[str, str]:
    said: dict[str, Any] = {"allowed": True, "retry_after_us": 0} | answer
    return headers_of("draft-11", states, states[0].limit if states else None, **said)


def test_every_limit_is_reported() -> None:
    limiter, clock = one("20/10s", "3/hour")
    for _ in range(3):
        limiter.decide("api", "s")
    clock.advance_us(3_000_000)
    headers = limiter.decide("api", "s").headers("draft-11")
    assert parsed(headers["RateLimit-Policy"]) == [("api-10s", {"q": 20, "w": 10}), ("api-hour", {"q": 3, "w": 3600})]
    assert parsed(headers["RateLimit"]) == [("api-10s", {"r": 17, "t": 7}), ("api-hour", {"r": 0, "t": 3597})]
    assert headers["Retry-After"] == "3597"


@pytest.mark.parametrize(("span_us", "seconds"), [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)])
def test_seconds_are_never_early(span_us: int, seconds: int) -> None:
    states = [state("3/minute", 0, span_us, span_us)]
    draft = headers_of("draft-11", states, None, allowed=False, retry_after_us=span_us)
    legacy = headers_of("legacy", states, states[0].limit, allowed=False, retry_after_us=span_us)
    assert parsed(draft["RateLimit"]) == [("api-minute", {"r": 0, "t": seconds})]
    assert draft["Retry-After"] == legacy["Retry-After"] == legacy["X-RateLimit-Reset"] == str(seconds)


def test_a_refusal_asks_for_a_second_at_least() -> None:
    assert told(state("3/minute"), allowed=False, retry_after_us=0)["Retry-After"] == "1"


def test_what_never_comes_is_left_out() -> None:
    headers = told(state("0/day", 0, None, 0), state("3/day", 3, 0, 0), allowed=False, retry_after_us=None)
    assert parsed(headers["RateLimit"]) == [("api-day", {"r": 0}), ("api-day-2", {"r": 3})]
    assert "Retry-After" not in headers


def test_names_are_unique_and_can_be_strings() -> None:
    names = ["a", "a", 'say "hi"\\', "caf\u00e9\n", "a/push"]
    found = parsed(told(*[state("3/2 days", name=name) for name in names])["RateLimit-Policy"])
    assert [name for name, _ in found] == [
        "a-2days",
        "a-2days-2",
        'say "hi"\\-2days',
        "caf%C3%A9%0A-2days",
        "a/push-2days",
    ]


def test_a_string_carries_any_text() -> None:
    for text in ("", "plain", '"', "\\", '\\"', "\x00\x7f", "\u2028 \U0001f600", " ~"):
        [(read, _)] = parsed(string_item(text))
        assert read.isascii()
        assert (read == text) == all(" " <= one <= "~" for one in text)


def test_integers_have_fifteen_digits_at_most() -> None:
    headers = told(state(f"{LARGEST_QUOTA}/day", LARGEST_QUOTA))
    assert parsed(headers["RateLimit"])[0][1]["r"] == parsed(headers["RateLimit-Policy"])[0][1]["q"] == 10**15 - 1


def test_a_window_below_a_second_is_reported_as_one_second() -> None:
    assert parsed(told(state("1/250ms"))["RateLimit-Policy"]) == [("api-250ms", {"q": 1, "w": 1})]


def test_a_calendar_has_no_window() -> None:
    assert parsed(told(state("3/calendar-day"))["RateLimit-Policy"]) == [("api-calendar-day", {"q": 3})]


def test_quiet_hours_are_no_quota() -> None:
    limiter, _ = one("3/day", "not between 00:00 and 23:59")
    refused = limiter.decide("api", "s")
    assert parsed(refused.headers()["RateLimit"]) == [("api-day", {"r": 3})]
    assert int(refused.headers()["Retry-After"]) > 0
    assert refused.headers("legacy")["X-RateLimit-Limit"] == "3"


def test_legacy_names_the_limit_that_binds() -> None:
    limiter, clock = one("3/minute", "100/hour")
    for _ in range(3):
        limiter.decide("api", "s")
    clock.advance_us(10_000_000)
    assert limiter.decide("api", "s").headers("legacy") == {
        "X-RateLimit-Limit": "3",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": "51",
        "Retry-After": "50",
    }


def test_an_outage_tells_of_no_limit() -> None:
    fallback = Decision(True, None, 0, 0, None, None, "fallback")
    assert fallback.limits == ()
    assert fallback.headers() == fallback.headers("legacy") == {}


def test_another_form_is_refused() -> None:
    with pytest.raises(CaplineError, match="draft-11 or legacy, not 'draft-12'"):
        one("3/day")[0].decide("api", "s").headers("draft-12")  # pyright: ignore[reportArgumentType] - that is tested


def test_a_joint_answer_tells_of_all_its_limits() -> None:
    limiter, _ = one("3/day")
    joint = limiter.decide_all([Attempt("api", "a"), Attempt("api", "b", 2)])
    assert parsed(joint.headers()["RateLimit"]) == [
        ("api-day", {"r": 2, "t": 86_400}),
        ("api-day-2", {"r": 1, "t": 86_400}),
    ]


def test_the_deny_cache_counts_down() -> None:
    clock = ManualClock(1_700_000_000_000_000)
    limiter = Limiter("memory://", [Policy("api", ["1/hour"])], clock=clock, deny_cache=9)
    limiter.decide("api", "s")
    told, held = limiter.decide("api", "s"), limiter.decide("api", "s")
    assert held.origin == "deny-cache"
    [first], [second] = told.limits, held.limits
    assert (second.limit, second.remaining, second.name) == (first.limit, 0, "api")
    assert 0 < (second.frees_in_us or 0) <= (first.frees_in_us or 0)
    assert second.whole_in_us <= first.whole_in_us


def test_what_was_seen_is_no_part_of_what_is_said() -> None:
    """Two answers are equal when they say the same; a copy that was sent to another process keeps its limits."""
    limiter, _ = one("3/day")
    decision = limiter.decide("api", "s")
    bare = Decision(True, decision.limit, 2, 0, decision.reset_after_us, decision.hit)
    assert decision == bare
    assert hash(decision) == hash(bare)
    assert repr(decision) == repr(bare)
    assert bare.limits == ()
    sent = pickle.loads(pickle.dumps(decision))  # noqa: S301 - our own
    assert sent == decision
    assert sent.limits == decision.limits
    joint = limiter.decide_all([Attempt("api", "b")])
    sent = pickle.loads(pickle.dumps(joint))  # noqa: S301 - our own
    assert sent == joint
    assert sent.limits == joint.limits
    assert msgspec.structs.replace(decision, hit=None).limits == decision.limits


def test_rows_of_many_tell_of_no_limits() -> None:
    limiter, _ = one("3/day")
    assert limiter.decide_many("api", ["a"])[0].limits == ()
