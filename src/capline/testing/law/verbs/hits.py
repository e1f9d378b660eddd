"""Hits afterwards: refunds, ids, peeks, explanations, erasure and sweeping."""

from capline.model.decision import Decision
from capline.testing.examples import examples
from capline.testing.setting import DAY, SECOND, START_US, StoreSetting


class HitLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_a_refund_gives_back_exactly_that_hit_once: 3/day
            a = decide; b = decide; c = decide; refund $b -> yes no; decide -> yes, new; refund $b -> no
            refund 12345 -> no
            refund none -> no; refund of=stranger $a -> no; decide -> no
        test_a_refund_of_the_newest_hit_never_frees_its_stamp_for_another: 1/day
            a = decide; refund $a -> yes; decide -> yes, new; refund $a -> no; decide -> no
        test_a_refund_of_a_cost_gives_back_all_of_it: 10/day
            a = decide 7; decide 4 -> no; refund $a -> yes; decide 10 -> yes
        test_a_hit_out_of_every_window_is_not_refunded: 1/day
            a = decide; 86399.999999: refund $a -> yes; b = decide; later 86400; refund $b -> no
        test_the_same_id_is_one_consumption: 2/day
            a = decide id=m1 -> yes, left 1, empty 86400; decide -> left 0
            decide id=m1 -> yes, hit $a, left 1, after 0, empty 86400, by 2/day; peek id=m1 -> hit $a
            decide id=m2 -> no
            86400: decide id=m1 -> yes, new
        test_the_same_id_with_another_cost_is_an_error: 9/day
            decide 2 id=m1; decide 3 id=m1 -> raises IdConflictError; peek -> left 6
        test_a_refunded_id_is_free_again: 1/day
            a = decide id=m1; refund $a -> yes; decide id=m1 -> yes, new
        test_a_retry_does_not_count_what_has_left_every_window: 9/day
            decide; 10: a = decide id=m1 -> left 7; 86405: decide id=m1 -> hit $a, left 8
        test_erase_forgets_a_subject_in_every_policy: 1/day | policy.b=1/day | channels.push=1/day
            decide; decide on=b channel=push; decide of=other; erase -> gives 3 0; decide -> yes
            decide on=b channel=push -> yes; decide of=other -> no
        """)
    )

    def test_peek_and_refusals_change_nothing(self) -> None:
        limiter = self.one("2/10s", "3/min")
        limiter.decide("p", "s")
        before = limiter.explain("p", "s")
        for _ in range(5):
            assert limiter.peek("p", "s").remaining == 0
            assert not limiter.decide("p", "s", 2)
        assert limiter.explain("p", "s") == before
        peeked = limiter.peek("p", "s")
        decided = limiter.decide("p", "s")
        assert peeked.hit is None
        assert _but_hit(peeked) == _but_hit(decided)

    def test_explain_tells_what_counts_and_when_it_frees(self) -> None:
        limiter = self.one("3/min", "4/h")
        limiter.decide("p", "s", 2)
        self.at(90)
        limiter.decide("p", "s")
        why = limiter.explain("p", "s")
        assert [(str(state.limit), state.used, state.remaining) for state in why.limits] == [
            ("3/minute", 1, 2),
            ("4/hour", 3, 1),
        ]
        assert why.limits[1].frees == ((START_US + 3600 * SECOND, 2), (START_US + 3690 * SECOND, 1))
        assert [(hit.stamp_us - START_US, hit.units) for hit in why.hits] == [(0, 2), (90 * SECOND, 1)]

    def test_sweep_removes_what_is_out_of_every_window_and_nothing_else(self) -> None:
        limiter = self.one("2/day", "3/week")
        for subject in range(50):
            limiter.decide("p", subject)
        self.at(86_400)
        for subject in range(10):
            limiter.decide("p", subject)
        self.clock.advance_us(6 * DAY - 1)
        assert limiter.sweep() == 0
        assert len(limiter.explain("p", 40).hits) == 1
        self.clock.advance_us(1)
        assert limiter.sweep() == 40
        assert limiter.peek("p", 5).remaining == 1
        assert len(limiter.explain("p", 40).hits) == 0

    def test_explain_names_the_limit_that_binds_and_the_ids_that_it_is_given(self) -> None:
        limiter = self.one("3/min", "4/h", channels={"push": ["1/h"]})
        limiter.decide("p", "s", id="campaign/7")
        limiter.decide("p", "s", id="m1", channel="push")
        limiter.decide("p", "s")
        why = limiter.explain("p", "s", ids=["m1", "never", "campaign/7"])
        assert [hit.id for hit in why.hits] == ["campaign/7", "m1", None]
        assert [hit.id for hit in limiter.explain("p", "s").hits] == [None] * 3
        assert [(str(state.limit), state.binds) for state in why.limits] == [("3/minute", True), ("4/hour", False)]
        on_push = limiter.explain("p", "s", channel="push")
        assert [str(state.limit) for state in on_push.limits if state.binds] == ["1/hour"]
        assert str(on_push.decision.limit) == "1/hour"


def _but_hit(decision: Decision) -> tuple[object, ...]:
    return decision.allowed, decision.limit, decision.remaining, decision.retry_after_us, decision.reset_after_us
