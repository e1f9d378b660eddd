"""A Hypothesis state machine that drives a store and the reference side by side, and compares every answer.

An oracle that shares no code with either judges each answer as well, by counting the hits of earlier answers.

Subjects are few and quotas small, so that logs fill, windows slide, ids repeat and clocks step back within a few steps.
Two of the subjects only ever see attempts of one unit and no refund, as most logs do: stores keep such logs in a form
of their own.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capline.limiter.limiter import Limiter
from capline.model.attempt import Attempt
from capline.model.clock import ManualClock
from capline.model.errors import CaplineError, IdConflictError, InvalidValueError
from capline.model.limit import QuietHours
from capline.model.policy import Policy
from capline.testing.conformance import url_of
from capline.testing.oracle import Oracle
from capline.testing.reference import Reference
from capline.testing.setting import POPULATION, begins_next

if TYPE_CHECKING:
    from unittest import TestCase

    from capline.testing.oracle import Judge

START_US = 1_700_000_000_000_000

POLICY_SETS = (
    [Policy("p", ["3/10us", "7/50us"])],
    [Policy("p", ["5/20us"], by_segment={"new": ["2/10us"], "vip": ["9/20us", "12/100us"]})],
    [Policy("p", ["6/30us", "9/60us"], channels={"push": ["2/20us"], "email": ["1/10us", "3/90us"]})],
    [Policy("p", ["200/1000us", "600/9000us"])],
    [Policy("p", ["2/10us"])],
    [Policy("p", ["4/40us"], by_segment={"none": ["0/10us"]})],
    [Policy("p", ["3/10us", "7/50us"], count_denied=True, by_segment={"vip": ["9/20us"]})],
    [Policy("p", ["9/40us", "15/100us"], algorithm="bucketed", granularity="5us", by_segment={"vip": ["30/70us"]})],
    [Policy("p", ["5/30us"], algorithm="bucketed", granularity="7us", count_denied=True)],
    [Policy("p", ["400/4000us"], algorithm="bucketed", granularity="50us")],
    [Policy("p", ["5/20us", "11/70us"], algorithm="sliding_counter")],
    [Policy("p", ["300/5000us"], algorithm="sliding_counter")],
    [Policy("p", ["5/20us", "11/70us"], algorithm="fixed_window")],
    [Policy("p", ["5/20us", "7/31us"], algorithm="gcra")],
    [Policy("p", ["1000003/3s", "9/50us"], algorithm="gcra")],
    [Policy("p", ["4/calendar-day", "6/30us"], zone="Asia/Kathmandu", by_segment={"vip": ["9/calendar-week"]})],
    [Policy("p", ["4/calendar-day", "9/3days"], algorithm="bucketed", granularity="6h", zone="Asia/Kathmandu")],
    [Policy("p", ["3/10us", "7/50us"], by_segment={"vip": ["9/60us"]}, reservations=True)],
    [Policy("p", ["6/30us", "9/60us"], channels={"push": ["2/20us"], "email": ["3/90us"]}, reservations=True)],
    [Policy("p", ["200/1000us", "600/9000us"], reservations=True)],
    [Policy("p", ["not between 03:58 and 03:59", "6/30us"], zone="Asia/Kathmandu")],
)
"""The clock starts in the night before midnight, or the end of quiet hours, in Kathmandu."""

CHANGES = (
    [
        Policy("p", ["6/30us", "9/60us"], channels=channels, reservations=reservations)
        for channels in ({"push": ["2/50us"], "mail": ["3/60us"]}, {"mail": ["1/60us"]}, None)
        for reservations in (True, False)
    ],
    [Policy("p", limits) for limits in (["5/10us"], ["5/300us"], ["3/40us", "9/90us"])],
    [
        Policy("p", ["5/20us", "11/70us"], algorithm=algorithm)
        for algorithm in ("sliding_log", "bucketed", "sliding_counter", "gcra", "fixed_window")
    ],
    [
        Policy("p", limits, algorithm=algorithm)
        for algorithm in ("sliding_log", "sliding_counter", "gcra", "fixed_window")
        for limits in (["5/20us"], ["3/20us", "11/70us"], ["9/40us", "1000003/3s"], ["4/calendar-day", "8/50us"])
        if algorithm == "sliding_log" or "calendar-day" not in limits[0]
    ],
    [Policy("p", limits, reservations=True) for limits in (["5/10us"], ["5/300us"], ["3/40us", "9/90us"])],
    [
        Policy("p", limits).having(**kind)
        for limits in (["6/30us"], ["9/60us"])
        for kind in (
            {"reservations": True},
            {"count_denied": True},
            {"algorithm": "bucketed", "granularity": "5us"},
        )
    ],
    [Policy("p", ["30/90us"]), Policy("p", ["30/90us"], algorithm="bucketed", granularity="20us")],
    [Policy("p", limits) for limits in (["200/1000us"], ["300/90us", "600/9000us"], ["7/300us"])],
    [
        Policy("p", limits, count_denied=counts, by_segment=segments)
        for limits in (["3/10us", "7/50us"], ["9/90us"])
        for counts in (True, False)
        for segments in ({"vip": ["9/20us"]}, {"vip": ["2/10us"], "new": ["0/10us"]})
    ],
    [
        Policy("p", limits, algorithm="bucketed", granularity=f"{grain}us", count_denied=counts)
        for limits in (["5/20us"], ["9/70us", "15/100us"])
        for grain in (5, 7)
        for counts in (True, False)
    ],
)
"""Policies that take each other's place while a run goes on. Of those with channels the widest window stays."""

EVERY_SUBJECT: tuple[str | int, ...] = ("plain", 8, "a", 7, 9, "long" * 120)

plain_subjects = st.sampled_from(EVERY_SUBJECT[:2])
subjects = st.sampled_from(EVERY_SUBJECT[2:])
every_subject = st.one_of(plain_subjects, subjects)
LONG, MOST_AT_ONCE = 100, 12
few = st.integers(1, MOST_AT_ONCE)
gaps = st.lists(st.integers(0, 12), min_size=1, max_size=12)
costs = st.one_of(st.just(1), st.just(1), st.integers(1, 8), st.just(250))
zones = st.sampled_from([None, None, "UTC", "Europe/Berlin"])
ids = st.one_of(st.none(), st.none(), st.sampled_from(["x", "y", "z"]))
keeps = st.one_of(st.just(0), st.just(0), st.integers(0, 6), st.just(180))


def state_machine(
    url: str | Callable[[], str],
    *,
    steps: int = 10_000,
    layout: str = "subject",
    changing: bool = False,
    seed: int | None = None,
) -> type[TestCase]:
    """A test case that drives the store at this URL (`{tmp}` becomes an empty directory) for at least so many steps.

    The URL may be a function, and each policy has this `layout`, as in `conformance`; each run has a namespace of its
    own. With `changing` the policy is changed on the way: its limits, channels and reservations. The same `seed` takes
    the same steps again.
    """

    class Machine(StoreMachine):
        store_url = staticmethod(url_of(url))
        store_layout = layout
        taken = 0

    Machine.changing = changing
    if seed is not None:
        hypothesis.seed(seed)(Machine)

    a_run = 50
    base: Any = Machine.TestCase

    class Case(base):
        machine, least = Machine, steps

        def runTest(self) -> None:  # noqa: N802 - unittest calls it so
            """Drive the store, then see that it was driven far enough."""
            super().runTest()  # pyright: ignore[reportUnknownMemberType] - Hypothesis makes the class at run time
            assert Machine.taken >= self.least, f"only {Machine.taken} of {steps} steps were taken"

    # Hypothesis ends some runs early, so half as many again are planned, and a few for short tests.
    Case.settings = settings(
        max_examples=-(-steps * 3 // (2 * a_run)) + 3,
        stateful_step_count=a_run,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    return Case


class StoreMachine(RuleBasedStateMachine):
    """Every rule asks both, and both must answer alike."""

    store_url: Callable[[], str] = staticmethod(lambda: "memory://")
    store_layout = "subject"
    changing = False
    taken = 0

    def __init__(self) -> None:
        super().__init__()
        self.tmp = Path(tempfile.mkdtemp(prefix="capline-machine-")) if "{tmp}" in self.store_url() else None
        self.clock = ManualClock(START_US)
        self.hits: list[tuple[str | int, int]] = []
        self.receipts: list[tuple[str, list[str | int], int, int, list[Any]]] = []
        self.latest_us = START_US

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        others = data.draw(st.sampled_from(CHANGES if self.changing else POLICY_SETS))
        self.begin(others, data.draw(st.sampled_from(others)))

    def begin(self, others: list[Policy], first: Policy) -> None:
        self.others, self.policy = others, first
        policies, self.changed, self.kept_numbers = [first], False, not first.keeps_log
        url = self.store_url().format(tmp=self.tmp)
        laid_out = [_laid_out(policy, self.store_layout) for policy in policies]
        namespace = f"t{secrets.token_hex(8)}"
        self.limiter = Limiter(url, laid_out, clock=self.clock, namespace=namespace)
        self.before, self.behind = self.policy, self.limiter
        if self.changing and url.startswith("memory:"):  # of this process alone
            self.behind = self.limiter.beside(laid_out)
        elif self.changing:
            self.behind = Limiter(url, laid_out, clock=self.clock, namespace=namespace)
        self.reference = Reference(policies, self.clock, keeps_rows=self.keeps_rows, trims_late=self.trims_late)
        self.oracle = Oracle(policies)

    @invariant()
    def count_steps(self) -> None:
        """Called after each step; the count is of all runs of one test case."""
        type(self).taken += 1
        self.latest_us = max(self.latest_us, self.clock.now_us())

    def teardown(self) -> None:
        if hasattr(self, "limiter"):
            # A server keeps the logs of each run otherwise, and every sweep of later runs passes over them.
            with suppress(CaplineError):
                for subject in EVERY_SUBJECT:
                    self.limiter.erase(subject)
            self.limiter.close()
            self.behind.close()
        if self.tmp is not None:
            shutil.rmtree(self.tmp, ignore_errors=True)

    def names(self, data: st.DataObject) -> dict[str, Any]:
        """A segment and a channel that the policy has, or none."""
        return {
            "segment": data.draw(st.sampled_from([None, *self.policy.by_segment])),
            "channel": data.draw(st.sampled_from([None, *self.policy.channels])),
            "zone": data.draw(zones) if self.policy.needs_zone else None,
        }

    def both(self, mine: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """The answer of both; None where both refuse the id."""
        try:
            expected = theirs()
        except IdConflictError:
            with pytest.raises(IdConflictError):
                mine()
            return None
        answer = mine()
        assert answer == expected
        assert answer.limits == expected.limits
        return expected

    def note(self, subject: str | int, hit: int | None) -> None:
        """Remember a hit that may be refunded later."""
        if hit is not None and subject not in ("plain", 8):
            self.hits.append((subject, hit))

    def ask(self, verb: str, judge: Judge, attempt: Attempt, **wish: Any) -> None:
        """Ask both by this verb, and have the oracle judge their answer."""
        names = {"segment": attempt.segment, "channel": attempt.channel, "zone": attempt.zone}
        id = {} if attempt.id is None else {"id": attempt.id}
        wish |= {"keep_free": attempt.keep_free} if attempt.keep_free else {}
        mine, theirs = (
            partial(getattr(limiter, verb), "p", attempt.subject, attempt.cost, **id, **names, **wish)
            for limiter in (self.limiter, self.reference)
        )
        decision = self.both(mine, theirs)
        if decision is not None:
            judge(attempt, self.clock.now_us(), decision)
            self.note(attempt.subject, decision.hit)

    def kept(self, data: st.DataObject, attempt: Attempt) -> Attempt:
        """The attempt with what must stay free: a number for all limits, or one for each."""
        limits = self.policy.limits_for(attempt.segment)
        if attempt.channel is not None:
            limits += self.policy.limits_on(attempt.channel)
        each = [st.just(0) if isinstance(limit, QuietHours) else keeps for limit in limits]
        return msgspec.structs.replace(attempt, keep_free=data.draw(st.one_of(keeps, st.tuples(*each))))

    @rule(data=st.data(), subject=subjects, cost=costs, id=ids)
    def decide(self, data: st.DataObject, subject: str | int, cost: int, id: str | None) -> None:
        attempt = self.kept(data, Attempt("p", subject, cost, id, **self.names(data)))
        self.ask("decide", self.oracle.decided, attempt)

    @rule(subject=every_subject, kept=st.integers(1, 6))
    def decide_a_unit_beside_what_stays_free(self, subject: str | int, kept: int) -> None:
        self.ask("decide", self.oracle.decided, Attempt("p", subject, keep_free=kept))

    @rule(data=st.data(), subject=subjects, cost=costs, id=ids)
    def charge(self, data: st.DataObject, subject: str | int, cost: int, id: str | None) -> None:
        self.ask("charge", self.oracle.charged, Attempt("p", subject, cost, id, **self.names(data)))

    @rule(subject=every_subject, gaps_us=gaps)
    def decide_as_time_goes(self, subject: str | int, gaps_us: list[int]) -> None:
        for gap_us in gaps_us:
            self.clock.advance_us(gap_us)
            self.ask("decide", self.oracle.decided, Attempt("p", subject))

    @rule(subject=every_subject, times=st.one_of(few, few, st.integers(LONG, 170)), kept=keeps)
    def decide_again_and_again(self, subject: str | int, times: int, kept: int) -> None:
        """Many at once, where a log can become long."""
        if not self.policy.count_denied and max(limit.quota for limit in self.policy.all_limits()) < LONG:
            times = min(times, MOST_AT_ONCE)
        free = [kept * (row % 3) for row in range(times)]
        mine = self.limiter.decide_many("p", [subject] * times, keep_free=free)
        for row, units in enumerate(free):
            expected = self.reference.decide("p", subject, keep_free=units)
            assert mine[row] == expected
            self.oracle.decided(Attempt("p", subject, keep_free=units), self.clock.now_us(), expected)
            self.note(subject, expected.hit)

    @rule(batch=st.lists(subjects, min_size=1, max_size=5), cost=costs)
    def decide_with_a_receipt(self, batch: list[str | int], cost: int) -> None:
        receipt, at_us = f"receipt {len(self.receipts)}", self.clock.now_us()
        mine = [*self.limiter.decide_many("p", batch, cost=cost, receipt=receipt)]
        for subject, answer in zip(batch, mine, strict=True):
            expected = self.reference.decide("p", subject, cost)
            assert answer == expected
            self.oracle.decided(Attempt("p", subject, cost), at_us, expected)
            self.note(subject, expected.hit)
        kept_us = max(limit.window_us for limit in self.policy.limits)
        self.receipts.append((receipt, batch, cost, at_us + kept_us, mine))

    @precondition(lambda self: bool(self.receipts))
    @rule(data=st.data())
    def repeat_a_batch(self, data: st.DataObject) -> None:
        """The first answers come back, whatever the policy is by now, and nothing is counted.

        Not where the clock has been past the receipt's end: a store may have forgotten it, though the clock went back.
        """
        receipt, batch, cost, until_us, first = data.draw(st.sampled_from(self.receipts[-6:]))
        if self.latest_us < until_us:
            assert [*self.limiter.decide_many("p", batch, cost=cost, receipt=receipt)] == first
            self.compare_history(batch[0])

    @rule(data=st.data(), subject=subjects, cost=costs, id=ids)
    def peek(self, data: st.DataObject, subject: str | int, cost: int, id: str | None) -> None:
        before = len(self.hits)
        attempt = self.kept(data, Attempt("p", subject, cost, id, **self.names(data)))
        self.ask("peek", self.oracle.peeked, attempt)
        del self.hits[before:]

    @rule(
        data=st.data(),
        subject=subjects,
        cost=costs,
        max_wait=st.sampled_from([None, 0, 20e-6, 1.0]),
        not_before=st.sampled_from([0, 0, 5e-6, 20e-6, 60e-6]),
    )
    def schedule(
        self, data: st.DataObject, subject: str | int, cost: int, max_wait: float | None, not_before: float
    ) -> None:
        attempt = Attempt("p", subject, cost, **self.names(data))
        self.ask("schedule", self.oracle.scheduled, attempt, max_wait=max_wait, not_before=not_before)

    @precondition(lambda self: self.policy.keeps_hits)
    @rule(
        data=st.data(),
        subject=subjects,
        cost=st.sampled_from([1, 1, 2]),
        stays=st.lists(st.booleans(), min_size=2, max_size=6),
        gap_us=st.integers(0, 20),
        not_before=st.sampled_from([0, 0, 0, 5e-6]),
    )
    def move(
        self, data: st.DataObject, subject: str | int, cost: int, stays: list[bool], gap_us: int, not_before: float
    ) -> None:
        """Some who wait leave, the others move up behind each other; a hit that was given back does not."""
        attempt, before = Attempt("p", subject, cost, **self.names(data)), len(self.hits)
        for _ in stays:
            self.ask("schedule", self.oracle.scheduled, attempt)
        slots = [hit for _, hit in self.hits[before:]]
        for hit, stay in zip(slots, stays, strict=False):
            if not stay:
                self.give_back(subject, hit, cost)
        self.clock.advance_us(gap_us)
        names = {"segment": attempt.segment, "channel": attempt.channel, "zone": attempt.zone}
        if attempt.channel is None and self.policy.channels:
            with pytest.raises(InvalidValueError):
                self.limiter.move("p", subject, next(iter(slots), START_US), not_before=not_before, **names)
            slots = []
        for hit in slots:
            mine, theirs = (
                partial(limiter.move, "p", subject, hit, not_before=not_before, **names)
                for limiter in (self.limiter, self.reference)
            )
            decision = self.both(mine, theirs)
            self.oracle.moved(attempt, hit, self.clock.now_us(), decision)
            self.note(subject, decision.hit)
        self.compare_history(subject)

    @rule(data=st.data(), subject=subjects)
    def look(self, data: st.DataObject, subject: str | int) -> None:
        self.ask("peek", self.oracle.looked, Attempt("p", subject, 0, **self.names(data)))

    @precondition(lambda self: self.policy.reservations)
    @rule(data=st.data(), subject=subjects, cost=costs, id=ids, ttl_us=st.sampled_from([1, 7, 7, 25, 300]))
    def reserve(self, data: st.DataObject, subject: str | int, cost: int, id: str | None, ttl_us: int) -> None:
        self.reserve_for(ttl_us, Attempt("p", subject, cost, id, **self.names(data)))

    def reserve_for(self, ttl_us: int, attempt: Attempt) -> None:
        self.ask("reserve", partial(self.oracle.reserved, ttl_us=ttl_us), attempt, ttl=ttl_us / 1e6)

    @precondition(lambda self: self.policy.reservations)
    @rule(
        data=st.data(),
        subject=subjects,
        ttl_us=st.integers(1, 30),
        kept=st.booleans(),
        off_us=st.sampled_from([-1, 0, 0, 1]),
    )
    def reserve_until_it_ends(
        self, data: st.DataObject, subject: str | int, ttl_us: int, kept: bool, off_us: int
    ) -> None:
        """Committed on the way, or not; then looked at around the instant at which it ends."""
        before = len(self.hits)
        self.reserve_for(ttl_us, Attempt("p", subject, **self.names(data)))
        for _, hit in self.hits[before:]:
            self.clock.advance_us(ttl_us // 2)
            if kept:
                self.commit_hit(subject, hit)
            self.clock.advance_us(max(0, hit + ttl_us + off_us - self.clock.now_us()))
            self.compare_history(subject)

    @precondition(lambda self: self.policy.reservations and bool(self.hits))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self.commit_hit(*data.draw(st.sampled_from(self.hits[-12:])))

    def commit_hit(self, subject: str | int, hit: int) -> None:
        done = self.reference.commit("p", subject, hit)
        assert self.limiter.commit("p", subject, hit) == done
        self.oracle.committed("p", subject, hit, self.clock.now_us(), done=done)

    @precondition(lambda self: bool(self.hits))
    @rule(data=st.data(), cost=st.one_of(st.integers(0, 9), st.just(300)))
    def settle(self, data: st.DataObject, cost: int) -> None:
        subject, hit = data.draw(st.sampled_from(self.hits[-40:]))
        done = self.reference.settle("p", subject, hit, cost)
        assert self.limiter.settle("p", subject, hit, cost) == done
        self.oracle.settled("p", subject, hit, cost, done=done, now_us=self.clock.now_us())

    @precondition(lambda self: bool(self.hits))
    @rule(data=st.data())
    def refund(self, data: st.DataObject) -> None:
        self.give_back(*data.draw(st.sampled_from(self.hits[-12:])), data.draw(st.sampled_from([1, 1, 2, 8])))

    def give_back(self, subject: str | int, hit: int, cost: int) -> None:
        before = self.history(subject)
        done = self.reference.refund("p", subject, hit, cost)
        assert self.limiter.refund("p", subject, hit, cost) == done
        gone = sum(units for _, units in before) - sum(units for _, units in self.history(subject))
        self.oracle.gave_back("p", subject, hit, max(gone - cost, 0))
        self.oracle.refunded("p", subject, hit, done=done, now_us=self.clock.now_us())

    @rule(by_us=st.one_of(st.integers(0, 15), st.integers(0, 2000), st.integers(-30, -1)))
    def move_clock(self, by_us: int) -> None:
        self.step_clock(by_us)

    def step_clock(self, by_us: int) -> None:
        self.clock.advance_us(by_us)
        if by_us < 0:  # what was in no window at the last change may be in one again
            self.learn_what_aged()

    @precondition(lambda self: self.policy.needs_zone)
    @rule(by_us=st.sampled_from([39_999_990, 3_600_000_000, 72_000_000_000, 86_400_000_000, 500_000_000_000]))
    def move_clock_far(self, by_us: int) -> None:
        self.clock.advance_us(by_us)

    @precondition(lambda self: len(self.hits) > 12)
    @rule(data=st.data())
    def refund_an_old_one(self, data: st.DataObject) -> None:
        self.give_back(*data.draw(st.sampled_from(self.hits[:-12])), data.draw(st.sampled_from([1, 1, 2, 8])))

    @precondition(lambda self: len(self.others) > 1)
    @rule(data=st.data())
    def change_the_policy(self, data: st.DataObject) -> None:
        """Other limits, channels, or reservations given up and taken again; what was counted stays so."""
        self.put_in_force(data.draw(st.sampled_from([policy for policy in self.others if self.may_follow(policy)])))

    @property
    def keeps_rows(self) -> bool:
        """Whether the store has all numbers of a policy in one value."""
        return begins_next(self.store_url())

    def may_follow(self, policy: Policy) -> bool:
        """Where each number has a log of its own, other numbers begin without them."""
        return self.keeps_rows or self.policy.keeps_log or policy.keeps_log or policy == self.policy

    @precondition(lambda self: len(self.others) > 1)
    @rule(data=st.data(), subject=subjects, ttl_us=st.integers(1, 20), back=st.booleans(), slot=st.booleans())
    def change_around_a_hit(self, data: st.DataObject, subject: str | int, ttl_us: int, back: bool, slot: bool) -> None:
        """What was recorded before a change ends, or is given back, after it; then the first policy may come back."""
        first, before, attempt = self.policy, len(self.hits), Attempt("p", subject, **self.names(data))
        if slot:
            self.take_slot([Attempt("p", subject, 1, "x")])
        elif first.reservations:
            self.reserve_for(ttl_us, attempt)
        else:
            self.ask("decide", self.oracle.decided, attempt)
        self.change_the_policy(data)
        for _, hit in self.hits[before:]:
            if slot:
                self.take_slot([Attempt("p", subject, 1, "x")])
            if slot or not first.reservations:
                self.give_back(subject, hit, 1)
            self.clock.advance_us(ttl_us)
            self.compare_history(subject)
            self.decide_as_time_goes(subject, [0])
            if back and self.may_follow(first):
                self.put_in_force(first)
                self.look(data, subject)

    @precondition(lambda self: self.changed and self.behind is not self.limiter)
    @precondition(lambda self: self.keeps_rows or not self.kept_numbers)
    @rule()
    def go_on_elsewhere(self) -> None:
        """A process that has the policy before the change decides meanwhile, as in a rolling update.

        Where each number has a log of its own, a process of hits that never kept numbers does not find them; in a file
        and in memory it looks for them only where there were any when its policy came into force.
        """
        looks_once = self.kept_numbers and self.store_url().startswith(("lmdb:", "memory:"))
        if looks_once and (self.policy.keeps_log or self.before.keeps_log):
            return
        self.limiter, self.behind = self.behind, self.limiter
        self.before, former = self.policy, self.before
        self.judge_by(former)

    @property
    def trims_late(self) -> bool:
        """Whether what has aged may still be there, and count again under a wider window: long logs go by parts."""
        return not self.store_url().startswith("memory") and self.store_layout == "subject"

    def put_in_force(self, policy: Policy) -> None:
        self.changed = True
        self.limiter.use([_laid_out(policy, self.store_layout)])
        self.judge_by(policy)

    def judge_by(self, policy: Policy) -> None:
        self.policy = policy
        self.kept_numbers |= not policy.keeps_log
        self.reference.use([policy])
        self.oracle.use([policy])
        self.learn_what_aged()

    def learn_what_aged(self) -> None:
        for subject in self.reference.aged("p"):
            self.reference.forget_as("p", subject, self.history(subject))
            self.compare_history(subject)

    @precondition(lambda self: not self.changed)
    @rule()
    def sweep(self) -> None:
        self.limiter.sweep()
        self.reference.sweep()
        self.oracle.swept(self.clock.now_us())

    @rule(subject=every_subject)
    def erase(self, subject: str | int) -> None:
        self.limiter.erase(subject)
        self.reference.erase(subject)
        self.oracle.erased(subject)

    @rule(subject=every_subject)
    def same_history(self, subject: str | int) -> None:
        self.compare_history(subject)

    def compare_history(self, subject: str | int) -> None:
        mine = self.history(subject)
        assert mine == self.reference.hits("p", subject)[0]
        self.oracle.holds("p", subject, self.clock.now_us(), mine)

    def history(self, subject: str | int) -> list[tuple[int, int]]:
        return [(hit.stamp_us, hit.units) for hit in self.limiter.explain("p", subject).hits]

    @rule(data=st.data(), several=st.lists(every_subject, min_size=1, max_size=3, unique=True))
    def decide_all(self, data: st.DataObject, several: list[str | int]) -> None:
        parts = [self.part(data, subject, data.draw(costs), data.draw(ids)) for subject in several]
        self.all_or_none([self.kept(data, part) for part in parts])

    @rule(
        data=st.data(),
        several=st.lists(subjects, min_size=2, max_size=2, unique=True),
        burst=st.integers(0, 3),
        step_us=st.integers(-30, 3),
    )
    def decide_all_where_one_is_ahead(
        self, data: st.DataObject, several: list[str | int], burst: int, step_us: int
    ) -> None:
        """A part that is known, or about to be, on a log that is ahead of the clock; another that is not."""
        ahead = self.part(data, several[0], 1, data.draw(ids))
        for attempt in [ahead] + [msgspec.structs.replace(ahead, id=None)] * burst:
            self.all_or_none([attempt])
        self.step_clock(step_us)
        self.all_or_none([ahead, self.part(data, several[1], data.draw(costs), data.draw(ids))])

    @rule(
        data=st.data(),
        several=st.lists(every_subject, min_size=1, max_size=2, unique=True),
        id=ids,
        max_wait=st.sampled_from([None, None, 0, 20e-6]),
        not_before=st.sampled_from([0, 0, 20e-6]),
    )
    def schedule_all(
        self, data: st.DataObject, several: list[str | int], id: str | None, max_wait: float | None, not_before: float
    ) -> None:
        """One slot for all of them, or for the first where a cluster keeps them apart."""
        several = several if self.in_one_step(several) else several[:1]
        named = None if {*several} & {"plain", 8} else id
        parts = [self.part(data, subject, data.draw(costs), named) for subject in several]
        self.take_slot(parts, max_wait, not_before)

    def take_slot(self, parts: list[Attempt], max_wait: float | None = None, not_before: float = 0) -> None:
        most_us = None if max_wait is None else round(max_wait * 1e6)
        judge = partial(self.oracle.scheduled_all, max_wait_us=most_us, not_before_us=round(not_before * 1e6))
        self.ask_all("schedule_all", judge, parts, max_wait=max_wait, not_before=not_before)

    def ask_all(self, verb: str, judge: Callable[..., None], parts: list[Attempt], **wish: Any) -> None:
        mine, theirs = (partial(getattr(limiter, verb), parts, **wish) for limiter in (self.limiter, self.reference))
        joint = self.both(mine, theirs)
        if joint is None:
            return
        judge(parts, self.clock.now_us(), joint)
        for part, hit in zip(parts, joint.hits, strict=False):
            self.note(part.subject, hit)

    def part(self, data: st.DataObject, subject: str | int, cost: int, id: str | None) -> Attempt:
        """An attempt on the subject, a plain one where the subject only sees such."""
        if subject in ("plain", 8):
            return Attempt("p", subject)
        return Attempt("p", subject, cost, id, **self.names(data))

    def all_or_none(self, parts: list[Attempt]) -> None:
        """One joint attempt."""
        parts = parts if self.in_one_step(part.subject for part in parts) else parts[:1]
        self.ask_all("decide_all", self.oracle.decided_all, parts)

    def in_one_step(self, subjects: Iterable[str | int]) -> bool:
        """Whether these are decided at once: a cluster's slots are asked one after the other, a bucket is in one."""
        return "+cluster" not in self.store_url() or (self.store_layout == "bucket" and {*subjects} <= {7, 8, 9})


def _laid_out(policy: Policy, layout: str) -> Policy:
    """The policy in this layout, made anew: one that is read again has equal limits, not the same."""
    return deepcopy(policy.having(layout=layout, population=POPULATION))
