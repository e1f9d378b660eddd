"""What has happened already: looks of no cost, charges, usage, and estimates that are settled."""

import pytest

from capline.model.attempt import Attempt
from capline.model.clock import LATEST_US
from capline.model.errors import InvalidValueError
from capline.model.limit import LARGEST_QUOTA
from capline.testing.examples import examples
from capline.testing.setting import SECOND, START_US, StoreSetting, each_algorithm


class ChargeLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_a_look_of_no_cost_is_allowed_up_to_the_quota_and_not_past_it: 5/10s | algorithm=*
            peek 0 -> yes, left 5, hit none, empty 0; decide 5 -> yes; peek 0 -> yes, left 0, after 0; charge 1 -> yes
            peek 0 -> no, left 0, by 5/10s; opens 0; usage -> past 0
        test_a_look_past_the_quota_and_behind_a_slot_is_told_when_it_is_allowed: 2/hour
            decide 2 -> yes; schedule -> wait 3600; charge 4 -> yes; opens 0
        test_a_charge_is_recorded_whatever_the_limits_say_and_makes_the_next_wait: 5/10s, 40/100s | algorithm=*
            decide 4 -> yes; charge 13 -> yes, left 0, origin store, new; usage -> used 17+17, free 0+23, past 12+0
            decide -> no, left 0, by 5/10s; opens; decide -> yes
        test_a_charge_is_repeatable_by_its_id: 5/10s | algorithm=*
            a = charge 9 id=call-1; charge 9 id=call-1 -> yes, hit $a, left 0; usage -> used 9
            charge 8 id=call-1 -> raises IdConflictError; decide 9 id=call-1 -> yes, hit $a; usage -> used 9
        test_a_charge_counts_before_slots_that_are_taken: 3/10s
            schedule not_before=5 -> stamp 5; charge 2 -> stamp 0; schedule -> wait 10; explain -> units 2+1+1
        test_a_charge_counts_in_its_channel_too: 9/10s | channels.push=2/10s
            charge 4 channel=push -> yes; usage channel=push -> used 4+4; usage -> used 4
            peek 0 channel=push -> no; peek 0 -> yes
        test_a_charge_with_the_id_of_a_slot_goes_at_once: 1/hour
            decide -> yes; a = schedule id=x -> wait 3600; charge 1 id=x -> wait 0, late 0, hit $a
        test_usage_tells_what_is_past_a_quota_that_was_lowered: 9/10s | by_segment.new=4/10s
            decide 7 -> yes; usage segment=new -> past 3; decide segment=new -> no, past 3
        test_an_estimate_is_settled_at_what_it_really_cost: 10/10s | algorithm=*
            a = decide 6 id=a; decide 5 -> no; settle $a 2 -> yes; usage -> used 2; b = decide 5 id=b
            settle $b 25 -> yes; usage -> used 27; peek 0 -> no; settle $b 3 -> yes; usage -> used 5; decide 5 -> yes
        test_a_settlement_is_once_however_often_it_is_asked: 10/10s | algorithm=*
            a = decide 6 id=a; settle $a 9 -> yes; usage -> used 9; settle $a 9 -> yes; usage -> used 9
            settle $a 4 -> yes; usage -> used 4; settle $a 4 -> yes; usage -> used 4; settle $a 6 -> yes
            usage -> used 6
            settle $a 0 -> yes no; usage -> used 0; settle $a 5 -> no; refund $a -> no
        test_a_settled_hit_keeps_its_stamp_and_its_id: 10/10s | channels.push=5/10s
            decide 1 -> yes; a = decide 3 id=a channel=push; 4: settle $a 7 -> yes; usage channel=push -> used 8+7
            decide 3 id=a channel=push -> raises IdConflictError; decide 7 id=a channel=push -> hit $a
            10: usage channel=push -> used 7+7; 10.000001: usage channel=push -> used 0+0
        test_a_hit_without_an_id_is_not_settled_where_sums_are_kept: 10/10s
            | algorithm=* | each=bucketed,sliding_counter,gcra,fixed_window
            a = decide 6; settle $a 2 -> no; usage -> used 6
        test_charges_fill_a_long_log: 1000/100s, 5000/hour
            0+0.1: decide x300 -> yes; charge 900 -> yes, stamp 29.900001; usage -> used 1200+1200; charge 5 -> yes
            decide -> no, past 205+0, after 90.6; opens; decide -> yes, stamp 120.5; usage -> used 1000+1206
        test_usage_is_now_and_peek_is_after_an_attempt: 10/10s, 20/min
            usage -> free 10+20; peek -> left 9; decide 3 -> yes; 4: decide 2 -> yes
            usage -> used 5+5, free 5+15, frees 6.0+56.0, whole 10.0+60.0; 12: usage -> used 2+5
        test_what_is_no_hit_is_not_settled: 10/10s
            a = decide 6; settle 1700000000000001 2 -> no; settle of=stranger $a 2 -> no; settle none 2 -> no
            charge 1 -> yes; settle $a 9007199254740991 -> raises InvalidValueError more than this log can count
            usage -> used 7; 10: settle $a 2 -> no
        test_a_flush_forgets_a_policy_and_no_other: 3/10s | policy.q=3/10s | algorithm=*
            decide 3 of=1 -> yes; decide 3 of=2 -> yes; decide 3 -> yes; decide 3 on=q of=1 -> yes; decide 3 on=q -> yes
            flush -> gives 3 0; decide_all p:3 of=1 -> yes; decide on=q of=1 -> no; decide on=q -> no
        """)
    )

    # --- looks ------------------------------------------------------------------------------------------------

    @each_algorithm
    def test_a_look_is_about_now_and_not_about_the_next_hit_s_stamp(self, algorithm: str) -> None:
        """Behind hits of this very instant a hit would be stamped one microsecond later: by then more may be left."""
        limiter = self.one("1000003/3s", "9/50us", algorithm=algorithm)
        for _ in range(2):
            last = limiter.decide("p", "s")
            look = limiter.peek("p", "s", 0)
            assert [state.remaining for state in look.limits] == [state.remaining for state in last.limits]
            assert [state.frees_in_us for state in look.limits] == [state.frees_in_us for state in last.limits]
            self.clock.advance_us(5)

    def test_a_look_takes_nothing_and_no_id(self) -> None:
        limiter = self.one("2/10s", "3/min")
        assert limiter.decide("p", "s")
        before = limiter.explain("p", "s")
        assert [limiter.peek("p", "s", 0).remaining for _ in range(3)] == [1] * 3
        assert limiter.explain("p", "s") == before
        with pytest.raises(InvalidValueError, match="takes no id"):
            limiter.peek("p", "s", 0, "x")
        for verb in (limiter.decide, limiter.charge, limiter.schedule):
            with pytest.raises(InvalidValueError, match="a cost is 1 to"):
                verb("p", "s", 0)

    def test_a_look_is_refused_in_quiet_hours_and_behind_slots(self) -> None:
        limiter = self.one("2/10s")
        slot = limiter.schedule("p", "s", not_before=3)
        refused = limiter.peek("p", "s", 0)
        assert (refused.allowed, refused.retry_after) == (False, 3.0)
        assert limiter.refund("p", "s", slot.hit)
        assert limiter.peek("p", "s", 0)
        quiet = self.limiter(self.policy("q", ["9/min", "not between 21:00 and 23:00"], zone="UTC"))
        self.when("2026-03-01 22:30", "UTC")
        assert (quiet.peek("q", "s", 0).allowed, quiet.peek("q", "s", 0).retry_after) == (False, 1800.0)

    # --- charges ----------------------------------------------------------------------------------------------

    @each_algorithm
    def test_a_charge_far_past_the_quota_is_not_forgotten_early(self, algorithm: str) -> None:
        """A level sinks for as long as it was raised; it is kept, swept and expired by that, and not by a window."""
        limiter = self.one("5/10s", algorithm=algorithm)
        assert limiter.charge("p", "s", 100)
        waits = {"gcra": 192.0, "fixed_window": 10.0}
        refused = limiter.peek("p", "s")
        assert refused.retry_after == pytest.approx(waits.get(algorithm, refused.retry_after))
        for part in range(1, 4):
            self.at(refused.retry_after * part / 4)
            limiter.sweep()
            assert not limiter.decide("p", "s")
            assert not limiter.peek("p", "s", 0)
        self.at(refused.retry_after)
        assert limiter.decide("p", "s")

    def test_slots_and_decisions_of_more_than_a_log_can_count_are_refused_before_they_are_recorded(self) -> None:
        """A log keeps hits for the widest window of all its policies, so it may hold more than one window's."""
        policies = [self.policy("p", [f"{LARGEST_QUOTA}/10s"]), self.policy("kept", [f"{LARGEST_QUOTA}/hour"], log="p")]
        limiter = self.limiter(*policies, self.policy("beside", ["3/hour"]))
        assert limiter.decide("p", "s", LARGEST_QUOTA)
        self.clock.advance_us(10 * SECOND)
        half = LARGEST_QUOTA // 2
        assert limiter.decide("p", "t", half, "x")
        assert limiter.schedule("p", "t", half + 1)
        for verb in (limiter.decide, limiter.schedule):
            for cost in (2, LARGEST_QUOTA):
                with pytest.raises(InvalidValueError, match="more than this log can count"):
                    verb("p", "s", cost)
        with pytest.raises(InvalidValueError, match="more than this log can count"):
            limiter.schedule("p", "t", 2)
        for joint in (limiter.decide_all, limiter.schedule_all):
            with pytest.raises(InvalidValueError, match="more than this log can count"):
                joint([Attempt("beside", "s"), Attempt("p", "s")])
        assert limiter.usage("beside", "s")[0].used == 0
        [answer] = limiter.decide_batch([Attempt("p", "s", 2)])
        assert isinstance(answer, InvalidValueError)
        many = limiter.decide_many("p", ["s", "v"], cost=2)
        assert (many.allowed.tolist(), [*many.errors]) == ([False, True], [0])
        assert isinstance(many.errors[0], InvalidValueError)
        assert [hit.units for hit in limiter.explain("p", "s").hits] == [LARGEST_QUOTA]

    @each_algorithm
    def test_a_charge_of_more_than_can_be_counted_is_refused_before_it_is_recorded(self, algorithm: str) -> None:
        limiter = self.one("7/11s", algorithm=algorithm)
        assert limiter.charge("p", "s", 3)
        for cost, id in ((LARGEST_QUOTA, None), (LARGEST_QUOTA - 2, "x")):
            with pytest.raises(InvalidValueError, match="more than this log can count"):
                limiter.charge("p", "s", cost, id)
        assert self.used(limiter) == [3]
        assert limiter.decide("p", "s", 4, "x")
        if algorithm in ("sliding_log", "bucketed", "fixed_window"):
            assert limiter.charge("p", "t", LARGEST_QUOTA - 1)
            assert limiter.charge("p", "t", 1)
            assert self.used(limiter, "t") == [LARGEST_QUOTA]
            with pytest.raises(InvalidValueError):
                limiter.charge("p", "t", 1)
            self.at(12)
            assert limiter.charge("p", "t", LARGEST_QUOTA), "what is out of every window does not count"

    def test_its_id_is_in_the_log_of_the_policy_alone(self) -> None:
        limiter = self.one("9/day", channels={"push": ["5/day"]})
        assert limiter.charge("p", "s", 2, "x", channel="push").retry_after_us == 0
        logs = {record.log: [(units, bool(id)) for _, units, id in record.hits] for record in limiter.export()}
        assert logs == {"p": [(2, True)], "p/push": [(2, False)]}

    def test_the_last_instant_takes_a_charge_and_is_then_over(self) -> None:
        limiter = self.one("9/hour")
        self.clock.advance_us(LATEST_US - 1 - START_US)
        assert limiter.charge("p", "s", 3).hit == LATEST_US - 1
        with pytest.raises(InvalidValueError, match="3 units are more than this log can count"):
            limiter.charge("p", "s", 3)
        assert self.used(limiter) == [3]

    # --- usage ------------------------------------------------------------------------------------------------

    # --- settling ---------------------------------------------------------------------------------------------

    def test_a_hit_deep_in_a_long_log_is_settled(self) -> None:
        limiter = self.one("1000/100s")
        hits: list[int] = []
        for _ in range(200):
            self.clock.advance_us(1000)
            hits.append(limiter.decide("p", "s").hit)
        for hit in (hits[0], hits[70], hits[-1]):
            assert limiter.settle("p", "s", hit, 11)
        assert self.used(limiter) == [230]
        assert [(hit.stamp_us, hit.units) for hit in limiter.explain("p", "s").hits if hit.units > 1] == [
            (hit, 11) for hit in (hits[0], hits[70], hits[-1])
        ]

    # --- flushing ---------------------------------------------------------------------------------------------
