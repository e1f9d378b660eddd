"""Slots: each waiter its own, in order; bounds, and giving back."""

import asyncio
from typing import Any

import pytest

from capline.limiter.aio import AsyncLimiter
from capline.model.attempt import Attempt
from capline.model.decision import LimitExceeded
from capline.model.errors import CaplineError
from capline.testing.examples import examples
from capline.testing.setting import SECOND, StoreSetting, each_algorithm


class SlotLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_nobody_jumps_the_queue: 1/10s
            schedule x2; 9.999999: decide -> no, after 10.000001; 20: decide -> yes
        test_a_wait_that_is_too_long_takes_nothing: 1/10s
            decide; schedule max_wait=9.999999 -> no, hit none, after 10; schedule max_wait=10 -> wait 10
        test_a_wait_of_a_microsecond_is_a_wait: 5/10s
            schedule max_wait=0 -> wait 0; schedule max_wait=0 -> no, hit none, after 0.000001, left 4
            schedule max_wait=2e-6 -> wait 0.000001 0.000002 0; explain -> hits 3
        test_a_slot_is_no_earlier_than_asked_and_nobody_is_given_one_before_it: 3/10s
            decide; a = schedule not_before=60 -> yes, wait 60, left 2; schedule -> wait 60.000001 60.000002 70
            decide -> after 70; schedule not_before=5 -> wait 70.000001; refund $a -> yes
            59: schedule not_before=100 -> wait 100
        test_a_slot_that_must_come_later_than_the_longest_wait_takes_nothing: 2/10s
            schedule max_wait=9.999999 not_before=10 -> no, hit none, after 10
            schedule max_wait=10 not_before=10 -> yes no, wait 10 0; explain -> hits 1
        test_each_waiter_gets_its_own_slot_in_order: 2/10s
            schedule -> wait 0 0.000001 10 10.000001 20 20.000001; explain -> hits 6
        test_whoever_waits_behind_slots_that_were_given_back_takes_the_first_of_their_instants: 1/500ms
            schedule -> wait 0; b = schedule -> wait 0.5; c = schedule -> wait 1; d = schedule -> wait 1.5
            e = schedule -> wait 2; refund $b -> yes; refund $c -> yes; refund $d -> yes
            f = move $e -> yes, wait 0.500001, left 0, by 1/500ms; move $f -> yes, hit $f, wait 0.500001; move $e -> no
            schedule -> wait 1.000001; refund $e -> no; refund $f -> yes
        test_a_slot_far_beyond_every_window_is_a_hit_like_any_other_when_its_time_comes: 2/10s
            decide -> yes; schedule not_before=3456000 -> wait 3456000; a = schedule not_before=6912000
            refund $a -> yes
            decide -> no; 3456000: decide -> yes, stamp 3456000.000001; decide -> no
        test_nobody_waits_for_instants_that_were_given_back: 2/10s
            decide x2; a = schedule -> wait 10; b = schedule; refund $a -> yes; decide 2 -> after 20.000001
            refund $b -> yes; decide 2 -> no, after 10; opens 2
        test_a_slot_given_back_is_taken_by_the_next: 1/10s
            decide -> yes; a = schedule -> wait 10; refund $a -> yes; schedule -> new, wait 10.000001
        """)
    )

    @each_algorithm
    def test_a_wait_that_is_too_long_has_nothing_left(self, algorithm: str) -> None:
        limiter = self.one("2/10s", algorithm=algorithm)
        assert all(limiter.decide("p", "s") for _ in range(2))
        late = limiter.schedule("p", "s", max_wait=1)
        assert (late.allowed, late.remaining, late.limits[0].remaining, str(late.limit)) == (False, 0, 0, "2/10s")
        assert late.retry_after == limiter.peek("p", "s").retry_after
        assert limiter.schedule("p", "s").allowed
        assert limiter.schedule("p", "s", max_wait=1).remaining == 0

    @pytest.mark.parametrize("wrong", [-1, float("nan"), "soon"])
    def test_a_slot_is_not_before_a_number_of_seconds_from_0_on(self, wrong: Any) -> None:
        with pytest.raises(CaplineError, match="not_before is a number of seconds"):
            self.one("2/10s").schedule("p", "s", not_before=wrong)

    @each_algorithm
    def test_a_slot_that_is_asked_for_again_says_how_late_that_is(self, algorithm: str) -> None:
        limiter = self.one("1/10s", algorithm=algorithm)
        first, second = (limiter.schedule("p", "s", id=id) for id in ("a", "b"))
        assert (first.wait_us, first.late_us, second.late_us, second.wait_us >= 10 * SECOND) == (0, 0, 0, True)
        self.at(4)
        for id, wait_us, late_us in (("a", 0, 4 * SECOND), ("b", second.wait_us - 4 * SECOND, 0)):
            again = limiter.schedule("p", "s", id=id, max_wait=0)
            assert (again.allowed, again.wait_us, again.late_us) == (True, wait_us, late_us)
        self.at(9.999999)
        assert limiter.schedule("p", "s", id="a").late == 9.999999
        assert limiter.decide("p", "s", id="a").late_us == limiter.peek("p", "s", id="a").late_us == 0

    def test_acquire_past_its_timeout_raises_and_takes_nothing(self) -> None:
        limiter = self.one("1/h")
        limiter.decide("p", "s")
        assert self._refused(limiter, "acquire", "p", "s").startswith("policy 'p', subject 's': limit 1/hour")
        assert len(limiter.explain("p", "s").hits) == 1

    def test_acquire_by_the_id_of_a_slot_past_its_timeout_raises_and_leaves_the_slot(self) -> None:
        limiter = self.one("1/h")
        limiter.decide("p", "s")
        slot = limiter.schedule("p", "s", id="later")
        assert self._refused(limiter, "acquire", "p", "s", 1, "later").endswith("this cost fits in 1 h")
        assert self._refused(limiter, "acquire_all", [Attempt("p", "s", id="later")]).endswith("in 1 h")
        assert limiter.schedule("p", "s", id="later").hit == slot.hit

    def _refused(self, limiter: Any, verb: str, *args: Any) -> str:
        """What an acquire that waits for a second says."""

        def acquire() -> None:
            with getattr(limiter, verb)(*args, timeout=1):
                pass

        with pytest.raises(LimitExceeded) as refused:
            limiter.run(_acquired(limiter.inner, verb, *args)) if self.asynchronous else acquire()
        return str(refused.value)

    @each_algorithm
    def test_an_interrupted_wait_gives_all_of_its_cost_back_under_every_algorithm(
        self, algorithm: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limiter = self.one("7/10s", algorithm=algorithm)
        limiter.decide("p", "s", 7)
        before = limiter.peek("p", "s", 5)
        assert not before.allowed
        if self.asynchronous:
            limiter.run(_interrupted(limiter.inner))
        else:
            monkeypatch.setattr("time.sleep", _interrupt)
            with pytest.raises(KeyboardInterrupt), limiter.acquire("p", "s", 5):
                pass
        after = limiter.peek("p", "s", 5)
        assert 0 <= after.retry_after_us - before.retry_after_us <= 20, "some microseconds are told apart by stamps"
        assert limiter.schedule("p", "s", 5).wait_us - before.retry_after_us <= 20


def _interrupt(_seconds: float) -> None:
    raise KeyboardInterrupt


async def _interrupted(limiter: AsyncLimiter) -> None:
    """Wait for a slot, and cancel that once the slot is taken."""

    async def wait() -> None:
        async with limiter.acquire("p", "s", 5):
            raise AssertionError("the slot is some seconds away")

    alone = (await limiter.peek("p", "s", 5)).reset_after_us or 0
    waiting = asyncio.create_task(wait())
    until = asyncio.get_running_loop().time() + 60
    while ((await limiter.peek("p", "s", 5)).reset_after_us or 0) <= alone:
        assert asyncio.get_running_loop().time() < until
        await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _acquired(limiter: AsyncLimiter, verb: str, *args: Any) -> None:
    async with getattr(limiter, verb)(*args, timeout=1):
        pass
