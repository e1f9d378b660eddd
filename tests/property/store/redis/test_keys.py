"""Keys: no two subjects share one, all logs of a subject share a slot, and nothing in a name or a text breaks out."""

# pyright: reportArgumentType=false, reportUnknownArgumentType=false

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.server import SLOW, Limiters, each_kind, each_layout
from tests.kit.servers import shared

from capline import Decision, InvalidValueError, Limiter, Policy
from capline.model.clock import LATEST_US
from capline.store.redis.scripting.keys import BUCKET, bucket_count, field_of, slot_of, tag_of
from capline.store.redis.scripting.requests import keys_of

POISON: list[Any] = [
    *("{42}", "{42}x", "{#1}", "{~1}x", "{'a}", "{'a}'a", "{x}y}", "{x}{y}", "{\u00e9}", "{{x}}", "{}x"),
    *("\0", "a\0b", "{}", "{", "}", "}{", "{x}", "%", "%7D", "%25", "%7d", "'", "#1", "~1", ":", "a:{b}", "*", "?[a]"),
    *(
        "x" * 512,
        "\u00e9" * 256,
        "\r\n",
        "$5\r\n",
        " ",
        "42",
        42,
        0,
        1,
        63,
        64,
        2**32 - 1,
        2**32,
        2**53,
        2**63,
        2**64 - 1,
    ),
]

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
integers = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
subjects = st.one_of(texts, st.text("{}%7D'#~0", min_size=1, max_size=8), integers)
LOGS = (b"capline:p", b"capline:p/push", b"capline:p/e-mail.2")


@given(subjects, subjects, st.sampled_from([0, 1, 7, 156_250]))
def test_no_two_subjects_share_a_place(one: Any, other: Any, buckets: int) -> None:
    def place(subject: Any) -> tuple[bytes, bytes]:
        return tag_of(subject, buckets), field_of(subject) if buckets else b""

    same = one == other and type(one) is type(other)
    assert (place(one) == place(other)) == same


@settings(deadline=None)  # the first example starts the cluster
@given(subjects, st.sampled_from([0, 7]))
def test_every_log_of_a_subject_is_in_the_slot_that_the_cluster_says(subject: Any, buckets: int) -> None:
    tag = tag_of(subject, buckets)
    node = shared("redis", "cluster").servers[0]
    assert {node.command("CLUSTER", "KEYSLOT", key) for key in keys_of(LOGS, tag)} == {slot_of(tag)}


def test_a_bucket_stays_what_the_server_packs() -> None:
    numbers = [number for number in range(10 * BUCKET) if tag_of(number, 1) == tag_of(0, 1)]
    assert len(numbers) == BUCKET <= 128
    assert bucket_count(1) == 1
    assert bucket_count(10**6) * BUCKET >= 10**6


@each_kind
@each_layout
@pytest.mark.parametrize("shape", ["single", "cluster"])
def test_subjects_with_poison_in_them_are_subjects(kind: str, layout: str, shape: Any, limiters: Limiters) -> None:
    options = {"layout": layout, "population": 640, "channels": {"push": ["3/day"]}}
    limiter = limiters(shared(kind, shape), Policy("p", ["2/day", "200/week"], **options), Policy("q", ["1/day"]))
    assert limiter.decide_many("p", POISON).allowed.all()
    for subject in POISON:
        assert limiter.decide("p", subject, channel="push").remaining == 0, subject
        refused = limiter.decide("p", subject, 1, id="x")
        assert isinstance(refused, Decision)
        assert not refused
        hits = limiter.explain("p", subject, channel="push").hits
        assert len(hits) >= 2
        assert limiter.refund("p", subject, hits[0].stamp_us)
    assert limiter.peek_many("p", POISON).allowed.all()
    assert [limiter.erase(subject) for subject in POISON] == [2] * len(POISON)
    assert limiter.peek_many("p", POISON).remaining.tolist() == [1] * len(POISON)


class Nanoseconds:
    """A clock of the wrong unit."""

    def __init__(self, now: int) -> None:
        self.now = now

    def now_us(self) -> int:
        return self.now


@pytest.mark.parametrize("now", [-1, LATEST_US, 1_700_000_000_000_000_000])
def test_a_clock_that_no_script_can_count_by_is_an_error_and_not_a_script_without_end(now: int) -> None:
    clock = Nanoseconds(now)
    with Limiter(f"{shared('redis').url}?{SLOW}", [Policy("p", ["2/day"])], clock=clock, namespace="clocks") as limiter:
        for verb in ("decide", "peek", "schedule"):
            with pytest.raises(InvalidValueError, match="microseconds since 1970"):
                getattr(limiter, verb)("p", "s")
        with pytest.raises(InvalidValueError, match="microseconds since 1970"):
            limiter.decide_many("p", ["s"])
        clock.now = LATEST_US - 1
        limiter.erase("s")
        assert limiter.decide("p", "s")
