"""`Limiter`: the public verbs, from names and loose values to rules and checked ones, and on to the store."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from capline.limiter.checks import (
    check_codes,
    check_subjects,
    fingerprint,
    plain,
    refusal_text,
    seconds_us,
    spread,
    stamp,
    typed,
)
from capline.limiter.explain import Explanation, explain
from capline.limiter.rules import DEFAULT_NAMESPACE, Rules
from capline.model.attempt import Attempt, check_cost, check_id
from capline.model.clock import SystemClock
from capline.model.decision import Decision
from capline.model.errors import (
    CaplineError,
    InvalidTypeError,
    InvalidValueError,
    LimitExceeded,
    PolicyError,
    StoreError,
)
from capline.model.subject import Subject, check_subject
from capline.policy.watch import PolicyWatch
from capline.store.columns import Decisions
from capline.store.open import open_store
from capline.store.protocol import Ask, Batch, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.clock import Clock
    from capline.model.policy import Policy
    from capline.store.protocol import Store

__all__ = ["DEFAULT_URL", "Limiter", "Subjects"]

DEFAULT_URL = "lmdb://.capline/store"
"""The store of `from_file` and of the command line where none is named: durable, below the working directory."""

ON_STORE_ERROR = ("raise", "allow", "deny")
_ONE = 1

Subjects = "Sequence[Subject] | NDArray[np.integer[Any]]"


class Limiter:
    """Decide, exactly, whether one more event may happen under sliding-window limits.

    `url`             `memory://` or `lmdb:///path` (see `capline.store.open`)
    `policies`        the policies that the verbs name
    `clock`           where time comes from; default the machine's wall clock
    `on_store_error`  what a decision is when the store cannot answer: `"raise"` a `StoreError`, `"allow"`, or `"deny"`;
    such a
                      decision says so in its `origin` ("fallback") and never names a limit: an outage is not a refusal
    `namespace`       keeps the logs of unrelated limiters apart in one store

    A limiter may be shared by threads, and on lmdb the file by processes. Bad input raises a `CaplineError` that is
    also a `ValueError` or a `TypeError`. Use it as a context manager, or `close` it.

    >>> from capline import Limiter, Policy
    >>> with Limiter("memory://", policies=[Policy("promo", ["3/day", "10/week"])]) as limiter:
    ...     [bool(limiter.decide("promo", "user:42")) for _ in range(4)]
    [True, True, True, False]
    """

    def __init__(
        self,
        url: str,
        policies: Iterable[Policy] = (),
        *,
        clock: Clock | None = None,
        on_store_error: str = "raise",
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        if on_store_error not in ON_STORE_ERROR:
            raise InvalidValueError(f"on_store_error is one of {', '.join(ON_STORE_ERROR)}, not {on_store_error!r}")
        self._on_store_error = on_store_error
        self._watch: PolicyWatch | None = None
        rules = Rules(policies, namespace)
        self._store: Store = open_store(url, clock or SystemClock())
        self._rules = rules
        self._terms: dict[tuple[str, str | None, str | None], Terms] = {}
        self._short_ways: dict[str, Callable[[Subject], Decision]] = {}

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        url: str = DEFAULT_URL,
        *,
        clock: Clock | None = None,
        on_store_error: str = "raise",
    ) -> Self:
        """A limiter of the policies in a YAML file, in its namespace; `reload` takes over what was changed there."""
        watch = PolicyWatch(Path(path))
        file = watch.current
        limiter = cls(url, file.policies, clock=clock, on_store_error=on_store_error, namespace=file.namespace)
        limiter._watch = watch
        return limiter

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies in force, by name."""
        return dict(self._rules.policies)

    @property
    def namespace(self) -> str:
        """The namespace of the logs."""
        return self._rules.namespace

    def now_us(self) -> int:
        """The instant that the store would decide at."""
        return self._store.now_us()

    def decide(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Decision:
        """May the subject have `cost` units now? Consumes them when allowed, nothing when refused.

        The same `id` on the same log is one consumption: for as long as the widest window a retry gets the first answer
        back. The same id with another cost raises `IdConflictError`. Costs O(1) a limit, whatever the quota.
        """
        try:
            if segment is None and channel is None and id is None and cost is _ONE:
                short_way = self._short_ways.get(policy)
                if short_way is not None:
                    return short_way(subject)
            terms = self._terms.get((policy, segment, channel)) or self._bind(policy, segment, channel)
            if id is None and cost is _ONE:
                return terms.decide_unit(subject)
            return self._store.decide(terms, check_subject(subject), check_cost(cost), fingerprint(id))
        except StoreError as error:
            return self._outage(error)
        except TypeError as error:
            raise typed(error, policy, segment, channel) from None

    def peek(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Decision:
        """What `decide` would answer, with `hit` None; consumes nothing."""
        try:
            terms = self._bound(policy, segment, channel)
            return self._store.peek(terms, check_subject(subject), check_cost(cost), fingerprint(id))
        except StoreError as error:
            return self._outage(error)

    def refund(self, policy: str, subject: Subject, hit: int | None) -> bool:
        """Give back the hit that a decision named, in the policy's log and its channel's; True once, False after.

        A hit older than the widest window has left the log by itself: False. Its id, if it had one, is free again.
        """
        if hit is None:
            return False
        return self._store.refund(self._any_terms(policy), check_subject(subject), stamp(hit))

    def schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        max_wait: float | None = None,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Decision:
        """Take the next free instant, behind everyone who has taken theirs: `wait` seconds from now.

        Not allowed, and nothing taken, where it is more than `max_wait` seconds away or the cost can never fit. A slot
        that is not used is given back by `refund`.
        """
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        try:
            terms = self._bound(policy, segment, channel)
            return self._store.place(terms, check_subject(subject), check_cost(cost), fingerprint(id), max_wait_us)
        except StoreError as error:
            return self._outage(error)

    @contextmanager
    def acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        *,
        timeout: float | None = None,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Generator[Decision]:
        """`schedule`, then sleep until the slot; raises `LimitExceeded` at once where it lies past the timeout.

        An interrupted sleep gives the slot back. What happens inside the block does not: the call was made.
        """
        slot = self.schedule(policy, subject, cost, max_wait=timeout, segment=segment, channel=channel)
        if not slot.allowed:
            raise LimitExceeded(refusal_text(policy, subject, slot), slot)
        try:
            time.sleep(slot.wait)
        except BaseException:
            self.refund(policy, subject, slot.hit)
            raise
        yield slot

    def decide_batch(self, attempts: Sequence[Attempt]) -> list[Decision | CaplineError]:
        """Decide attempts of any policies, in order, each by itself.

        One bad item is an error in its place, and fails no other.
        """
        answers: list[Decision | CaplineError | None] = [None] * len(attempts)
        asks: list[Ask] = []
        rows: list[int] = []
        for row, attempt in enumerate(attempts):
            try:
                terms = self._bound(attempt.policy, attempt.segment, attempt.channel)
                asks.append(
                    Ask(terms, check_subject(attempt.subject), check_cost(attempt.cost), fingerprint(attempt.id))
                )
                rows.append(row)
            except StoreError as error:
                answers[row] = self._outage(error)
            except CaplineError as error:
                answers[row] = error
        try:
            decided = self._store.decide_batch(asks)
        except StoreError as error:
            decided = [self._outage(error)] * len(asks)
        for row, answer in zip(rows, decided, strict=True):
            answers[row] = answer
        return [answer for answer in answers if answer is not None]

    def decide_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        cost: int = 1,
        receipt: str | None = None,
    ) -> Decisions:
        """Decide one attempt for each subject, in order, as columns; about 2 µs a row on lmdb.

        With `codes`, `segment` is a list of names and `codes[i]` points into it: the segment of `subjects[i]`. The same
        subject twice is two attempts, in sequence. A subject that cannot be one is an entry in `errors` and fails no
        other. A `receipt` makes the call safe to repeat: for as long as the widest window the same batch under the same
        receipt gets the first answers back and consumes nothing; another batch under it raises `IdConflictError`.
        """
        return self._many(policy, subjects, segment, codes, channel, cost, receipt, consume=True)

    def peek_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        cost: int = 1,
    ) -> Decisions:
        """What `decide` would answer for each subject alone, as columns; consumes nothing."""
        return self._many(policy, subjects, segment, codes, channel, cost, None, consume=False)

    def refund_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        hits: Sequence[int] | NDArray[np.integer[Any]],
    ) -> NDArray[np.bool_]:
        """`refund` for many hits of one policy, in one step; `subjects[i]` had `hits[i]`."""
        if len(subjects) != len(hits):
            raise InvalidValueError(f"{len(subjects)} subjects and {len(hits)} hits: one hit for each subject")
        checked, errors = check_subjects(subjects)
        for error in errors.values():
            raise error
        return self._store.refund_many(self._any_terms(policy), checked, [stamp(hit) for hit in plain(hits)])

    def explain(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
    ) -> Explanation:
        """Why an attempt would be allowed or refused now: limits in force, hits that count, when each unit frees."""
        terms = self._bound(policy, segment, channel)
        subject = check_subject(subject)
        decision = self._store.peek(terms, subject, 1, 0)
        logs = self._store.recorded(terms, subject)
        return explain(
            self._rules.rule(policy, self._known(policy, segment), channel), subject, self.now_us(), decision, logs
        )

    def erase(self, subject: Subject) -> int:
        """Forget the subject in every policy of this limiter; returns how many logs held something."""
        return self._store.erase(self._rules.logs(), check_subject(subject))

    def sweep(self) -> int:
        """Remove the logs whose every hit is out of every window; returns how many. Decisions go on meanwhile."""
        return self._store.sweep()

    def use(self, policies: Iterable[Policy]) -> None:
        """Put other policies in force, as one: a decision sees all of the old or all of the new; histories stay."""
        rules = Rules(policies, self._rules.namespace)
        # In this order a racing decision may be made under the old policies, but never mixes old and new in one rule,
        # and leaves nothing old where later ones look.
        self._rules, self._terms, self._short_ways = rules, {}, {}

    def reload(self) -> bool:
        """Take over the policy file if it changed; True when it did.

        A broken or missing file, or one of another namespace, raises its `PolicyError`; the last good policies stay.
        """
        if self._watch is None:
            raise PolicyError(
                "this limiter has no policy file to reload; make it with Limiter.from_file, or call use()"
            )
        changed = self._watch.poll()
        if self._watch.error is not None:
            raise self._watch.error
        if changed:
            self.use(self._watch.current.policies)
        return changed

    def close(self) -> None:
        """Let go of the store. Safe to call twice."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bound(self, policy: str, segment: str | None, channel: str | None) -> Terms:
        try:
            return self._terms.get((policy, segment, channel)) or self._bind(policy, segment, channel)
        except TypeError as error:
            raise typed(error, policy, segment, channel) from None

    def _bind(self, policy: str, segment: str | None, channel: str | None) -> Terms:
        """The store's terms for these names, kept; segments that the policy does not tell apart are one."""
        known, short_ways = self._terms, self._short_ways
        key = (policy, self._known(policy, segment), channel)
        terms = known.get(key)
        if terms is None:
            terms = known[key] = self._store.terms(self._rules.rule(*key))
        if key == (policy, None, None):
            short_ways[policy] = terms.decide_unit
        return terms

    def _known(self, policy: str, segment: str | None) -> str | None:
        return segment if self._rules.policy(policy).by_segment else None

    def _any_terms(self, policy: str) -> Terms:
        """Terms of the policy in any segment and channel: they name the same logs."""
        channels = self._rules.policy(policy).channels
        return self._bound(policy, None, None if self._rules.policy(policy).limits else next(iter(channels)))

    def _outage(self, error: StoreError) -> Decision:
        """The choice for an outage, or the error itself."""
        if self._on_store_error == "raise":
            raise error
        return Decision(
            self._on_store_error == "allow",
            None,
            0,
            0 if self._on_store_error == "allow" else None,
            None,
            None,
            "fallback",
        )

    def _many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        segment: str | Sequence[str | None] | None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None,
        channel: str | None,
        cost: int,
        receipt: str | None,
        *,
        consume: bool,
    ) -> Decisions:
        if receipt is not None:
            check_id(receipt)
        cost = check_cost(cost)
        points = None if codes is None else check_codes(codes, len(subjects), segment)
        checked, errors = check_subjects(subjects)
        good = [row for row in range(len(checked)) if row not in errors] if errors else None
        if good is not None:
            checked = [checked[row] for row in good]
            points = None if points is None else [points[row] for row in good]
        decisions = self._columns(policy, segment, channel, (checked, points, cost, receipt), consume=consume)
        return decisions if good is None else spread(decisions, good, len(subjects), errors)

    def _columns(
        self,
        policy: str,
        segment: str | Sequence[str | None] | None,
        channel: str | None,
        asked: tuple[list[Subject], list[int] | None, int, str | None],
        *,
        consume: bool,
    ) -> Decisions:
        subjects, points, cost, receipt = asked
        names = [segment] if segment is None or isinstance(segment, str) else segment
        if points is None and names is segment:
            raise InvalidTypeError("segment is one name, or a list of names together with codes that point into it")
        try:
            batch = Batch(tuple(self._bound(policy, name, channel) for name in names), subjects, points, cost, receipt)
            return self._store.decide_many(batch) if consume else self._store.peek_many(batch)
        except StoreError as error:
            answer = self._outage(error)
            columns = Decisions.of([answer] * len(subjects), ())
            columns.origin = answer.origin
            return columns
