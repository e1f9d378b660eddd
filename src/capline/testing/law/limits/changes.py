"""What a change of a policy's limits or algorithm keeps of what was used."""

from typing import Any

import pytest

from capline.model.attempt import Attempt
from capline.model.policy import LOGS
from capline.testing.examples import examples
from capline.testing.setting import ALGORITHMS, SECOND, StoreSetting, begins_next, each_algorithm

COUNTERS = ("sliding_counter", "fixed_window", "gcra")
each_counter = pytest.mark.parametrize("algorithm", COUNTERS)
each_change = pytest.mark.parametrize(
    ("before", "algorithm"), [(before, after) for before in COUNTERS for after in ALGORITHMS if after != before]
)


each_hits = pytest.mark.parametrize(
    ("before", "algorithm"), [(before, after) for before in COUNTERS for after in ("sliding_log", "bucketed")]
)


class ChangeLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_what_is_out_of_a_window_is_not_carried_into_it: 100/day | each=sliding_counter,fixed_window,gcra
            decide 50 -> yes; 3600: decide 2 -> yes; use 3/hour 60/day algorithm=*; usage -> used 2+52
            decide -> yes no no
        test_a_carried_hit_is_given_back_once_and_takes_nothing_else: 3/hour | each=sliding_counter,fixed_window,gcra
            a = decide; b = decide; decide -> yes; use 3/hour algorithm=*; refund $a -> yes no; usage -> used 2
            decide -> yes
            refund $b -> yes no; decide -> yes no no no
        test_a_hit_on_a_channel_is_given_back_where_channels_were_given_up_for_sums: 3/hour
            | channels.push=1/hour | each=bucketed,sliding_counter,fixed_window,gcra
            a = decide channel=push id=x; use 3/hour algorithm=*; decide -> yes; refund $a -> yes no; usage -> used 1
        test_hits_of_a_sum_are_not_given_back_for_one_another: 9/hour | algorithm=bucketed | granularity=10min
            a = decide; decide -> yes; 1: b = decide 2; 5: c = decide 3; usage -> used 7; use 9/hour
            refund $c -> no; refund $a -> no; usage -> used 7; d = decide 2; refund $d -> yes no; usage -> used 7
        test_a_hit_that_no_other_joined_is_given_back_under_hits: 9/hour | algorithm=bucketed | granularity=10min
            a = decide 3; use 9/hour; refund $a -> yes no; usage -> used 0
        test_numbers_take_over_no_reservation_that_has_ended: 9/hour
            | reservations=True | each=sliding_counter,fixed_window,gcra
            a = reserve 2 ttl=10; decide 3 -> yes; b = reserve 2 ttl=10; commit $b -> yes
            20: use 9/hour algorithm=*; usage -> used 5; decide 5 -> no; decide 4 -> yes; usage -> used 9
            refund $a -> no; usage -> used 9
        test_policies_that_share_a_log_keep_each_its_own_numbers: 2/hour | policy.d=3/day
            | log=both | algorithm=* | each=sliding_counter,fixed_window,gcra
            decide id=a -> yes; decide id=b -> yes; decide on=d id=c -> yes; decide on=d id=d -> yes
            decide on=d id=e -> yes
            1: decide -> no; decide on=d -> no
        test_another_quota_counts_what_was_used: 10/hour
            | algorithm=* | each=sliding_counter,fixed_window,gcra | numbers=True
            decide 10 -> yes; use 11/hour algorithm=*; peek 0 -> left 1; decide -> yes no; use 10/hour algorithm=*
            decide -> no; decide 10 of=other -> yes
        test_a_lower_quota_blocks_no_longer_than_itself: 100/hour
            | algorithm=* | each=sliding_counter,fixed_window,gcra | numbers=True
            decide 100 -> yes; use 3/hour algorithm=*; decide -> no; 7200: decide -> yes yes yes no
        test_another_window_counts_what_the_nearest_showed: 4/hour, 50/day
            | algorithm=* | each=sliding_counter,fixed_window,gcra | numbers=True
            decide 4 -> yes; use 5/2hour 60/week algorithm=*; usage -> used 4+4; decide -> yes no; use 9/min algorithm=*
            decide -> yes yes yes yes no
        test_a_reservation_begins_with_the_numbers_before: 5/hour | algorithm=fixed_window
            decide 2 -> yes; use 5/hour reservations=True; a = reserve 2 ttl=10; usage -> used 4; commit $a -> yes
            20: decide -> yes no no
        test_numbers_of_another_algorithm_are_never_damage: 6/30us, 9/60us
            decide -> yes; a = decide 2; later 0.000001; charge 9 -> yes; use 6/30us 9/60us algorithm=sliding_counter
            schedule -> wait 4.6e-05; use 6/30us 9/60us algorithm=gcra; refund $a -> yes; schedule -> yes
            usage -> names p+p
        """)
    )

    @each_counter
    @pytest.mark.parametrize("before", ["sliding_log", "bucketed"])
    def test_numbers_begin_with_what_the_hits_before_add_up_to(self, before: str, algorithm: str) -> None:
        limiter = self.one("10/hour", algorithm=before)
        assert limiter.decide("p", "s", 4, id="x")
        assert limiter.decide("p", "s", 6)
        limiter.use([self.policy("p", ["10/hour", "11/day"], algorithm=algorithm)])
        assert self.used(limiter) == [10, 10]
        assert not limiter.decide("p", "s")
        assert not limiter.decide_all([Attempt("p", "s")])
        assert not limiter.decide_many("p", ["s"]).allowed.any()
        assert limiter.decide("p", "s", 4, id="x"), "its first answer"
        limiter.use([self.policy("p", ["12/hour"], algorithm=algorithm)])
        assert sum(bool(limiter.decide("p", "s")) for _ in range(5)) == 2
        assert limiter.decide("p", "other", 12)

    @each_algorithm
    def test_a_policy_that_is_read_again_goes_on(self, algorithm: str) -> None:
        limiter = self.one("5/20s", "11/70s", algorithm=algorithm)
        assert limiter.decide("p", "s")
        limiter.use([self.policy("p", ["5/20s", "11/70s"], algorithm=algorithm)])
        assert [*limiter.decide_many("p", ["s"] * 2, cost=2).allowed] == [True, True]
        assert [*limiter.decide_many("p", ["s", "t"]).allowed] == [False, True]

    def test_numbers_are_kept_as_long_as_the_hits_that_they_took_over(self) -> None:
        """A refund takes a level back to before the slots that it took over; then it is swept before these age.

        Where each number has a log of its own they are carried over once more, and refuse for as long as they count.
        """
        limiter = self.one("4/10s")
        hits = [limiter.decide("p", "s").hit for _ in range(4)]
        assert all(limiter.schedule("p", "s").wait_us for _ in range(2))
        limiter.use([self.policy("p", ["4/10s"], algorithm="gcra")])
        hits.append(limiter.charge("p", "s", 1).hit)
        self.at(1)
        assert all(limiter.refund("p", "s", hit) for hit in hits[2:])
        self.at(18)
        limiter.sweep()
        assert self.used(limiter) == [0 if begins_next(self.url) else 2]
        self.at(21)
        assert limiter.decide("p", "s", 4)
        self.at(41)
        assert limiter.sweep()

    @each_hits
    def test_hits_count_on_from_the_numbers_and_take_over_once(self, before: str, algorithm: str) -> None:
        limiter = self.numbers("10/hour", then=algorithm, algorithm=before)
        named = limiter.decide("p", "s", 2, id="x").hit
        assert limiter.decide("p", "s", 3)
        limiter.use([self.policy("p", ["10/hour"], algorithm=algorithm)])
        if algorithm == "sliding_log":
            assert limiter.settle("p", "s", named, 1)
        assert limiter.refund("p", "s", named)
        assert not limiter.refund("p", "s", named)
        assert limiter.usage("p", "s")[0].used == 3
        hit = limiter.decide("p", "s", 7).hit
        assert not limiter.decide("p", "s")
        self.clock.advance(seconds=60)
        assert limiter.refund("p", "s", hit, 7)
        assert [limiter.decide("p", "s", 8).allowed, limiter.decide("p", "s", 7).allowed] == [False, True]
        self.clock.advance(seconds=3545)
        assert limiter.usage("p", "s")[0].used == 7, "what was taken over is out of the window, and comes not again"
        self.clock.advance(seconds=60)
        assert limiter.decide("p", "s", 10)

    @each_hits
    def test_hits_take_over_the_numbers_of_an_override(self, before: str, algorithm: str) -> None:
        limiter = self.numbers("3/hour", then=algorithm, algorithm=before)
        limiter.override("p", "s", ["5/hour"])
        assert limiter.decide("p", "s", 4)
        limiter.use([self.policy("p", ["3/hour"], algorithm=algorithm)])
        assert self.allowed(limiter) == 1

    def test_a_process_that_still_keeps_numbers_is_counted(self) -> None:
        if self.url.startswith("memory:"):
            pytest.skip("of one process")
        old, new = (self.numbers("10/hour", then="sliding_log", algorithm="sliding_counter") for _ in range(2))
        new.use([self.policy("p", ["10/hour"])])
        for step in range(12):
            self.clock.advance_us(SECOND)
            assert bool((new if step % 3 else old).decide("p", "s")) == (step < 10)
            if step < 10:
                assert self.used(new) == [step + 1]

    def numbers(self, *limits: str, then: str = "", **options: Any) -> Any:
        """A limiter of one policy, "p", whose numbers lie in one value, or that is one of hits then."""
        if not begins_next(self.url) and then not in LOGS:
            pytest.skip("each number has a log of its own here: a new one begins without")
        return self.limiter(self.policy("p", list(limits), **options), config="memory://")

    def allowed(self, limiter: Any, most: int = 20) -> int:
        """How many units are allowed now, each for itself."""
        return sum(bool(limiter.decide("p", "s")) for _ in range(most))

    @each_counter
    def test_a_longer_window_is_nearer_than_a_shorter_one(self, algorithm: str) -> None:
        limiter = self.numbers("4/hour", "50/day", algorithm=algorithm)
        assert limiter.decide("p", "s", 4)
        self.clock.advance(seconds=3000)
        of_day = limiter.usage("p", "s")[1].used
        limiter.use([self.policy("p", ["60/2hour"], algorithm=algorithm)])
        assert limiter.usage("p", "s")[0].used == of_day

    @each_change
    def test_another_algorithm_counts_what_was_used(self, before: str, algorithm: str) -> None:
        limiter = self.numbers("10/hour", "40/day", then=algorithm, algorithm=before)
        assert all(limiter.decide("p", name, 4, id="x") and limiter.decide("p", name, 6) for name in ("s", "t", 7))
        limiter.use([self.policy("p", ["10/hour", "11/day"], algorithm=algorithm)])
        assert self.used(limiter) == [10, 10]
        assert not limiter.decide_many("p", ["t", "s"]).allowed.any()
        assert not any(limiter.decide_batch([Attempt("p", 7), Attempt("p", "s", 5)]))
        assert not limiter.schedule("p", "s", max_wait=10)
        assert not limiter.decide("p", "s")
        assert not limiter.decide_all([Attempt("p", "s")])
        assert limiter.decide("p", "s", 4, id="x"), "its first answer"
        limiter.use([self.policy("p", ["12/hour"], algorithm=algorithm)])
        assert self.allowed(limiter) == 2
        limiter.use([self.policy("p", ["12/hour", "50/day"], algorithm=before)])
        assert self.allowed(limiter) == 0
        assert limiter.decide("p", "other", 12)

    @each_change
    def test_a_hit_of_before_is_given_back_from_what_was_carried(self, before: str, algorithm: str) -> None:
        limiter = self.numbers("3/hour", then=algorithm, algorithm=before)
        named = limiter.decide("p", "s", id="x").hit
        hits = [limiter.decide("p", "s").hit for _ in range(2)]
        limiter.use([self.policy("p", ["2/hour"], algorithm=algorithm)])
        assert [limiter.refund("p", "s", named) for _ in range(2)] == [True, False]
        assert self.allowed(limiter) == 1
        for hit in hits * 2:
            limiter.refund("p", "s", hit)
        # Of two carried units one was left; a log does not know whose its units were, a sum gives up what it has.
        assert limiter.usage("p", "s")[0].used == {"sliding_log": 2, "bucketed": 0}.get(algorithm, 1)

    @each_counter
    def test_refusals_after_a_change_do_not_renew_what_was_carried(self, algorithm: str) -> None:
        limiter = self.numbers("100/day", algorithm=algorithm)
        assert limiter.decide("p", "s", 50)
        limiter.use([self.policy("p", ["3/hour"], algorithm=algorithm)])
        assert not limiter.decide("p", "s")
        for _ in range(12):
            self.clock.advance(seconds=600)
            assert limiter.peek("p", "s", 3).limit.quota == 3
            limiter.decide("p", "s", 4)
        assert self.allowed(limiter) == 3

    def test_a_level_fades_while_its_quota_changes(self) -> None:
        limiter = self.numbers("4/hour", algorithm="gcra")
        assert limiter.decide("p", "s", 4)
        for number in range(3600):
            self.clock.advance_us(SECOND)
            limiter.use([self.policy("p", [f"{4 + number % 2}/hour"], algorithm="gcra")])
            limiter.decide("p", "s", 9)
        assert limiter.usage("p", "s")[0].used <= 1

    @pytest.mark.parametrize("algorithm", ["sliding_log", "bucketed", *COUNTERS])
    def test_numbers_of_before_are_forgotten_with_the_subject(self, algorithm: str) -> None:
        for verb in ("erase", "flush"):
            before = "fixed_window" if algorithm == "gcra" else "gcra"
            limiter = self.numbers("3/hour", then=algorithm, algorithm=before)
            limiter.erase("s")
            assert limiter.decide("p", "s", 3)
            limiter.use([self.policy("p", ["2/hour"], algorithm=algorithm)])
            assert limiter.erase("s") == 1 if verb == "erase" else limiter.flush("p") == 1
            assert limiter.decide("p", "s", 2)

    def test_numbers_of_before_are_not_exported_as_hits(self) -> None:
        limiter = self.numbers("3/hour", algorithm="gcra")
        assert limiter.decide("p", "s", 3)
        limiter.use([self.policy("p", ["3/hour"])])
        assert not [record for record in limiter.export() if record.hits]

    @each_counter
    def test_limits_of_an_override_count_what_was_used(self, algorithm: str) -> None:
        limiter = self.numbers("3/hour", algorithm=algorithm)
        assert limiter.decide("p", "s", 3)
        for limits, allowed in ((["4/hour"], 1), (["3/day"], 0), (None, 0)):
            limiter.override("p", "s", limits)
            assert self.allowed(limiter) == allowed
