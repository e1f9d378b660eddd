"""The deny cache: a refusal holds until its time on this host's own clock, and not a microsecond longer."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.limiter import behind_a_door, close, gone, inner_of

from capline import Attempt, InvalidTypeError, InvalidValueError, Limiter, ManualClock, Policy
from capline.limiter.policies.deny_cache import DenyCache
from capline.model.decision import Decision

SECOND = 1_000_000
START_US = 10**15
POLICY = Policy("p", ["2/10s", "9/day"], by_segment={"new": ["1/min"]}, channels={"push": ["1/min"]})


class Setting:
    """A limiter with a deny cache on a clock that stands still until both are told."""

    def __init__(self, asynchronous: bool, most: int = 100, **options: Any) -> None:
        self.clock = ManualClock(START_US)
        self.limiter, self.door = behind_a_door(
            POLICY, asynchronous=asynchronous, clock=self.clock, deny_cache=most, **options
        )
        self.here_ns = 5_000
        inner: Any = inner_of(self.limiter)
        inner._denied = DenyCache(most, lambda: self.here_ns)

    def pass_us(self, us: int) -> None:
        self.clock.advance_us(us)
        self.here_ns += us * 1000

    def asked(self, *args: Any, **options: Any) -> tuple[Any, int]:
        """A decision, and how often the store was asked for it."""
        before = len(self.door.calls)
        return self.limiter.decide(*args, **options), len(self.door.calls) - before

    def fill(self, subject: str = "s") -> Any:
        """Two allowed, one refused for ten seconds."""
        for _ in range(2):
            assert self.limiter.decide("p", subject)
        refused = self.limiter.decide("p", subject)
        assert (refused.allowed, refused.origin) == (False, "store")
        return refused


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def at(request: pytest.FixtureRequest) -> Iterator[Setting]:
    setting = Setting(request.param)
    yield setting
    close(setting.limiter)


def test_a_refusal_is_answered_here_until_its_time_and_then_by_the_store(at: Setting) -> None:
    refused = at.fill()
    at.pass_us(4 * SECOND)
    held, calls = at.asked("p", "s")
    assert (held.allowed, held.limit, held.remaining, held.hit) == (False, refused.limit, refused.remaining, None)
    assert (held.origin, calls) == ("deny-cache", 0)
    assert held.retry_after_us == refused.retry_after_us - 4 * SECOND
    assert held.reset_after_us == refused.reset_after_us - 4 * SECOND
    at.pass_us(held.retry_after_us - 1)
    assert at.asked("p", "s")[0].retry_after_us == 1
    at.pass_us(1)
    allowed, calls = at.asked("p", "s")
    assert (allowed.allowed, allowed.origin, calls) == (True, "store", 1)


def test_it_counts_from_before_the_store_was_asked(at: Setting) -> None:
    for _ in range(2):
        at.limiter.decide("p", "s")
    ask = at.door.store.step

    def slow(*asked: Any) -> Decision:
        at.here_ns += 3 * SECOND * 1000  # the answer is three seconds on its way
        return ask(*asked)

    at.door.store.step = slow
    at.limiter.decide("p", "s", 2)
    assert at.asked("p", "s", 2)[0].retry_after_us == 10 * SECOND - 3 * SECOND + 1


def test_a_larger_cost_is_refused_with_it_and_a_smaller_one_is_asked(at: Setting) -> None:
    at.limiter.decide("p", "s")
    assert not at.limiter.decide("p", "s", 2)
    assert at.asked("p", "s", 2)[1] == 0
    assert at.asked("p", "s", 3)[0].origin == "deny-cache"
    smaller, calls = at.asked("p", "s")
    assert (smaller.allowed, calls) == (True, 1)


def test_an_attempt_with_an_id_always_goes_to_the_store(at: Setting) -> None:
    first = at.limiter.decide("p", "s", id="x")
    at.limiter.decide("p", "s")
    assert not at.limiter.decide("p", "s")
    retry, calls = at.asked("p", "s", id="x")
    assert (retry.hit, calls) == (first.hit, 1)
    other = Setting(asynchronous=False)
    other.limiter.decide("p", "s", 2)
    assert not other.limiter.decide("p", "s", id="y")
    assert other.asked("p", "s")[1] == 1


def test_other_names_and_subjects_are_asked(at: Setting) -> None:
    at.fill()
    for asked in ({"subject": "t"}, {"segment": "new"}, {"channel": "push"}, {"subject": 5}):
        assert at.asked("p", **({"subject": "s"} | asked))[1] == 1
    assert at.asked("p", "s")[1] == 0


def test_segments_that_the_policy_does_not_tell_apart_are_one(at: Setting) -> None:
    at.limiter.use([Policy("plain", ["1/day"])])
    at.limiter.decide("plain", "s", segment="x")
    assert not at.limiter.decide("plain", "s", segment="y")
    assert at.asked("plain", "s", segment="z")[1] == 0
    assert at.asked("plain", "s")[1] == 0


def test_a_refund_ends_it_for_that_subject_only(at: Setting) -> None:
    hit = at.limiter.decide("p", "s").hit
    at.limiter.decide("p", "s")
    assert not at.limiter.decide("p", "s")
    at.fill("t")
    assert at.limiter.refund("p", "s", hit)
    allowed, calls = at.asked("p", "s")
    assert (allowed.allowed, calls) == (True, 1)
    assert at.asked("p", "t")[1] == 0


def test_a_refund_that_may_have_been_made_ends_it_too(at: Setting) -> None:
    at.fill()
    at.door.down = gone()
    with pytest.raises(Exception, match="nobody"):
        at.limiter.refund("p", "s", 1)
    at.door.down = None
    assert at.asked("p", "s")[1] == 1


def test_many_refunds_end_it_for_all_of_them(at: Setting) -> None:
    at.fill("s")
    at.fill("t")
    at.fill("u")
    at.limiter.refund_many("p", ["s", "t"], [1, 2])
    assert [at.asked("p", subject)[1] for subject in ("s", "t", "u")] == [1, 1, 0]


def test_an_erase_ends_it(at: Setting) -> None:
    at.fill()
    at.limiter.erase("s")
    assert at.asked("p", "s")[0].allowed


def test_new_policies_end_all(at: Setting) -> None:
    at.fill()
    at.limiter.use([Policy("p", ["3/10s"])])
    assert at.asked("p", "s")[0].allowed


def test_a_cost_that_never_fits_is_asked_again_within_the_hour(at: Setting) -> None:
    assert at.limiter.decide("p", "s", 3).retry_after_us is None
    at.pass_us(3600 * SECOND - 1)
    held, calls = at.asked("p", "s", 3)
    assert (held.retry_after_us, held.reset_after_us, calls) == (None, 0, 0)
    at.pass_us(1)
    assert at.asked("p", "s", 3)[1] == 1


def test_the_subjects_refused_longest_ago_go_first() -> None:
    setting = Setting(asynchronous=False, most=2)
    for subject in ("s", "t", "u"):
        setting.fill(subject)
    cache = inner_of(setting.limiter)._denied
    assert len(cache) == 2
    assert [setting.asked("p", subject)[1] for subject in ("u", "t", "s")] == [0, 0, 1]
    assert [setting.asked("p", subject)[1] for subject in ("s", "u")] == [0, 0]
    assert len(cache) == 2


def test_a_subject_that_is_refused_again_stays_longer() -> None:
    setting = Setting(asynchronous=False, most=2)
    setting.fill("s")
    setting.fill("t")
    setting.pass_us(10 * SECOND)
    setting.fill("s")
    setting.fill("u")
    assert [setting.asked("p", subject)[1] for subject in ("s", "u")] == [0, 0]


def test_a_refusal_that_is_renewed_is_one_entry() -> None:
    setting = Setting(asynchronous=False)
    for _ in range(3):
        setting.fill()
        setting.limiter.decide("p", "s", segment="new")
        assert len(inner_of(setting.limiter)._denied) == 2
        setting.pass_us(10 * SECOND)


def test_batches_look_at_it_and_add_to_it_and_columns_do_neither(at: Setting) -> None:
    at.fill("s")
    answers = at.limiter.decide_batch(
        [Attempt("p", "s"), Attempt("p", "t", 2), Attempt("p", "t"), Attempt("p", "s", 1, "x"), Attempt("p", "")]
    )
    assert [getattr(answer, "origin", None) for answer in answers] == ["deny-cache", "store", "store", "store", None]
    assert at.asked("p", "t")[1] == 0
    assert [answer.origin for answer in at.limiter.decide_many("p", ["s", "u", "u", "u"])] == ["store"] * 4
    assert at.asked("p", "u")[1] == 1


def test_peek_and_schedule_ask_the_store(at: Setting) -> None:
    at.fill()
    assert at.limiter.peek("p", "s").origin == "store"
    assert at.limiter.schedule("p", "s").allowed


def test_what_an_outage_answered_is_not_kept() -> None:
    setting = Setting(asynchronous=False, on_store_error="deny")
    setting.door.down = gone()
    assert setting.asked("p", "s")[0].origin == "fallback"
    setting.door.down = None
    assert setting.asked("p", "s")[0].allowed


def test_an_answer_that_crosses_a_refund_is_not_kept() -> None:
    cache = DenyCache(10, lambda: 0)
    attempt, refusal = Attempt("p", "s"), Decision(False, None, 0, 5, 5, None)
    epoch = cache.epoch()
    cache.forget(["s"])
    cache.note(attempt, refusal, epoch)
    assert cache.answer(attempt) is None
    cache.note(attempt, refusal, cache.epoch())
    assert cache.answer(attempt) is not None


def test_an_answer_that_crosses_new_policies_is_not_kept() -> None:
    setting = Setting(asynchronous=False)
    limiter: Any = setting.limiter
    decide = setting.door.store.step

    def decide_late(*asked: Any) -> Decision:
        answer = decide(*asked)
        limiter.use([Policy("p", ["9/10s"])])
        return answer

    setting.limiter.decide("p", "s", 2)
    setting.door.store.step = decide_late
    assert not setting.limiter.decide("p", "s", 3)
    setting.door.store.step = decide
    assert setting.limiter.decide("p", "s", 3)


def test_without_it_the_store_is_always_asked() -> None:
    limiter, door = behind_a_door(POLICY)
    for _ in range(5):
        limiter.decide("p", "s")
    assert len(door.calls) == 5
    assert len(limiter._denied) == 0


def test_threads_that_fill_and_forget_lose_no_count() -> None:
    cache: Any = DenyCache(50)
    refusal = Decision(False, None, 0, 10**9, 5, None)

    def work(seed: int) -> None:
        for i in range(2000):
            subject = (i * seed) % 97
            cache.note(Attempt("p", subject), refusal, cache.epoch())
            cache.answer(Attempt("p", subject))
            if i % 7 == 0:
                cache.forget([subject])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == sum(len(of_subject) for of_subject in cache._refusals.values()) <= 50


@pytest.mark.parametrize("most", [-1, 10_000_001, True, 1.0, "5", None])
def test_a_size_that_cannot_be_one(most: Any) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError), match="deny_cache"):
        Limiter("memory://", [POLICY], deny_cache=most)


def test_where_refusals_count_the_store_sees_each(at: Setting) -> None:
    at.limiter.use([Policy("shut", ["2/10s"], count_denied=True)])
    for _ in range(2):
        assert at.limiter.decide("shut", "s")
    for _ in range(3):
        refused, calls = at.asked("shut", "s")
        assert (refused.allowed, refused.origin, calls) == (False, "store", 1)
        at.pass_us(4 * SECOND)
    batch = at.limiter.decide_batch([Attempt("shut", "s")])
    assert [one.origin for one in batch] == ["store"]
    assert at.asked("shut", "s")[0].origin == "store"


def test_quiet_hours_are_remembered_until_they_end_and_for_the_zone_they_are_in(at: Setting) -> None:
    at.limiter.use([Policy("night", ["not between 22:00 and 08:00"])])
    midnight_us = START_US - START_US % (86_400 * SECOND)
    at.clock.advance_us(midnight_us - START_US)
    refused, calls = at.asked("night", "s")
    assert (refused.allowed, refused.retry_after_us, calls) == (False, 8 * 3600 * SECOND, 1)
    assert at.asked("night", "s")[0].origin == "deny-cache"
    assert at.asked("night", "s", zone="Asia/Tokyo")[0].allowed, "it is nine in the morning there"
    assert at.asked("night", "s", zone="Europe/Berlin")[0].retry_after_us == 6 * 3600 * SECOND, "in summer"
    at.pass_us(8 * 3600 * SECOND - 1)
    assert at.asked("night", "s")[0].retry_after_us == 1
    assert at.asked("night", "s", zone="Europe/Berlin")[0].origin == "store"
    at.pass_us(1)
    assert at.asked("night", "s")[0].allowed


def test_zones_that_the_policy_does_not_tell_apart_are_one(at: Setting) -> None:
    at.limiter.use([Policy("plain", ["1/day"])])
    at.limiter.decide("plain", "s", zone="Asia/Tokyo")
    assert not at.limiter.decide("plain", "s", zone="Europe/Berlin")
    assert at.asked("plain", "s")[1] == 0


def test_a_joint_attempt_asks_the_store_and_its_refund_ends_what_is_remembered(at: Setting) -> None:
    at.limiter.use([Policy("one", ["1/day"]), Policy("two", ["1/day"])])
    parts = [Attempt("one", "s"), Attempt("two", "t")]
    taken = at.limiter.decide_all(parts)
    assert not at.limiter.decide("one", "s")
    assert at.asked("one", "s")[0].origin == "deny-cache"
    assert at.limiter.decide_all(parts).origin == "store"
    assert at.limiter.refund_all(parts, taken.hits) == 2
    assert at.asked("one", "s")[0].allowed


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_refusal_that_a_reservation_may_end_is_not_held(asynchronous: bool) -> None:
    clock = ManualClock(START_US)
    policy = Policy("r", ["1/h"], reservations=True)
    limiter, _ = behind_a_door(policy, asynchronous=asynchronous, clock=clock, deny_cache=9)
    assert limiter.reserve("r", "s", ttl=2)
    assert not limiter.decide("r", "s")
    clock.advance_us(2 * SECOND)
    assert limiter.decide("r", "s").origin == "store"
    close(limiter)
