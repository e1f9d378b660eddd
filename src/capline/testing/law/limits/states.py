"""`limits` and `headers` of an answer: every limit's state, as `capline.window` has it, from the step that decided."""

import random
from typing import Any

import pytest

from capline.model.attempt import Attempt
from capline.model.decision import Decision
from capline.model.limit import LARGEST_QUOTA
from capline.model.policy import Policy
from capline.testing.examples import examples
from capline.testing.reference import Reference
from capline.testing.setting import SECOND, StoreSetting, each_algorithm


def _told(decision: Decision) -> list[tuple[str, int, float | None, float]]:
    return [(str(state.limit), state.remaining, state.frees_in, state.whole_in) for state in decision.limits]


class StateLaw(StoreSetting):
    """The checks."""

    vars().update(
        examples("""
        test_each_limit_has_a_state_of_its_own: 3/minute, 100/hour
            decide -> free 2+99, frees 60.0+3600.0, whole 60.0+3600.0, names p+p
            10: decide 2 -> free 0+97, frees 50.0+3590.0, whole 60.0+3600.0
            30: decide -> no, free 0+97, frees 30.0+3570.0, whole 40.0+3580.0, after 30
        test_where_nothing_is_used_there_is_nothing_to_wait_for: 3/minute, 0/hour
            decide -> no, free 3+0, frees 0.0+None, whole 0.0+0.0
        test_a_peek_tells_what_would_be: 3/minute, 9/hour
            decide; 1: peek 2 -> free 0+6, frees 59.0+3599.0, whole 60.0+3600.0
            decide 2 -> free 0+6, frees 59.0+3599.0, whole 60.0+3600.0
        test_a_retry_tells_what_was: 3/minute, 9/hour
            decide; 1: decide id=x -> free 1+7, frees 59.0+3599.0, whole 60.0+3600.0
            5: decide; decide id=x -> free 1+7, frees 59.0+3599.0, whole 60.0+3600.0
        test_a_channel_has_states_behind_the_policy_s: 3/day | channels.push=2/day,9/week
            decide; decide channel=push -> free 1+1+8, names p+p/push+p/push
        test_slots_have_states: 2/10s, 9/minute
            schedule -> free 1+8 0+7 0+6 0+5
        """)
    )

    def pair(self, policy: Policy) -> tuple[Any, Reference]:
        """A limiter on the store, and the reference beside it."""
        return self.limiter(policy), Reference([policy], self.clock)

    def test_a_held_answer_does_not_change(self) -> None:
        """Whatever becomes of the log: hits behind it, hits trimmed and given back, another algorithm, its end."""
        limiter = self.one("45/10s", "90/15s")
        held: list[tuple[Decision, Any]] = []

        def ask(**names: Any) -> None:
            answer = limiter.decide("p", "s", **names)
            held.append((answer, answer.limits))

        for step in range(200):
            self.at(step / 5)
            ask()
        limiter.use([self.policy("p", ["45/10s", "90/15s"], algorithm="bucketed")])
        for _ in range(3):
            self.clock.advance_us(1)
            ask()
        limiter.use([self.policy("p", ["45/10s", "90/15s"])])
        refunded = [answer.hit for answer, _ in held if answer.hit is not None][-9]
        assert limiter.refund("p", "s", refunded)
        ask(cost=2)
        self.at(400)
        ask()
        limiter.sweep()
        limiter.erase("s")
        ask()
        assert [answer.limits for answer, _ in held] == [limits for _, limits in held]

    def test_each_item_of_a_batch_has_states(self) -> None:
        limiter = self.limiter(self.policy("p", ["2/minute", "9/hour"]), self.policy("q", ["1/hour"]))
        answers = limiter.decide_batch([Attempt("p", "s"), Attempt("q", "s"), Attempt("p", "s", 2), Attempt("p", "s")])
        assert [[state.remaining for state in answer.limits] for answer in answers] == [[1, 8], [0], [1, 8], [0, 7]]

    def test_each_part_of_a_joint_attempt_has_states(self) -> None:
        limiter = self.limiter(self.policy("p", ["2/minute", "9/hour"]), self.policy("q", ["5/hour"]))
        alone = limiter.decide_all([Attempt("p", "s", 2)])
        assert [[state.remaining for state in part] for part in alone.limits] == [[0, 7]]
        both = limiter.decide_all([Attempt("q", "t"), Attempt("p", "u")])
        assert [[state.remaining for state in part] for part in both.limits] == [[4], [1, 8]]
        self.at(1)
        first = limiter.decide_all([Attempt("q", "t", 2, "id"), Attempt("p", "u", 1, "id")])
        again = limiter.decide_all([Attempt("q", "t", 2, "id"), Attempt("p", "u", 1, "id")])
        assert [[state.remaining for state in part] for part in first.limits] == [[2], [0, 7]]
        assert again.limits == first.limits
        refused = limiter.decide_all([Attempt("p", "s")])
        assert [[state.remaining for state in part] for part in refused.limits] == [[0, 7]]

    def test_quiet_hours_stand_in_the_policy_s_order(self) -> None:
        for algorithm in ("sliding_log", "gcra"):
            limiter = self.limiter(
                self.policy("p", ["4/hour", "not between 22:00 and 08:00"], algorithm=algorithm, zone="Europe/Berlin")
            )
            self.when("2024-05-02T12:00", "Europe/Berlin")
            assert [state.remaining for state in limiter.decide("p", algorithm).limits] == [3, LARGEST_QUOTA - 1]
            self.when("2024-05-02T23:00", "Europe/Berlin")
            refused = limiter.decide("p", algorithm)
            assert _told(refused)[1] == ("not between 22:00 and 08:00", 0, 9 * 3600, 9 * 3600)
            assert refused.headers()["Retry-After"] == str(9 * 3600)
            self.clock.advance_us(-20 * 3600 * SECOND)
            limiter.erase(algorithm)

    @each_algorithm
    def test_states_are_those_of_the_specification(self, algorithm: str) -> None:
        """And what they promise comes true: a microsecond before `frees_in` no more is left, then there is."""
        limiter, reference = self.pair(self.policy("p", ["6/20s", "30/5min"], algorithm=algorithm))
        chance = random.Random(20)  # noqa: S311 - a history
        for _ in range(150):
            self.clock.advance_us(chance.choice((0, 1, 400_000, 1_700_000, 9_000_000)))
            cost = chance.choice((1, 1, 1, 2, 5))
            verb = chance.choice(("decide", "decide", "peek", "schedule"))
            wish = {"max_wait": 3.0} if verb == "schedule" else {}
            answer, expected = (getattr(side, verb)("p", "s", cost, **wish) for side in (limiter, reference))
            assert answer == expected
            assert answer.limits == expected.limits
        tight = limiter.peek("p", "s", 31).limits
        # A fixed window that has just begun has nothing to free.
        spent = [(state.remaining, state.frees_in_us) for state in tight if state.frees_in_us]
        assert spent if algorithm == "fixed_window" else len(spent) == len(tight)
        for before, frees_in_us in spent:
            number = [state.frees_in_us for state in tight].index(frees_in_us)
            now_us = self.clock.now_us()
            self.clock.advance_us(frees_in_us - 1)
            assert limiter.peek("p", "s", 31).limits[number].remaining == before
            self.clock.advance_us(1)
            assert limiter.peek("p", "s", 31).limits[number].remaining > before
            self.clock.advance_us(now_us - self.clock.now_us())
        whole_in_us = max(state.whole_in_us for state in tight)
        self.clock.advance_us(whole_in_us)
        assert [state.remaining for state in limiter.peek("p", "s", 31).limits] == [6, 30]

    def test_single_units_have_states_while_old_ones_are_trimmed(self) -> None:
        limiter, reference = self.pair(self.policy("p", ["5/10s", "12/40s"]))
        chance = random.Random(7)  # noqa: S311 - a history
        for _ in range(200):
            self.clock.advance_us(chance.choice((0, 1, 400_000, 2_100_000, 9_000_000)))
            answer, expected = (side.decide("p", "s") for side in (limiter, reference))
            assert answer == expected
            assert answer.limits == expected.limits

    def test_a_held_refusal_does_not_change_when_its_last_hit_becomes_a_sum(self) -> None:
        limiter = self.one("45/10s", "900/hour")
        self.at(0.5)
        for _ in range(44):
            assert limiter.decide("p", "s")
        self.at(10.1)
        assert limiter.decide("p", "s")
        refused = limiter.decide("p", "s")
        limits = refused.limits
        assert not refused
        limiter.use([self.policy("p", ["45/10s", "900/hour"], algorithm="bucketed", granularity="1s")])
        self.at(10.6)
        assert limiter.decide("p", "s")
        assert refused.limits == limits

    def test_long_logs_have_states(self) -> None:
        limiter, reference = self.pair(self.policy("p", ["150/10s", "400/minute"]))
        chance = random.Random(4)  # noqa: S311 - a history
        hits: list[int] = []
        for _ in range(900):
            self.clock.advance_us(chance.choice((0, 20_000, 70_000, 150_000)))
            answer, expected = (side.decide("p", "s") for side in (limiter, reference))
            assert answer == expected
            assert answer.limits == expected.limits
            hits += [answer.hit] if answer.hit is not None else []
            if len(hits) > 300 and chance.random() < 0.1:
                hit = hits.pop(chance.choice((-200, -150, -149, -3)))
                assert limiter.refund("p", "s", hit) == reference.refund("p", "s", hit)

    def test_headers_of_both_kinds(self) -> None:
        limiter = self.one("3/minute", "100/hour")
        for _ in range(3):
            limiter.decide("p", "s")
        self.clock.advance_us(1_500_000)
        refused = limiter.decide("p", "s")
        assert refused.headers() == refused.headers("draft-11")
        assert refused.headers("draft-11") == {
            "RateLimit-Policy": '"p-minute";q=3;w=60, "p-hour";q=100;w=3600',
            "RateLimit": '"p-minute";r=0;t=59, "p-hour";r=97;t=3599',
            "Retry-After": "59",
        }
        assert refused.headers("legacy") == {
            "X-RateLimit-Limit": "3",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": "59",
            "Retry-After": "59",
        }
        with pytest.raises(ValueError, match="draft-11 or legacy"):
            refused.headers("draft-3")
