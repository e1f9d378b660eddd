"""The rule: what is allowed and refused, when, and what a decision says; segments, channels and changed limits."""

import pytest

from capline.limiter.arguments.records import PastHit
from capline.testing.examples import examples
from capline.testing.setting import SECOND, START_US, StoreSetting


class RuleLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_ten_per_two_seconds: 10/2s
            decide -> yes; 0.125: decide -> yes; 0.25: decide -> yes; 0.375: decide -> yes; 0.5: decide -> yes
            1.3: decide x5 -> yes; 1.4: decide -> no, after 0.6
        test_a_cost_above_the_quota_is_refused_for_ever: 10/2s
            decide 11 -> no, after never, left 10, hit none
        test_two_per_minute: 2/min
            decide -> yes; 10: decide -> yes; 20: decide -> no, left 0, after 40, empty 50
        test_two_limits_hold_together_and_a_refusal_burns_neither: 1/s, 2/min
            decide -> yes no; 1: decide -> yes
        test_three_limits: 2/s, 10/min, 20/h
            decide -> yes; 1: decide -> yes; 2: decide -> yes; 3: decide -> yes; 4: decide -> yes
            5: decide -> yes; 6: decide -> yes; 7: decide -> yes; 8: decide -> yes; 9: decide -> yes
            10: decide -> no, left 0, after 50, by 10/minute
        test_a_hit_exactly_as_old_as_the_window_is_out: 2/10s
            decide -> yes; 1: decide -> yes; 9: decide -> no; 10: decide -> yes
        test_a_full_window_frees_at_once: 3/10s
            decide -> yes yes yes; 9: decide -> no no; 10: decide -> yes yes yes no
        test_refused_one_microsecond_before_retry_after_and_allowed_at_it: 5/10s, 8/min
            decide 2 -> yes; 1: decide 2 -> yes; 3: decide 1 -> yes; 11.5: decide 2 -> yes
            peek 1 -> yes; opens 2; 11.5: opens 3; 11.5: opens 5
        test_a_quota_of_zero_always_refuses: 0/day
            decide -> no, after never, left 0
        test_a_cost_of_a_million_writes_no_million_entries: 1000000/2s
            decide 999999 -> yes; decide -> yes no, left 0 0; explain -> units 999999+1; 2: decide 999999 -> yes
        test_what_a_decision_says: 3/day, 4/week
            decide -> left 2, after 0, empty 604800, stamp 0, origin store, by 3/day
            86400: decide 3 -> left 0, by 3/day
            decide -> no, by 4/week, after 518400
        test_of_limits_with_as_much_left_the_first_is_named: 5/10s, 6/20s, 9/h
            decide -> yes; 85: decide -> yes; 95: decide -> yes
            100: peek -> yes, left 3, by 5/10s; decide -> yes, left 3, by 5/10s
        test_retry_after_holds_when_the_clock_has_stepped_back: 1/10s
            50: decide -> yes; 20: opens; decide -> yes
        test_a_subject_that_changes_segment_keeps_its_history: 1/day | by_segment.active=3/day | by_segment.idle=1/week
            decide segment=active -> yes yes; decide -> no; 172800: decide -> yes; decide segment=idle -> no
        test_a_changed_limit_finds_a_true_history: 1/day | by_segment.other=9/week
            decide -> yes; 86400: decide -> yes; 172800: decide -> yes
            use 4/week; decide -> yes no, left 0 0; use 2/week; decide -> left 0; use 6/week; decide -> left 1
        test_channels_and_the_overall_limit_are_one_step: 3/day | channels.push=2/day | channels.email=1/day,4/week
            decide channel=push -> yes; decide channel=email -> yes; decide channel=email -> no, by 1/day
            peek channel=push -> left 0; decide channel=push -> yes; decide channel=push -> by 3/day; decide -> no
        test_a_refund_on_a_channel_gives_back_both: 2/day | channels.push=1/day | channels.email=2/day
            a = decide channel=push; decide channel=email -> yes; refund $a -> gives True
            decide channel=push -> yes; decide channel=email -> no
        test_policies_that_share_a_log_count_each_others_hits: 2/day | policy.b=3/week | log=all
            decide -> yes; decide on=b -> yes; decide -> no; 172800: decide on=b -> yes no
        test_a_clock_that_steps_back_gives_no_room: 2/10s
            100: decide -> yes yes; 0: decide -> no, after 110; 110: decide -> yes, stamp 110
        test_erase_reaches_a_channel_that_the_policy_has_no_more: 9/day | channels.push=2/day
            decide 2 channel=push -> yes; use 9/day channels.mail=2/day; use 9/day; erase -> gives 2 0
            use 9/day channels.push=2/day; decide channel=push -> yes, left 1
        test_erase_reaches_reservations_that_the_policy_has_no_more: 9/day | reservations=True
            | each=sliding_log,bucketed,gcra
            a = reserve ttl=10; use 9/day algorithm=*; erase -> gives 1; use 9/day reservations=True; decide -> hit $a
            11: usage -> used 1
        test_two_hits_in_one_instant_are_two_hits: 3/day
            decide -> yes yes yes no, left 2 1 0 0; explain -> stamps 0.0+1e-06+2e-06
        """)
    )

    # --- the rule ---------------------------------------------------------------------------------------------

    def test_of_limits_that_are_alike_the_first_is_named(self) -> None:
        used = (0, 1, 2, 40, 200)
        limiter = self.limiter(*(self.policy(f"p{n}", [f"{n + 2}/{hours}h" for hours in (1, 2, 3)]) for n in used))
        for n in used:
            name = f"p{n}"
            for seconds in range(n):
                self.at(seconds)
                assert limiter.decide(name, "s")
            self.at(300)
            for left in (1, 0):
                for answer in (limiter.peek(name, "s"), limiter.decide(name, "s")):
                    assert (answer.allowed, answer.remaining, str(answer.limit)) == (True, left, f"{n + 2}/hour")
            refused = limiter.decide(name, "s")
            assert (refused.allowed, refused.remaining, str(refused.limit)) == (False, 0, f"{n + 2}/3h")

    def test_subjects_and_policies_do_not_meet(self) -> None:
        limiter = self.limiter(self.policy("a", ["1/day"]), self.policy("b", ["1/day"]))
        subjects = ["42", 42, "4", "2", 0, 2**64 - 1, "é", "e\u0301", "{x}", "}{", "a\0b", "x" * 512, "x" * 511 + "y"]
        for policy in ("a", "b"):
            for subject in subjects:
                assert limiter.decide(policy, subject), (policy, subject)
                assert not limiter.decide(policy, subject)

    # --- the clock --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("many", [1, 700], ids=["short", "long"])
    def test_what_has_aged_counts_no_more_though_the_clock_steps_back(self, many: int) -> None:
        """Also where it is there still: no answer tells what was trimmed."""
        limiter = self.one("800/10s")
        assert limiter.decide_many("p", ["s"] * many).allowed.all()
        self.at(10.1)
        assert limiter.refund("p", "s", limiter.decide("p", "s").hit)
        self.at(5)
        for answer in (limiter.peek("p", "s", 0), limiter.decide("p", "s", 801)):
            assert (answer.remaining, answer.reset_after_us) == (800, 0)

    # --- segments, channels, changed limits -------------------------------------------------------------------

    def test_an_id_that_has_aged_stays_new_when_the_window_is_widened(self) -> None:
        limiter = self.limiter(self.policy("p", ["5/10s"]))
        assert limiter.decide("p", "s", id="y")
        assert limiter.decide("p", "s", id="z")
        self.at(10.5)
        assert limiter.decide("p", "s")
        limiter.use([self.policy("p", ["5/300s"])])
        assert limiter.decide("p", "s", id="y").remaining == 3
        assert limiter.load([PastHit("p", "s", START_US + 9 * SECOND, id="z")]).added == 1
