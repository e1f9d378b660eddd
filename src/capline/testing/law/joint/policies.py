"""Several policies of one subject as one, in bulk: all or nothing, at one stamp, each log at its own time."""

import random
from typing import Any

import pytest

from capline.model.errors import IdConflictError
from capline.model.policy import Policy
from capline.policy.joint import JointPolicy
from capline.testing.reference import Reference
from capline.testing.setting import DAY, SECOND, START_US, StoreSetting

SUBJECTS: list[Any] = ["s", "t", 7, 8]


class JointPolicyLaw(StoreSetting):
    """The checks."""

    def three(self, **options: Any) -> tuple[Any, str]:
        """A limiter of three policies, and the name of all of them as one."""
        return self.several(
            self.policy("a", ["3/day"]),
            self.policy("b", ["2/day", "5/week"], channels={"push": ["1/hour"]}),
            self.policy("c", ["4/30 days"], by_segment={"vip": ["9/30 days"]}),
            **options,
        )

    def several(self, *policies: Policy, **options: Any) -> tuple[Any, str]:
        """A limiter of these policies, and the name of all of them as one."""
        joint = JointPolicy(policies)
        return self.limiter(*policies, joint, **options), joint.name

    def left(self, limiter: Any, subject: Any = "s") -> list[int]:
        """What each policy has left of its first limit."""
        return [limiter.usage(policy, subject)[0].remaining for policy in ("a", "b", "c")]

    def test_all_are_recorded_at_one_stamp_or_none_is(self) -> None:
        limiter, all_of_them = self.three()
        assert limiter.decide("a", "t")
        self.at(1)
        first = limiter.decide_many(all_of_them, ["s", "t"])
        assert (first.allowed.tolist(), first.hit.tolist()) == ([True, True], [START_US + SECOND] * 2)
        assert [str(one.limit) for one in first] == ["b: 2/day", "a: 3/day"]
        assert first.remaining.tolist() == [1, 1]
        self.at(2)
        second = limiter.decide_many(all_of_them, ["s", "t", "s", "t"])
        assert second.allowed.tolist() == [True, True, False, False]
        assert [str(one.limit) for one in second][2:] == ["b: 2/day", "b: 2/day"]
        assert second.retry_after_us[2:].tolist() == [DAY - SECOND] * 2
        assert (self.left(limiter), self.left(limiter, "t")) == ([1, 0, 2], [0, 0, 2])
        for policy in ("a", "b", "c"):
            assert [hit.stamp_us for hit in limiter.explain(policy, "s").hits] == [
                START_US + i * SECOND for i in (1, 2)
            ]

    def test_a_refund_gives_back_all_of_them_once(self) -> None:
        limiter, all_of_them = self.three()
        answers = limiter.decide_many(all_of_them, ["s", 7], cost=2, channel=None)
        assert limiter.refund_many(all_of_them, ["s", "s", 7], [*answers.hit[[0, 0]], 5], 2).tolist() == [
            True,
            False,
            False,
        ]
        assert (self.left(limiter), self.left(limiter, 7)) == ([3, 2, 4], [1, 0, 2])

    def test_a_receipt_gives_the_first_answers(self) -> None:
        limiter, all_of_them = self.three()
        batch = ["s", "t", "s", "s"]
        first = list(limiter.decide_many(all_of_them, batch, receipt="r"))
        assert [one.allowed for one in first] == [True, True, True, False]
        assert list(limiter.decide_many(all_of_them, batch, receipt="r")) == first
        with pytest.raises(IdConflictError):
            limiter.decide_many("a", batch, receipt="r")
        changed = [self.policy("a", ["9/day"]), self.policy("b", ["8/day"]), self.policy("c", ["7/day"])]
        limiter.use([*changed, JointPolicy(changed)])
        again = list(limiter.decide_many(all_of_them, batch, receipt="r"))
        assert again == first
        assert str(again[3].limit) == "b: 2/day"
        assert self.left(limiter) == [7, 6, 5]

    def test_a_channel_and_a_segment_bind_those_that_list_them(self) -> None:
        limiter, all_of_them = self.three()
        answers = limiter.decide_many(all_of_them, ["s", "s"], channel="push")
        assert (answers.allowed.tolist(), str(answers[1].limit)) == ([True, False], "b/push: 1/hour")
        assert str(limiter.decide("b", "s", channel="push").limit) == "1/hour"
        answers = limiter.decide_many(all_of_them, ["t", "t"], cost=2, segment=["vip", None])
        assert answers.allowed.tolist() == [True, False]
        assert limiter.usage("c", "t", segment="vip")[0].remaining == 7
        assert limiter.refund_many(all_of_them, ["s"], [START_US]).tolist() == [True]
        assert limiter.decide("b", "s", channel="push").allowed, "the channel's hit was given back too"

    def test_room_is_kept_by_policy_and_limit(self) -> None:
        limiter, all_of_them = self.three()
        kept: Any = [[0, 0, 0, 0], [0, 0, 4, 0], [0, 0, 5, 0], [3, 0, 0, 0]]
        answers = limiter.decide_many(all_of_them, ["s", "t", 7, 8], keep_free=kept)
        assert answers.allowed.tolist() == [True, True, False, False]
        assert [str(answers[row].limit) for row in (2, 3)] == ["b: 5/week", "a: 3/day"]
        assert limiter.peek_many(all_of_them, ["t"]).remaining.tolist() == [0]

    def test_a_hit_of_the_same_instant_in_another_log_is_another_hit(self) -> None:
        limiter, all_of_them = self.three()
        assert limiter.decide("a", "s").hit == limiter.decide("b", "s", 2).hit
        assert not limiter.decide_many(all_of_them, ["s"]).allowed[0]
        assert self.left(limiter) == [2, 0, 4]
        assert limiter.refund("a", "s", START_US)
        self.at(1)
        assert not limiter.decide_many(all_of_them, ["s"]).allowed[0], "what a gave back is still counted in b"

    def test_a_log_that_is_ahead_moves_no_other(self) -> None:
        limiter, all_of_them = self.several(*[self.policy(name, ["3/10min"]) for name in ("a", "b", "c")])
        for _ in range(2):
            assert limiter.decide("b", "s")
        self.at(650)
        assert limiter.decide("a", "s")
        self.at(300)
        first, second = limiter.decide_many(all_of_them, ["s", "s"])
        assert (first.allowed, first.hit) == (True, START_US + 650 * SECOND + 1)
        assert (second.allowed, str(second.limit)) == (False, "b: 3/10min")
        self.at(601)
        assert not limiter.decide("b", "s"), "before its stamp nobody jumps the queue"
        self.at(651)
        assert [one.allowed for one in limiter.decide_many(all_of_them, ["s", "s"])] == [True, False]
        assert limiter.refund_many(all_of_them, ["s"], [first.hit]).tolist() == [True]

    @pytest.mark.parametrize("number", range(3))
    @pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_counter", "gcra"])
    def test_what_one_of_them_used_under_another_algorithm_counts_as_under_it_alone(
        self, algorithm: str, number: int
    ) -> None:
        names = [f"{name}-{algorithm}-{number}" for name in "abc"]
        before = [
            self.policy(name, ["3/day"], algorithm=algorithm if place == number else "sliding_log")
            for place, name in enumerate(names)
        ]
        policies = [self.policy(name, ["3/day"]) for name in names]
        joint = JointPolicy(policies)
        limiter = self.limiter(*before)
        for subject in ("s", "t"):
            assert all(limiter.decide(names[number], subject) for _ in range(3))
        limiter.use([*policies, joint])
        alone = limiter.decide(names[number], "t").allowed
        assert limiter.decide_many(joint.name, ["s", "s"]).allowed.tolist() == [alone, alone]

    @pytest.mark.parametrize("seed", range(4))
    def test_random_histories_are_those_of_the_rule(self, seed: int) -> None:  # noqa: C901 - one step after the other
        """By the reference, and by counting stamps: in no window of any log are more units than its quota."""
        rng = random.Random(seed)  # noqa: S311 - no secret # nosec B311
        policies = [
            self.policy("a", ["3/10s"]),
            self.policy("b", ["2/4s", "5/30s"], channels={"push": ["1/2s"]}),
            self.policy("c", ["4/20s"], by_segment={"vip": ["9/20s"]}),
        ]
        limiter, all_of_them = self.several(*policies)
        reference = Reference([*policies, JointPolicy(policies)], self.clock)
        hits: list[tuple[str, Any, int, int]] = []
        for _ in range(60):
            step = rng.random()
            if step < 0.5:
                batch: list[Any] = [rng.choice(SUBJECTS) for _ in range(rng.randint(1, 5))]
                names = {"channel": rng.choice([None, "push"]), "segment": rng.choice([None, None, "vip"])}
                cost, kept = rng.choice([1, 1, 1, 2]), rng.choice([0, 0, 0, 1])
                answers = list(limiter.decide_many(all_of_them, batch, cost=cost, keep_free=kept, **names))
                for subject, answer in zip(batch, answers, strict=True):
                    assert answer == reference.decide(all_of_them, subject, cost, keep_free=kept, **names)
                    if answer.allowed:
                        hits.append((all_of_them, subject, answer.hit, cost))
            elif step < 0.7:
                policy, subject = rng.choice(["a", "b", "c"]), rng.choice(SUBJECTS)
                answer = limiter.decide(policy, subject)
                assert answer == reference.decide(policy, subject)
                if answer.allowed:
                    hits.append((policy, subject, answer.hit, 1))
            elif step < 0.8 and hits:
                policy, subject, hit, cost = rng.choice(hits[-8:])
                done = reference.refund(policy, subject, hit, cost)
                assert limiter.refund_many(policy, [subject], [hit], cost).tolist() == [done]
            else:
                far = rng.choice([0, 3, 900, SECOND, 2 * SECOND, 9 * SECOND, -900, -SECOND, -5 * SECOND])
                self.clock.advance_us(far)
            subject = rng.choice(SUBJECTS)
            for policy in policies:
                mine = [(hit.stamp_us, hit.units) for hit in limiter.explain(policy.name, subject).hits]
                assert mine == reference.hits(policy.name, subject)[0]
                for limit in policy.by_segment.get("vip", policy.limits):
                    for last, _ in mine:
                        assert sum(n for at, n in mine if last - limit.window_us < at <= last) <= limit.quota
