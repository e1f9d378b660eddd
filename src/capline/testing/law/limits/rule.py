"""The rule: what is allowed and refused, when, and what a decision says; segments, channels and changed limits."""

from __future__ import annotations

import pytest

from capline.limiter.arguments.records import PastHit
from capline.testing.setting import DAY, SECOND, START_US, StoreSetting


class RuleLaw(StoreSetting):
    """The checks."""

    # --- the rule ---------------------------------------------------------------------------------------------

    def test_ten_per_two_seconds(self) -> None:
        limiter = self.one("10/2s")
        for i in range(5):
            self.at(i / 8)
            assert limiter.decide("p", "s")
        self.at(1.3)
        assert all(limiter.decide("p", "s") for _ in range(5))
        self.at(1.4)
        eleventh = limiter.decide("p", "s")
        assert not eleventh
        assert eleventh.retry_after == pytest.approx(0.6)

    def test_a_cost_above_the_quota_is_refused_for_ever(self) -> None:
        decision = self.one("10/2s").decide("p", "s", 11)
        assert (decision.allowed, decision.retry_after_us, decision.remaining, decision.hit) == (False, None, 10, None)

    def test_two_per_minute(self) -> None:
        limiter = self.one("2/min")
        assert limiter.decide("p", "s")
        self.at(10)
        assert limiter.decide("p", "s")
        self.at(20)
        refused = limiter.decide("p", "s")
        assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 0, 40.0)
        assert refused.reset_after == 50.0

    def test_two_limits_hold_together_and_a_refusal_burns_neither(self) -> None:
        limiter = self.one("1/s", "2/min")
        assert [bool(limiter.decide("p", "s")) for _ in range(2)] == [True, False]
        self.at(1)
        assert limiter.decide("p", "s")

    def test_three_limits(self) -> None:
        limiter = self.one("2/s", "10/min", "20/h")
        for second in range(10):
            self.at(second)
            assert limiter.decide("p", "s")
        self.at(10)
        refused = limiter.decide("p", "s")
        assert (refused.allowed, refused.remaining, refused.retry_after, str(refused.limit)) == (
            False,
            0,
            50.0,
            "10/minute",
        )

    def test_a_hit_exactly_as_old_as_the_window_is_out(self) -> None:
        limiter = self.one("2/10s")
        verdicts: list[bool] = []
        for second in (0, 1, 9, 10):
            self.at(second)
            verdicts.append(bool(limiter.decide("p", "s")))
        assert verdicts == [True, True, False, True]

    def test_a_full_window_frees_at_once(self) -> None:
        limiter = self.one("3/10s")
        assert [bool(limiter.decide("p", "s")) for _ in range(3)] == [True] * 3
        self.at(9)
        assert [bool(limiter.decide("p", "s")) for _ in range(2)] == [False] * 2
        self.at(10)
        assert [bool(limiter.decide("p", "s")) for _ in range(4)] == [True, True, True, False]

    def test_refused_one_microsecond_before_retry_after_and_allowed_at_it(self) -> None:
        limiter = self.one("5/10s", "8/min")
        for seconds, cost in ((0, 2), (1, 2), (3, 1), (11.5, 2)):
            self.at(seconds)
            assert limiter.decide("p", "s", cost)
        for cost in (1, 2, 3, 5):
            refused = limiter.peek("p", "s", cost)
            if refused:
                continue
            self.clock.advance_us(refused.retry_after_us - 1)
            assert not limiter.peek("p", "s", cost)
            self.clock.advance_us(1)
            assert limiter.peek("p", "s", cost)
            self.at(11.5)

    def test_two_hits_in_one_instant_are_two_hits(self) -> None:
        limiter = self.one("3/day")
        decisions = [limiter.decide("p", "s") for _ in range(4)]
        assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
        stamps = [decision.hit for decision in decisions[:3]]
        assert stamps == sorted(set(stamps))

    def test_a_quota_of_zero_always_refuses(self) -> None:
        decision = self.one("0/day").decide("p", "s")
        assert (decision.allowed, decision.retry_after_us, decision.remaining) == (False, None, 0)

    def test_a_cost_of_a_million_writes_no_million_entries(self) -> None:
        limiter = self.one("1000000/2s")
        assert limiter.decide("p", "s", 999_999)
        assert limiter.decide("p", "s").remaining == 0
        assert not limiter.decide("p", "s")
        assert [hit.units for hit in limiter.explain("p", "s").hits] == [999_999, 1]
        self.at(2)
        assert limiter.decide("p", "s", 1_000_000 - 1)

    def test_what_a_decision_says(self) -> None:
        limiter = self.one("3/day", "4/week")
        first = limiter.decide("p", "s")
        assert (first.remaining, first.retry_after_us, str(first.limit)) == (2, 0, "3/day")
        assert (first.reset_after_us, first.hit, first.origin) == (7 * DAY, START_US, "store")
        self.clock.advance_us(DAY)
        second = limiter.decide("p", "s", 3)
        assert (second.remaining, str(second.limit)) == (0, "3/day")
        third = limiter.decide("p", "s")
        assert (third.allowed, str(third.limit), third.retry_after_us) == (False, "4/week", 6 * DAY)

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

    def test_of_limits_with_as_much_left_the_first_is_named(self) -> None:
        limiter = self.one("5/10s", "6/20s", "9/h")
        for seconds in (0, 85, 95):
            self.at(seconds)
            assert limiter.decide("p", "s")
        self.at(100)
        for answer in (limiter.peek("p", "s"), limiter.decide("p", "s")):
            assert (answer.allowed, answer.remaining, str(answer.limit)) == (True, 3, "5/10s")

    def test_subjects_and_policies_do_not_meet(self) -> None:
        limiter = self.limiter(self.policy("a", ["1/day"]), self.policy("b", ["1/day"]))
        subjects = ["42", 42, "4", "2", 0, 2**64 - 1, "é", "e\u0301", "{x}", "}{", "a\0b", "x" * 512, "x" * 511 + "y"]
        for policy in ("a", "b"):
            for subject in subjects:
                assert limiter.decide(policy, subject), (policy, subject)
                assert not limiter.decide(policy, subject)

    # --- the clock --------------------------------------------------------------------------------------------

    def test_a_clock_that_steps_back_gives_no_room(self) -> None:
        limiter = self.one("2/10s")
        self.at(100)
        first, second = limiter.decide("p", "s"), limiter.decide("p", "s")
        self.at(0)
        refused = limiter.decide("p", "s")
        assert (refused.allowed, refused.retry_after) == (False, 110.0)
        self.at(110)
        third = limiter.decide("p", "s")
        assert third
        assert first.hit < second.hit < third.hit

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

    def test_retry_after_holds_when_the_clock_has_stepped_back(self) -> None:
        limiter = self.one("1/10s")
        self.at(50)
        assert limiter.decide("p", "s")
        self.at(20)
        refused = limiter.decide("p", "s")
        self.clock.advance_us(refused.retry_after_us - 1)
        assert not limiter.decide("p", "s")
        self.clock.advance_us(1)
        assert limiter.decide("p", "s")

    # --- segments, channels, changed limits -------------------------------------------------------------------

    def test_a_subject_that_changes_segment_keeps_its_history(self) -> None:
        limiter = self.one("1/day", by_segment={"active": ["3/day"], "idle": ["1/week"]})
        assert limiter.decide("p", 1, segment="active")
        assert limiter.decide("p", 1, segment="active")
        assert not limiter.decide("p", 1)
        self.at(2 * 86_400)
        assert limiter.decide("p", 1)
        assert not limiter.decide("p", 1, segment="idle")

    def test_a_changed_limit_finds_a_true_history(self) -> None:
        limiter = self.limiter(self.policy("p", ["1/day"], by_segment={"other": ["9/week"]}))
        for day in range(3):
            self.at(day * 86_400)
            assert limiter.decide("p", "s")
        limiter.use([self.policy("p", ["4/week"])])
        assert limiter.decide("p", "s").remaining == 0
        assert not limiter.decide("p", "s")
        limiter.use([self.policy("p", ["2/week"])])
        assert limiter.decide("p", "s").remaining == 0
        limiter.use([self.policy("p", ["6/week"])])
        assert limiter.decide("p", "s").remaining == 1

    def test_an_id_that_has_aged_stays_new_when_the_window_is_widened(self) -> None:
        limiter = self.limiter(self.policy("p", ["5/10s"]))
        assert limiter.decide("p", "s", id="y")
        assert limiter.decide("p", "s", id="z")
        self.at(10.5)
        assert limiter.decide("p", "s")
        limiter.use([self.policy("p", ["5/300s"])])
        assert limiter.decide("p", "s", id="y").remaining == 3
        assert limiter.load([PastHit("p", "s", START_US + 9 * SECOND, id="z")]).added == 1

    def test_erase_reaches_a_channel_that_the_policy_has_no_more(self) -> None:
        with_push, without = (
            self.policy("p", ["9/day"], channels=channels) for channels in ({"push": ["2/day"]}, {"mail": ["2/day"]})
        )
        limiter = self.limiter(with_push)
        assert limiter.decide("p", "s", 2, channel="push")
        limiter.use([without])
        limiter.use([self.policy("p", ["9/day"])])
        assert limiter.erase("s") == 2
        assert limiter.erase("s") == 0
        limiter.use([with_push])
        assert limiter.decide("p", "s", channel="push").remaining == 1

    @pytest.mark.parametrize("algorithm", ["sliding_log", "bucketed", "gcra"])
    def test_erase_reaches_reservations_that_the_policy_has_no_more(self, algorithm: str) -> None:
        reserving = self.policy("p", ["9/day"], reservations=True)
        limiter = self.limiter(reserving)
        hit = limiter.reserve("p", "s", ttl=10).hit
        limiter.use([self.policy("p", ["9/day"], algorithm=algorithm)])
        assert limiter.erase("s") == 1
        limiter.use([reserving])
        assert limiter.decide("p", "s").hit == hit, "the same instant"
        self.clock.advance(seconds=11)
        assert limiter.usage("p", "s")[0].used == 1

    def test_channels_and_the_overall_limit_are_one_step(self) -> None:
        limiter = self.one("3/day", channels={"push": ["2/day"], "email": ["1/day", "4/week"]})
        assert limiter.decide("p", "s", channel="push")
        assert limiter.decide("p", "s", channel="email")
        refused = limiter.decide("p", "s", channel="email")
        assert (refused.allowed, str(refused.limit)) == (False, "1/day")
        assert limiter.peek("p", "s", channel="push").remaining == 0
        assert limiter.decide("p", "s", channel="push")
        assert str(limiter.decide("p", "s", channel="push").limit) == "3/day"
        assert not limiter.decide("p", "s")

    def test_a_refund_on_a_channel_gives_back_both(self) -> None:
        limiter = self.one("2/day", channels={"push": ["1/day"], "email": ["2/day"]})
        hit = limiter.decide("p", "s", channel="push").hit
        assert limiter.decide("p", "s", channel="email")
        assert limiter.refund("p", "s", hit) is True
        assert limiter.decide("p", "s", channel="push")
        assert not limiter.decide("p", "s", channel="email")

    def test_policies_that_share_a_log_count_each_others_hits(self) -> None:
        limiter = self.limiter(self.policy("a", ["2/day"], log="all"), self.policy("b", ["3/week"], log="all"))
        assert limiter.decide("a", "s")
        assert limiter.decide("b", "s")
        assert not limiter.decide("a", "s")
        self.at(2 * 86_400)
        assert limiter.decide("b", "s")
        assert not limiter.decide("b", "s")
