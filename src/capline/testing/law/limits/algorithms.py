"""The other algorithms, each with its own law, and refusals that count."""

import random

import pytest

from capline.model.attempt import Attempt
from capline.model.errors import IdConflictError, PolicyError
from capline.model.limit import Limit
from capline.testing.examples import examples
from capline.testing.setting import ALGORITHMS, SECOND, StoreSetting, each_algorithm

HOUR = 3600 * SECOND


class AlgorithmLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_a_refusal_that_counts_is_in_its_own_answer: 1/10s | count_denied=True
            decide -> yes; 9: peek -> after 1; decide -> after 10; 18.999999: peek -> after 0.000001; 19: decide -> yes
        test_a_refusal_that_counts_of_more_than_a_quota_names_the_limit: 5/20s, 3/10s | count_denied=True
            decide cost=4 -> no, after never, by 3/10s
        test_a_slot_is_not_lost_to_a_refusal_that_counts: 2/10s | count_denied=True
            decide 2 -> yes; a = schedule not_before=30; decide -> no; refund $a -> yes
        test_an_id_is_one_consumption_under_every_algorithm: 5/10s | algorithm=*
            decide -> yes; a = decide 2 id=x; decide 2 id=x -> yes, hit $a, left 2; decide 2 -> yes
            decide 1 id=x -> raises IdConflictError; refund $a -> yes no; decide 2 id=x -> yes, new; decide -> no
        test_a_hit_says_when_the_sum_frees_that_it_joins: 10/10s | algorithm=bucketed | granularity=1s
            decide -> frees 10, whole 10, empty 10; 0.3: peek -> frees 10.000001, whole 10.000001, empty 10.000001
            decide -> frees 10.000001, whole 10.000001, empty 10.000001; usage -> frees 10.000001, whole 10.000001
            0.5: peek id=x -> frees 9.800001, whole 10, empty 10; decide_all p:2 -> empty 10.000001
            usage -> frees 10.000001; 1.2: decide 2 -> frees 9.300001, whole 10, empty 10
            1.7: schedule -> frees 8.800001, whole 10.000001, empty 10.000001; 1.8: decide id=x -> whole 10, empty 10
        test_a_sum_that_a_hit_takes_over_midnight_is_of_the_new_day: 5/calendar-day | algorithm=bucketed
            | granularity=6h | zone=Asia/Kathmandu
            71500: charge 2 -> left 3; 72200: peek -> left 2; decide -> left 2; usage -> used 3; decide 2 -> left 0
        test_a_refund_gives_its_units_back_under_every_algorithm: 5/10s | algorithm=*
            decide 2 -> yes; a = decide 3; decide -> no; refund $a 3 -> yes; decide 3 -> left 0
            refund 1699999900000000 -> no
        test_a_clock_that_steps_back_gives_no_room_under_any_algorithm: 3/10s | algorithm=*
            decide 3 -> yes; -7200: decide -> no; 0: decide -> no
        test_erase_and_sweep_under_every_algorithm: 3/10s | algorithm=*
            decide 3 id=x -> yes; erase -> yes; decide 3 id=x -> yes; 60: sweep; decide 3 id=x -> yes
        test_gcra_spaces_out_what_comes_after_a_burst: 10/10s | algorithm=gcra
            decide 10 -> empty 10; decide -> no, after 1; 1: decide -> yes no, left 0 0, after 0 1
            2: decide -> yes no, left 0 0, after 0 1; 3: decide -> yes no, left 0 0, after 0 1
            4: decide -> yes no, left 0 0, after 0 1; 5: decide -> yes, left 0; schedule -> wait 1 2 3
        test_limits_of_gcra_that_do_not_divide_are_exact: 7/11us | algorithm=gcra
            decide 7 -> yes; 0.000001: decide -> no; 0.000002: decide -> yes; 0.000011: peek -> left 5
        test_a_refunded_id_takes_no_later_units: 5/10s | algorithm=*
            a = decide 2 id=x; refund $a 2 -> yes; b = decide 2; refund $a 2 -> no; usage -> used 2; refund $b 2 -> yes
            c = decide 2 id=x -> yes; refund $c 2 -> yes; d = decide 2; refund $c 2 -> no; usage -> used 2
            refund $d 2 -> yes
            decide 2 id=x -> yes
        test_refusals_that_are_kept_count_until_they_age_whatever_is_given_back: 3/10s | count_denied=True
            a = decide 3; 1: decide x40 -> no; usage -> used 10; refund $a 3 -> yes; usage -> used 7; use 12/10s
            usage -> used 7; 10.999999: usage -> used 7; 11.00004: usage -> used 0
        test_only_decide_counts_its_refusals: 1/10s | count_denied=True
            decide -> yes; 5: peek -> no; schedule max_wait=1 -> no; decide_all p:1 -> no; 10: peek -> yes
            decide -> yes no no no; explain -> hits 4
        test_two_weighted_windows: 10/10s | algorithm=sliding_counter
            4: decide 10 -> yes; 15: peek -> yes, left 4; decide 5 -> yes; decide 3 -> no, after 3
            decide -> no, after 1; 20: peek -> left 4
        test_fixed_windows_are_counted_each_by_itself: 5/10s | algorithm=fixed_window
            9: decide 3 -> empty 1; decide 2 -> left 0; decide -> no, after 1, empty 1, by 5/10s; 10: decide 5 -> left 0
            decide -> after 10; schedule 3 -> wait 10 20 30; explain -> hits 0
        test_what_is_refused_may_keep_the_door_shut: 3/10s | count_denied=True
            decide x3 -> yes; 9: decide -> no no; 10: decide -> yes no no
        test_a_quota_at_once_and_no_more_under_every_algorithm: 5/10s | algorithm=*
            a = decide -> left 4; b = decide -> left 3, new; c = decide -> left 2, new; d = decide -> left 1, new
            decide -> yes, left 0, new; decide -> no, left 0, hit none; decide 6 -> no, after never
        """)
    )

    # --- refusals that count ----------------------------------------------------------------------------------

    def test_hammering_leaves_a_short_log_and_a_large_cost_no_larger_one(self) -> None:
        limiter = self.one("3/10s", count_denied=True)
        for _ in range(50):
            self.clock.advance_us(1000)
            limiter.decide("p", "s")
        limiter.decide("p", "s", (1 << 53) - 1)
        hits = limiter.explain("p", "s").hits
        assert len(hits) <= 8
        assert sum(hit.units for hit in hits) <= 12
        self.clock.advance_us(10 * SECOND + 1)
        assert limiter.decide("p", "s", 3)

    # --- other algorithms -------------------------------------------------------------------------------------

    @each_algorithm
    def test_refused_until_retry_after_and_allowed_at_it_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("7/11s", "20/100s", algorithm=algorithm)
        for step in range(60):
            self.clock.advance_us(300_007)
            cost = 1 + step % 3
            refused = limiter.peek("p", "s", cost)
            if refused.allowed:
                assert limiter.decide("p", "s", cost).remaining == refused.remaining
                continue
            self.clock.advance_us(refused.retry_after_us - 1)
            assert not limiter.peek("p", "s", cost)
            self.clock.advance_us(1)
            assert limiter.decide("p", "s", cost)

    @each_algorithm
    def test_a_decision_says_of_its_limits_what_usage_says_after_it(self, algorithm: str) -> None:
        options = {"granularity": "1s"} if algorithm == "bucketed" else {}
        limiter = self.one("9/11s", "30/100s", algorithm=algorithm, **options)
        moves = random.Random(algorithm)  # noqa: S311 - the same each time
        for step in range(90):
            self.clock.advance_us(moves.choice([0, 1, 400_003, 400_003, 2_700_001]))
            decision = limiter.decide("p", "s", moves.choice([1, 1, 2]), id=moves.choice([None, None, f"m{step}"]))
            assert decision.limits == limiter.usage("p", "s"), (step, decision)

    @each_algorithm
    def test_an_empty_log_after_reset_after_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("5/10s", algorithm=algorithm)
        for cost in (1, 3):
            decision = limiter.decide("p", "s", cost)
            self.clock.advance_us(700_000)
        assert decision.reset_after_us is not None
        self.clock.advance_us(decision.reset_after_us - 700_000)
        assert limiter.peek("p", "s", 5)
        assert limiter.peek("p", "s").reset_after_us == limiter.peek("p", "fresh").reset_after_us

    @each_algorithm
    def test_what_a_retry_gets_back_under_every_algorithm(self, algorithm: str) -> None:
        """The same hit, allowed. What is left: as at the first answer where hits are kept, else as of now."""
        limiter = self.one("20/10s", algorithm=algorithm)
        keeps_hits = algorithm in {"sliding_log", "bucketed"}
        early = limiter.decide("p", "s", 3, id="early")
        self.at(1)
        first = limiter.decide("p", "s", 2, id="x")

        def retried(more: int) -> None:
            """`more` units are free that were not when the first answer was given."""
            again, now = limiter.decide("p", "s", 2, id="x"), limiter.peek("p", "s", 0)
            left = first.remaining + more if keeps_hits else now.remaining
            assert (again.allowed, again.hit, again.retry_after_us, again.remaining) == (True, first.hit, 0, left)
            assert again.limits[0].remaining == left

        retried(0)
        self.at(2)
        assert limiter.decide("p", "s", 4)
        retried(0)
        assert limiter.settle("p", "s", early.hit, 1)
        retried(2)
        assert limiter.refund("p", "s", early.hit)
        retried(3)
        assert limiter.settle("p", "s", first.hit, 5)
        with pytest.raises(IdConflictError):
            limiter.decide("p", "s", 2, id="x")
        assert limiter.decide("p", "s", 5, id="x").hit == first.hit

    @each_algorithm
    def test_what_has_aged_is_not_given_back_where_the_clock_has_stepped_back(self, algorithm: str) -> None:
        limiter = self.one("5/20s", "11/70s", algorithm=algorithm)
        kept_s = 140 if algorithm == "sliding_counter" else 70
        hit = limiter.decide("p", "s").hit
        for share in (0.7, 0.9, 1.1):
            self.at(share * kept_s)
            assert limiter.decide("p", "s")
        self.at(0.9 * kept_s)
        assert not limiter.refund("p", "s", hit)

    @each_algorithm
    def test_slots_are_taken_in_order_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("2/10s", algorithm=algorithm)
        slots = [limiter.schedule("p", "s") for _ in range(6)]
        waits = [slot.wait_us for slot in slots]
        assert waits == sorted(waits)
        assert waits[0] == 0
        assert waits[-1] >= 15 * SECOND
        assert not limiter.decide("p", "s"), "nobody jumps the queue"
        assert limiter.schedule("p", "s", max_wait=1).allowed is False
        if algorithm != "sliding_log":
            return
        assert limiter.refund("p", "s", slots[-1].hit)

    @each_algorithm
    def test_a_batch_equals_one_by_one_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.limiter(*(self.policy(name, ["3/10s"], algorithm=algorithm) for name in ("one", "many")))
        for step in range(4):
            subjects = [f"s{i * (step + 1) % 5}" for i in range(30)]
            singles = [limiter.decide("one", subject) for subject in subjects]
            answers = limiter.decide_many("many", subjects)
            assert answers.allowed.tolist() == [answer.allowed for answer in singles]
            assert answers.remaining.tolist() == [answer.remaining for answer in singles]
            self.clock.advance_us(4 * SECOND + 1)

    def test_a_bucketed_log_errs_only_towards_refusing(self) -> None:
        exact, bucketed = (
            self.one("20/60s"),
            self.limiter(self.policy("b", ["20/60s"], algorithm="bucketed", granularity="5s")),
        )
        refused = 0
        for step in range(200):
            self.clock.advance_us(1_700_003 + step % 7 * 10_001)
            coarse = bucketed.decide("b", "s")
            refused += not coarse
            if coarse:
                assert exact.decide("p", "s"), "what the sums let in, the log does"
        assert 30 < refused < 120
        assert len(bucketed.explain("b", "s").hits) <= 13

    def test_a_day_in_minutes_is_1440_sums(self) -> None:
        limiter = self.one("100000/day", algorithm="bucketed", granularity="1min")
        for _ in range(300):
            self.clock.advance_us(20 * SECOND)
            assert limiter.decide("p", "s", 7)
        assert len(limiter.explain("p", "s").hits) == 101

    def test_an_override_has_a_granularity_of_its_own(self) -> None:
        limiter = self.limiter(
            self.policy("p", ["600/hour"], algorithm="bucketed", granularity="1min"), config="memory://"
        )
        with pytest.raises(PolicyError, match="granularity"):
            limiter.override("p", "s", ["5/s"])
        assert limiter.decide("p", "s", 3)
        limiter.override("p", "s", ["5/s", "600/hour"], granularity="100ms")
        assert limiter.decide("p", "s", 2)
        assert limiter.decide("p", "s").limit == Limit.parse("5/s"), "what was counted by the minute counts on"
        self.at(1.1)
        assert limiter.decide("p", "s", 4), "it leaves the window one granularity late, not one minute"
        self.at(1.25)
        assert limiter.decide_many("p", ["s", "s", "t"]).allowed.tolist() == [True, False, True]
        self.at(2.15)
        assert limiter.decide("p", "s", 4), "4 of the 5 are older than a second: each 100 ms is a sum"
        assert [hit.units for hit in limiter.explain("p", "s").hits] == [5, 4, 1, 4]

    def test_a_change_of_granularity_forgets_nothing_and_admits_no_unit_too_many(self) -> None:
        sums = self.policy("p", ["90/hour"], algorithm="bucketed", granularity="1min")
        limiter = self.limiter(sums, self.policy("q", ["90/hour"]), config="memory://")
        chance = random.Random(5)  # noqa: S311 - a history
        refused = 0
        for step in range(240):
            if step % 20 == 0:
                limits, granularity = (
                    (["5/s", "90/hour"], "100ms"),
                    (None, None),
                    (["5/s", "90/hour"], "400ms"),
                    (["20/min", "90/hour"], "10s"),
                )[step // 20 % 4]
                limiter.override("p", "s", limits, granularity=granularity)
                limiter.override("q", "s", limits)
            self.clock.advance_us(chance.choice((0, 1, 30_000, 210_000, 1_300_000, 17_000_000)))
            cost = chance.choice((1, 1, 3))
            if limiter.decide_many("p", ["s"], cost=cost).allowed[0]:
                assert limiter.decide("q", "s", cost), "what the sums let in, the log does"
            else:
                refused += 1
            assert limiter.usage("p", "s")[-1].used >= limiter.usage("q", "s")[-1].used
        assert 30 < refused < 210

    def test_a_refund_goes_by_the_subjects_own_granularity(self) -> None:
        limiter = self.limiter(self.policy("p", ["9/hour"], algorithm="bucketed", granularity="1s"), config="memory://")
        limiter.override("p", "s", ["9/hour"], granularity="1min")
        named = limiter.decide("p", "s", 2, id="m1").hit
        first = limiter.decide_many("p", ["s"], cost=2).hit
        self.at(30)
        assert limiter.decide("p", "s")
        assert limiter.refund_many("p", ["s"], first, 2).tolist() == [True]
        limiter.override("p", "s", None)
        assert [limiter.refund("p", "s", named, 2) for _ in range(2)] == [True, False], "an id is found by its hit"
        assert limiter.usage("p", "s")[0].used == 1

    @pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
    def test_a_log_that_has_not_every_hit_is_not_exported(self, algorithm: str) -> None:
        limiter = self.limiter(self.policy("p", ["3/10s"], algorithm=algorithm), self.policy("q", ["3/10s"]))
        assert limiter.decide("p", "s")
        assert limiter.decide("q", "s")
        with pytest.raises(PolicyError, match="does not keep every hit"):
            list(limiter.export(["p"]))
        assert [record.log for record in limiter.export()] == ["q"]

    @each_algorithm
    def test_explain_tells_what_is_left_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("5/10s", "8/60s", algorithm=algorithm)
        assert limiter.decide("p", "s", 3, id="x")
        why = limiter.explain("p", "s", ids=["x"])
        assert [(str(state.limit), state.used, state.remaining) for state in why.limits] == [
            ("5/10s", 3, 2),
            ("8/minute", 3, 5),
        ]
        assert [state.binds for state in why.limits] == [True, False]
        assert [(hit.units, hit.id) for hit in why.hits] == [(3, "x")]

    @each_algorithm
    def test_remaining_means_the_same_in_every_answer_under_every_algorithm(self, algorithm: str) -> None:
        limiter = self.one("4/10s", "6/60s", algorithm=algorithm)
        for step in range(14):
            self.clock.advance_us(1_300_007)
            why = limiter.explain("p", "s")
            left_now = min(state.remaining for state in why.limits)
            answers = [why.decision.remaining]
            answers += [limiter.peek("p", "s").remaining, limiter.peek_all([Attempt("p", "s")]).remaining]
            answers += limiter.peek_many("p", ["s"]).remaining.tolist()
            decided = limiter.decide("p", "s")
            assert answers == [decided.remaining] * 4, f"step {step}: after this attempt, if it is allowed"
            assert left_now == decided.remaining + decided.allowed, "explain says what is left before it"
            if decided.allowed:
                left = decided.remaining
                assert bool(limiter.peek("p", "s", left)) is True if left else not limiter.peek("p", "s")
                assert not limiter.peek("p", "s", left + 1)
