"""One slot under several policies: one instant for all of their logs, or nothing in any."""

from typing import Any

import pytest

from capline.model.attempt import Attempt
from capline.testing.examples import examples
from capline.testing.setting import SECOND, START_US, StoreSetting, each_algorithm

MINUTE = 60 * SECOND


_SLOTS = """
test_the_part_that_fits_last_says_when: 3/min | policy.tokens=100/min
    decide on=tokens 100 -> yes; 20: schedule_all p:1 tokens:10 -> wait 40; schedule -> wait 40.000001
    decide on=tokens -> no
test_a_slot_that_one_part_refuses_is_taken_in_none: 3/min | policy.tokens=100/min
    decide on=tokens 95 -> yes
    schedule_all p:1 tokens:10 max_wait=59.999999 -> no, after 60, binds 1, left 3, wait 0, by 100/minute
    schedule_all p:1 tokens:101 -> no, after never, binds 1; explain -> hits 0
    schedule_all p:1 tokens:10 max_wait=60 -> wait 60
test_a_slot_is_no_earlier_than_asked: 3/min | policy.tokens=100/min
    schedule_all p:1 tokens:10 not_before=30 -> wait 30; schedule_all p:1 tokens:10 -> wait 30.000001
    schedule_all p:1 tokens:10 not_before=40 max_wait=39 -> no
test_a_slot_comes_after_those_that_are_taken_in_any_of_its_logs: 3/min | policy.tokens=100/min
    schedule on=tokens 1 not_before=30 -> wait 30; schedule_all p:1 tokens:10 -> wait 30.000001
test_a_slot_is_given_back_in_every_log: 3/min | policy.tokens=100/min
    decide on=tokens 100 -> yes; a = schedule_all p:1 tokens:60 -> wait 60
    refund_all p:1 tokens:60 $a -> gives 2
    schedule_all p:1 tokens:60 -> wait 60.000001
test_ids_of_several_instants_name_no_slot: 3/min | policy.tokens=100/min
    decide id=x -> yes; 1: decide on=tokens 10 id=x -> yes
    schedule_all p:1 tokens:10 id=x -> raises IdConflictError at several instants
test_a_part_that_is_ahead_of_the_clock_has_all_wait_for_it: 3/min | policy.tokens=100/min
    50: decide on=tokens 10 -> yes; 20: schedule_all p:1 tokens:10 -> stamp 50.000001+50.000001; decide -> no
    51: decide -> stamp 51
test_quiet_hours_of_one_part_put_the_slot_off: not between 22:00 and 08:00 | policy.b=1/min
    when 2024-05-06T21:59:30 UTC; schedule_all p:1 b:1 -> wait 0 36030
test_refusals_that_count_are_not_recorded_for_a_slot: 1/min | policy.b=9/min | count_denied=True
    schedule_all p:1 b:1 -> yes; schedule_all p:1 b:1 max_wait=1 -> no; explain -> hits 1
test_a_slot_is_one_instant_in_every_log: 3/min | policy.tokens=100/min
    schedule_all p:1 tokens:40 -> wait 0 0.000001 60 60.000001
    schedule_all p:1 tokens:1 -> wait 60.000002, left 0, binds 0, stamp 60.000002+60.000002, by 3/minute
    explain -> units 1+1+1+1+1, stamps 0.0+1e-06+60.0+60.000001+60.000002
    explain on=tokens -> units 40+40+40+40+1, stamps 0.0+1e-06+60.0+60.000001+60.000002
test_a_slot_of_before_a_change_is_known_after_it_and_given_back: 3/min | policy.tokens=100/min
    decide on=tokens 100 -> yes; a = schedule_all p:1 tokens:60 id=x -> wait 60
    use 2/min policy.tokens=50/min,200/hour; schedule_all p:1 tokens:60 id=x max_wait=0 -> yes, hit $a
    schedule_all p:1 tokens:51 -> no; schedule_all p:1 tokens:10 -> wait 120
    refund_all p:1 tokens:60 $a -> gives 2
    schedule_all p:1 tokens:10 -> wait 120.000001; use 1/min policy.tokens=50/min,200/hour
    schedule_all p:1 tokens:10 -> wait 180.000001
test_a_slot_that_a_narrow_log_has_forgotten_is_known_by_the_wide_one: 2/s | policy.tokens=100/min
    a = schedule_all p:1 tokens:10 id=x; 1: schedule_all p:1 tokens:10 id=x -> yes, hit $a, wait 0, left 90
    usage -> used 0; peek on=tokens -> left 89
test_slots_of_one_and_of_several_policies_are_in_the_order_in_which_they_are_taken: 3/min
    | policy.tokens=100/min
    schedule on=tokens 5 -> wait 0; schedule_all p:1 tokens:30 -> wait 0.000001 0.000002
    schedule on=tokens 5 -> wait 0.000003; schedule_all p:1 tokens:30 -> wait 0.000004 60.000001
test_an_id_names_the_slot_in_every_log: 3/min | policy.tokens=100/min
    decide on=tokens 100 -> yes; a = schedule_all p:1 tokens:10 id=x -> wait 60
    20: schedule_all p:1 tokens:10 id=x max_wait=0 -> yes, hit $a, wait 40, late 0
    63: schedule_all p:1 tokens:10 id=x -> late 3; decide_all p:1 tokens:10 id=x -> late 0; explain -> hits 1
    schedule_all p:1 tokens:11 id=x -> raises IdConflictError cost of 10; refund $a.0 -> yes
    schedule_all p:1 tokens:10 id=x -> raises IdConflictError in some of the logs only
    refund on=tokens $a.1 10 -> yes
    schedule_all p:1 tokens:10 id=x -> yes
    schedule_all p:1:y tokens:1 -> raises InvalidValueError one slot has an id in all of its attempts
"""


class JointSlotLaw(StoreSetting):
    """The checks. Several policies over one subject, or each over its own; in one place on every store."""

    vars().update(examples(_SLOTS) | examples(_SLOTS, several=True))

    def of_a_key(self) -> Any:
        """Requests and tokens a minute of one key."""
        return self.limiter(self.policy("requests", ["3/min"]), self.policy("tokens", ["100/min"]))

    def parts(self, tokens: int = 10, id: str | None = None) -> list[Attempt]:
        """A request of so many tokens."""
        return [Attempt("requests", "key", 1, id), Attempt("tokens", "key", tokens, id)]

    def hits_of(self, limiter: Any, policy: str) -> list[tuple[int, int]]:
        """What the log has: microseconds since the start, and units."""
        return [(hit.stamp_us - START_US, hit.units) for hit in limiter.explain(policy, "key").hits]

    def test_a_slot_may_be_under_limits_that_come_with_it(self) -> None:
        limiter = self.of_a_key()
        parts = [Attempt("words", "key", 10, limits=["100/min"]), Attempt("bursts", "key", limits=["1/10s"])]
        slots = [limiter.schedule_all(parts) for _ in range(2)]
        assert [(slot.wait, str(slot.limit), slot.binds) for slot in slots] == [(0, "1/10s", 1), (10, "1/10s", 1)]
        assert limiter.refund_all(parts, slots[1].hits) == 2
        assert limiter.schedule("bursts", "key", limits=["1/10s"]).wait == pytest.approx(10, abs=1e-5)

    @each_algorithm
    def test_a_slot_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.limiter(self.policy("p", ["3/10s"], algorithm=algorithm), self.policy("q", ["2/7s"]))
        for cost in (1, 2, 1, 1, 2):
            alone = [limiter.schedule(name, "s", cost) for name in ("p", "q")]
            for name, other in zip(("p", "q"), alone, strict=True):
                assert limiter.refund(name, "s", other.hit, cost)
            slot = limiter.schedule_all([Attempt("p", "s", cost), Attempt("q", "s", cost)])
            assert slot.hits[0] == slot.hits[1]
            assert slot.wait_us >= max(other.wait_us for other in alone) - 40, "stamps that were given back stay taken"

    def test_a_slot_of_one_part_is_a_slot(self) -> None:
        limiter = self.limiter(self.policy("a", ["2/10s", "5/min"]), self.policy("b", ["2/10s", "5/min"]))
        for turn in range(12):
            cost, wish = 1 + turn % 2, {"not_before": turn % 4, "max_wait": 40 if turn > 8 else None}
            single = limiter.schedule("a", "s", cost, **wish)
            joint = limiter.schedule_all([Attempt("b", "s", cost)], **wish)
            assert (joint.allowed, joint.remaining, joint.wait_us) == (single.allowed, single.remaining, single.wait_us)
            assert (joint.retry_after_us, joint.reset_after_us) == (single.retry_after_us, single.reset_after_us)
            assert joint.hits == (() if single.hit is None else (single.hit,))
            state = [(each.remaining, each.frees_in_us, each.whole_in_us) for each in single.limits]
            assert [
                [(each.remaining, each.frees_in_us, each.whole_in_us) for each in part] for part in joint.limits
            ] == [state]
            self.clock.advance_us(SECOND)
