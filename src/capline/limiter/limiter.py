"""`Limiter`: the public verbs over a store that answers at once."""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from capline.limiter.base import DEFAULT_URL, LimiterBase
from capline.limiter.checks import check_iterable, refusal_text, seconds_us, stamp, typed
from capline.limiter.patience import Patience
from capline.limiter.records import RECORDS_A_ROUND, LoadProgress
from capline.model.attempt import check_cost
from capline.model.errors import InvalidValueError, LimitExceeded, StoreError
from capline.model.late import LateModule
from capline.store.open import open_store
from capline.store.protocol import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from capline.limiter.explain import Explanation
    from capline.limiter.records import Loaded, LogRecord, Record
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.model.server_state import ServerState
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
else:
    np = LateModule("numpy")

__all__ = ["DEFAULT_URL", "Limiter"]

_ONE = 1


class Limiter(LimiterBase[Store]):
    """Decide, exactly, whether one more event may happen under sliding-window limits.

    `url`             `memory://`, `lmdb:///path`, `redis://host` and its kin (see `capline.store.open`)
    `policies`        the policies that the verbs name
    `clock`           where time comes from; default the store's own: this machine's wall clock, or the server's
    `on_store_error`  what a decision is when the store cannot answer: `"raise"` a `StoreError`, `"allow"`, `"deny"`, or
                      `Insurance(hosts=8)`, limits kept in this process; such a decision says so in its `origin`
                      ("fallback", which names no limit: an outage is not a refusal; or "insurance"); a "deny" has a
                      `retry_after` of one second, as nobody knows when the store is back
    `namespace`       keeps the logs of unrelated limiters apart in one store
    `deny_cache`      how many refusals to cache, so that the store is not called again until a refused cost can fit
                      (origin "deny-cache"); 0 for none. Only `decide` and `decide_batch` use it
    `subject_key`     16 bytes or more: the store knows subjects by a keyed hash only; keep it as long as the logs
    `long_subjects`   a text of more than 512 bytes, like a token: `"refuse"` raises, `"hash"` takes 128 bits of a hash
    `observers`       called after every decision, without its subject; see `capline.observe`
    `segments`        where a subject's segment is looked up if a policy differs by segment and the caller names none:
                      the address of a publication, fetched here and then followed; a snapshot's directory; or a started
                      `SegmentWatch`, which stays the caller's
    `create`          whether to make a missing store in a file; if off, that is a `NoStoreError`
    `config`          a configuration store, by its URL, or a `Configuration`: the limits of single subjects are read
                      there, and where `policies` is empty the policies as well (docs/configuration.md)

    A limiter may be shared by threads, and on lmdb the file by processes. Bad input raises a `CaplineError` that is
    also a `ValueError` or a `TypeError`. Use it as a context manager, or `close` it.

    >>> from capline import Limiter, Policy
    >>> with Limiter("memory://", policies=[Policy("promo", ["3/day", "10/week"])]) as limiter:
    ...     [bool(limiter.decide("promo", "user:42")) for _ in range(4)]
    [True, True, True, False]
    """

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> Store:
        return open_store(url, clock, create=create)

    def now_us(self) -> int:
        """The instant that the store would decide at."""
        return self._store.now_us()

    def servers(self) -> list[ServerState]:
        """How each server of the store that holds logs is doing: its circuit breaker here, memory, connections.

        Empty for a store of this machine. Asks each server once, waits at most 2 s for each, and raises for none.
        """
        return self._store.servers()

    def decide(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Decision:
        """May the subject have `cost` units now? Consumes them when allowed, nothing when refused.

        The same `id` on the same log counts once: for as long as the widest window a retry gets the first answer back.
        The same id with another cost raises `IdConflictError`. Costs O(1) a limit, whatever the quota.

        `limits` decides by these instead of a policy made before: `policy` is then a name of your own, and each set of
        limits under it has its own history. `erase` does not reach it; it expires by itself, after the widest window.
        """
        if limits is not None:
            return self._under(policy, limits).decide(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone
            )
        try:
            if id is None and cost is _ONE:
                if segment is None and channel is None and zone is None:
                    way = self._short_ways.get(policy)
                else:
                    way = self._ways.get((policy, segment, channel, zone))
                if way is not None:
                    return way(subject)
        except InvalidValueError:
            if not self._hashes_long:
                raise
        except StoreError as error:
            return self._outage.decide(self._asked(policy, subject, cost, id, segment, channel, zone), error)
        except TypeError as error:
            raise typed(error, policy, segment, channel, zone) from None
        return self._decide(self._asked(policy, subject, cost, id, segment, channel, zone))

    def _decide(self, asked: Attempt) -> Decision:
        with self._observers.one("decide", asked) as seen:
            denied = self._denied
            held = denied.answer(asked)
            if held is not None:
                return seen.unasked(held)
            epoch = denied.epoch()
            try:
                compiled, known_as, units, mark = self._arguments(asked)
                if units == 1 and not mark:
                    decision = seen(compiled.decide_one(known_as))
                else:
                    decision = seen(self._store.decide(compiled, known_as, units, mark))
            except StoreError as error:
                return seen(self._outage.decide(asked, error))
            self._note(asked, decision, denied, epoch)
            return decision

    def peek(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        limits: Sequence[Limit | str] | None = None,
    ) -> Decision:
        """What `decide` would answer, with `hit` None; consumes nothing.

        With a `cost` of 0 it asks whether no limit is past its quota: allowed while anything is left or the quota is
        exactly used, and `remaining` is what is left now. Quiet hours and slots ahead refuse it as any attempt.
        """
        if limits is not None:
            return self._under(policy, limits).peek(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone
            )
        asked = self._peeked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("peek", asked) as seen:
            try:
                return seen(self._store.peek(*self._arguments(asked)))
            except StoreError as error:
                return seen(self._outage.peek(asked, error))

    def refund(
        self,
        policy: str,
        subject: Subject,
        hit: int | None,
        cost: int = 1,
        *,
        limits: Sequence[Limit | str] | None = None,
    ) -> bool:
        """Refund the hit that a decision named, in the policy's log and its channel's; True once, False after.

        A hit older than the widest window has left the log by itself: False. Its id, if it had one, is free again.
        `cost` is the hit's cost. It is used only if the policy's algorithm keeps no single hits: then each refund of a
        hit without an id takes that cost off again.
        """
        if limits is not None:
            return self._under(policy, limits).refund(policy, subject, hit, cost)
        if hit is None:
            return False
        subject = self._subject(subject)
        try:
            return self._store.refund(self._refund_terms(policy, subject), subject, stamp(hit), check_cost(cost))
        finally:
            self._denied.forget((subject,))

    def charge(
        self,
        policy: str,
        subject: Subject,
        cost: int,
        id: str | None = None,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Record `cost` units, whatever the limits say: for what has happened already, as tokens that were used.

        Past a quota it means waiting longer: until then attempts are refused, `peek(cost=0)` too. The answer is
        allowed, with the `hit`, and `remaining` as of after it. A charge is stamped now, before slots that are taken.
        The same `id` counts once, as in `decide`; with another cost it raises `IdConflictError`. Raises
        `InvalidValueError`, and records nothing, for more units than a log can count (2^53 - 1, fewer under
        `sliding_counter` and `gcra`), and `StoreError` in any outage: `on_store_error` cannot record it. Costs as much
        as a `decide` with a cost.
        """
        asked = self._asked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("charge", asked) as seen:
            return seen(self._store.charge(*self._arguments(asked)))

    def settle(self, policy: str, subject: Subject, hit: int | None, cost: int) -> bool:
        """Give a hit that was an estimate the units that it really cost; True if there was such a hit.

        Less is given back at once. More is recorded even past the quota, so that the next attempts wait. The hit keeps
        its stamp and its id, so the same settlement twice is once; `cost` 0 is a refund. False, and nothing changed,
        for a hit that is unknown, given back or older than the widest window; `charge` what it cost then. Under
        algorithms that keep sums the hit must have been made with an `id`, or it is False as well. Raises
        `InvalidValueError` for more units than a log can count, `StoreError` in any outage. Costs as much as `refund`.
        """
        units = check_cost(cost, 0)
        if hit is None:
            return False
        subject = self._subject(subject)
        try:
            return self._store.settle(self._refund_terms(policy, subject), subject, stamp(hit), units)
        finally:
            self._denied.forget((subject,))

    def usage(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> tuple[LimitStatus, ...]:
        """What is used and left of each limit now, in the policy's order, then the channel's; consumes nothing.

        Unlike `peek`, which answers as of after an attempt, this has no attempt: of an empty 10/s 0 are used and 10
        left. Slots that are taken count as used. Raises `StoreError` in any outage. Costs as much as `peek`.
        """
        asked = self._asked(policy, subject, 0, None, segment, channel, zone, least=0)
        return self._store.peek(*self._arguments(asked)).limits

    def flush(self, policy: str) -> int:
        """Forget every subject of the policy, for tests; returns how many. Policies that share its log forget them too.

        Attempts made meanwhile may stay. It reads every log of the policy, so it costs as much as `export`.
        """
        compiled = [self._any_terms(policy)]
        subjects: set[Subject] = set()
        page = self._store.scan(compiled)
        while True:
            subjects.update(one.subject for one in page.found if one.subject is not None)
            if page.after is None:
                break
            page = self._store.scan(compiled, page.after)
        for subject in subjects:
            self._store.erase(compiled, subject)
        self._denied.forget(subjects)
        return len(subjects)

    def schedule(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        id: str | None = None,
        *,
        max_wait: float | None = None,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Decision:
        """Take the next free slot, after all slots that are taken: `wait` seconds from now.

        It is at least `not_before` seconds from now. Later callers get later slots, so one unit placed in the future
        makes every host wait. Refused, with nothing taken, if the slot is more than `max_wait` seconds away or the cost
        can never fit. Give an unused slot back with `refund`.
        """
        max_wait_us = None if max_wait is None else seconds_us(max_wait, "max_wait")
        not_before_us = seconds_us(not_before, "not_before")
        asked = self._asked(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("schedule", asked) as seen:
            try:
                return seen(self._store.place(*self._arguments(asked), max_wait_us, not_before_us))
            except StoreError as error:
                return seen(self._outage.place(asked, max_wait_us, not_before_us, error))

    @contextmanager
    def acquire(
        self,
        policy: str,
        subject: Subject,
        cost: int = 1,
        *,
        timeout: float | None = None,
        not_before: float = 0,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
    ) -> Generator[Decision]:
        """`schedule`, then sleep until the slot; raises `LimitExceeded` at once if the slot is past the timeout.

        A store that does not answer is tried again, with backoff, until the timeout (30 s if there is none); then its
        `StoreError` is raised. With `on_store_error` "allow" or "deny" the answer is that, at once. An interrupted
        sleep gives the slot back; an exception inside the block does not, since the call was made.
        """
        patience = Patience(timeout, may_lose_answers=self._store.may_lose_answers)
        while True:
            try:
                slot = self.schedule(
                    policy,
                    subject,
                    cost,
                    patience.id,
                    max_wait=patience.left(),
                    not_before=patience.not_before(not_before),
                    segment=segment,
                    channel=channel,
                    zone=zone,
                )
                break
            except StoreError as error:
                time.sleep(patience.pause(error))
        if not slot.allowed:
            raise LimitExceeded(refusal_text(policy, subject, slot), slot)
        try:
            time.sleep(slot.wait)
        except BaseException as stopped:
            try:
                self.refund(policy, subject, slot.hit, cost)
            except StoreError as error:
                stopped.add_note(f"the slot was not given back: {error}")
            raise
        yield slot

    def decide_all(self, attempts: Sequence[Attempt]) -> Joint:
        """May all of these have their cost now, or none? One attempt over up to 16 subjects, each under its own policy.

        "This user, and the campaign's total, and the whole tenant": consumes in every log when all limits hold, nothing
        otherwise. One atomic step on memory, lmdb, a single server, and where all logs are in one slot of a cluster.
        Across slots of a cluster one slot after the other consumes, and all are refunded once one refuses: no limit is
        ever exceeded, but other callers may be refused until the refund. A part with an `id` counts once. Each part is
        decided and stamped at the time of its own log, as by `decide`. A refusal is not recorded, whatever
        `count_denied` says. Raises `StoreUnknownError` where a part may stay recorded though the whole was not allowed,
        because a connection was lost across slots.
        """
        asked = self._joint_asked(attempts)
        with self._observers.joint("decide_all", asked) as seen:
            try:
                return seen(self._store.decide_all(self._store_attempts(asked)))
            except StoreError as error:
                return seen(self._outage.joint(asked, error, consume=True))

    def peek_all(self, attempts: Sequence[Attempt]) -> Joint:
        """What `decide_all` would answer; consumes nothing. Slots of a cluster are read at slightly different times."""
        asked = self._joint_asked(attempts)
        with self._observers.joint("peek_all", asked) as seen:
            try:
                return seen(self._store.peek_all(self._store_attempts(asked)))
            except StoreError as error:
                return seen(self._outage.joint(asked, error, consume=False))

    def refund_all(self, attempts: Sequence[Attempt], hits: Sequence[int]) -> int:
        """Refund every hit of a `decide_all`, one after the other; returns how many were refunded.

        `attempts` and `hits` are those of the call and of its answer.
        """
        given_back = 0
        for one, hit in self._refund_pairs(attempts, hits):
            given_back += self.refund(one.policy, one.subject, hit, one.cost)
        return given_back

    def decide_batch(self, attempts: Sequence[Attempt]) -> list[Decision | CaplineError]:
        """Decide attempts of any policies, in order, each by itself.

        One bad item is an error in its place, and fails no other.
        """
        pending = self._pending(attempts)
        with pending.seen as seen:
            try:
                decided = self._store.decide_batch(pending.to_decide)
            except StoreError as error:
                self._outage.check(error)
                decided = [error] * len(pending.to_decide)
            seen.store_answered()
            return self._filled(pending, decided)

    def decide_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        zone: str | Sequence[str | None] | None = None,
        cost: int = 1,
        receipt: str | None = None,
    ) -> Decisions:
        """Decide one attempt for each subject, in order, as columns; about 2 µs a row on lmdb.

        `segment` and `zone` are one name for all, or a list with one for each subject; or, faster, a list of distinct
        names with `codes`: `codes[i]` is the index of row i's name. The same subject twice is two attempts, in
        sequence. An invalid subject is an entry in `errors` and fails no other. A `receipt` makes the call safe to
        repeat: for as long as the widest window the same batch under the same receipt gets the first answers back and
        consumes nothing; another batch under it, in the same namespace, raises `IdConflictError`.
        """
        asked = self._columns(policy, subjects, segment, codes, channel, cost, zone, receipt)
        with self._seen_many(asked, consume=True) as seen:
            try:
                answers = self._store.decide_many(self._batch(asked))
            except StoreError as error:
                answers = self._outage.many(asked, error, consume=True)
            seen.store_answered()
            return self._spread(asked, answers, seen, consume=True)

    def peek_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        *,
        segment: str | Sequence[str | None] | None = None,
        codes: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        channel: str | None = None,
        zone: str | Sequence[str | None] | None = None,
        cost: int = 1,
    ) -> Decisions:
        """What `decide` would answer for each subject alone, as columns; consumes nothing."""
        asked = self._columns(policy, subjects, segment, codes, channel, cost, zone)
        with self._seen_many(asked, consume=False) as seen:
            try:
                answers = self._store.peek_many(self._batch(asked))
            except StoreError as error:
                answers = self._outage.many(asked, error, consume=False)
            seen.store_answered()
            return self._spread(asked, answers, seen, consume=False)

    def refund_many(
        self,
        policy: str,
        subjects: Sequence[Subject] | NDArray[np.integer[Any]],
        hits: Sequence[int] | NDArray[np.integer[Any]],
        cost: int = 1,
    ) -> NDArray[np.bool_]:
        """`refund` for many hits of one policy, in one step; `subjects[i]` had `hits[i]`."""
        named, stamps_us = self._refunds(subjects, hits)
        try:
            if self._needs_each(policy):
                given_back = [
                    self._store.refund(self._refund_terms(policy, one), one, at_us, check_cost(cost))
                    for one, at_us in zip(named, stamps_us, strict=True)
                ]
                return np.array(given_back, np.bool_)
            return self._store.refund_many(self._any_terms(policy), named, stamps_us, check_cost(cost))
        finally:
            self._denied.forget(named)

    def explain(
        self,
        policy: str,
        subject: Subject,
        *,
        segment: str | None = None,
        channel: str | None = None,
        zone: str | None = None,
        ids: Sequence[str] = (),
    ) -> Explanation:
        """Why an attempt would be allowed or refused now: limits in force, hits that count, when each unit frees.

        A hit recorded under one of these `ids` names it: so you see which message, or which campaign, used the unit.
        """
        asked = self._asked(policy, subject, 1, None, segment, channel, zone)
        arguments = self._arguments(asked)
        known = self._known_ids(ids)
        decision = self._store.peek(*arguments)
        logs = self._store.recorded(*arguments[:2])
        return self._explained(asked, subject, self.now_us(), decision, logs, known)

    def override(
        self,
        policy: str,
        subject: Subject,
        limits: Sequence[Limit | str] | None,
        *,
        effective_at: str | datetime | None = None,
        who: str | None = None,
    ) -> int:
        """Give one subject limits of its own under a policy, or with None the policy's again; `limits` is a list.

        They replace the policy's limits, and those of its segments, in every verb; a channel's limits hold beside them,
        and the log keeps its history. At once here, elsewhere within two seconds; or at `effective_at`, an instant at
        least 3 seconds ahead. It is kept in the configuration store (`config=`); a limiter on `memory://` needs none.
        Returns the configuration's version. Costs some round trips to that store.
        """
        config, named = self._override_in(policy, subject)
        return config.override(policy, named, self._override_limits(policy, limits), effective_at=effective_at, who=who)

    def erase(self, subject: Subject) -> int:
        """Forget the subject in every policy of this limiter; returns how many logs held something."""
        subject = self._subject(subject)
        self._outage.forget(subject)
        try:
            return self._store.erase(self._all_terms(subject), subject)
        finally:
            self._denied.forget((subject,))

    def export(
        self,
        policies: Sequence[str] | None = None,
        *,
        on_fault: Callable[[CaplineError], object] | None = None,
    ) -> Iterator[LogRecord]:
        """Every log of these policies (default: of all), with the hits within the widest window; in no order.

        Decisions go on meanwhile: each log is of one instant, but not all of the same. A log may come twice; `load`
        adds it once. A log that cannot be read raises its error, or is passed to `on_fault` and left out.
        """
        compiled = self._terms_to_scan(policies)
        page = self._store.scan(compiled) if compiled else None
        while page is not None:
            yield from self._exported(page.found, on_fault)
            page = None if page.after is None else self._store.scan(compiled, page.after)

    def load(self, records: Iterable[Record]) -> Loaded:
        """Merge past hits into the logs, as if each had been recorded at its own time; returns the counts.

        Each record is one atomic step. The whole is not, but may be repeated: a known hit (by its id, or else by its
        stamp and units) is not added again. So two hits of one instant need ids to count as two. A bad record raises
        with its number; some hundred records before it may or may not be loaded.
        """
        tally, rest = LoadProgress(), iter(check_iterable(records, "records"))
        while lot := list(islice(rest, RECORDS_A_ROUND)):
            tally.take(self._store.merge(self._merges(lot, tally.loaded.records + 1)))
        return tally.loaded

    def sweep(self) -> int:
        """Remove the logs whose every hit is out of every window; returns how many. Decisions go on meanwhile."""
        self._outage.sweep()
        return self._store.sweep()

    def close(self) -> None:
        """Close the store; every verb raises `StoreClosedError` from then on. Safe to call twice."""
        store = self._shut()
        if store is not None:
            self._stop_following()
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
