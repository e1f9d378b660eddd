"""`Limiter`: the public verbs over a store that answers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capline.limiter.base import DEFAULT_URL
from capline.limiter.checks import stamp, typed
from capline.limiter.reservations import Reservations
from capline.model.attempt import check_cost
from capline.model.errors import InvalidValueError, StoreError
from capline.support.lazy import LazyModule

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.model.subject import Subject
    from capline.store.columns import Decisions
else:
    np = LazyModule("numpy")

__all__ = ["DEFAULT_URL", "Limiter"]

_ONE = 1


class Limiter(Reservations):
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

        The same `id` on the same log counts once: for as long as the widest window a retry gets the same hit.
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
                    fast_path = self._fast_by_policy.get(policy)
                else:
                    fast_path = self._fast_paths.get((policy, segment, channel, zone))
                if fast_path is not None:
                    return fast_path(subject)
        except InvalidValueError:
            if not self._hashes_long:
                raise
        except StoreError as error:
            return self._outage.decide(self._attempt(policy, subject, cost, id, segment, channel, zone), error)
        except TypeError as error:
            raise typed(error, policy, segment, channel, zone) from None
        return self._decide(self._attempt(policy, subject, cost, id, segment, channel, zone))

    def _decide(self, attempt: Attempt) -> Decision:
        with self._observers.one("decide", attempt) as seen:
            denied = self._denied
            held = denied.answer(attempt)
            if held is not None:
                return seen.unasked(held)
            epoch = denied.epoch()
            try:
                compiled, known_as, units, fingerprint = self._arguments(attempt)
                if units == 1 and not fingerprint:
                    decision = seen(compiled.decide_one(known_as))
                else:
                    decision = seen(self._store.decide(compiled, known_as, units, fingerprint))
            except StoreError as error:
                return seen(self._outage.decide(attempt, error))
            self._note(attempt, decision, denied, epoch)
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
        attempt = self._peek_attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("peek", attempt) as seen:
            try:
                return seen(self._store.peek(*self._arguments(attempt)))
            except StoreError as error:
                return seen(self._outage.peek(attempt, error))

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
        attempt = self._attempt(policy, subject, cost, id, segment, channel, zone)
        with self._observers.one("charge", attempt) as seen:
            return seen(self._store.charge(*self._arguments(attempt)))

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
            return self._store.settle(self._rule_of_hits(policy, subject), subject, stamp(hit), units)
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
        attempt = self._attempt(policy, subject, 0, None, segment, channel, zone, least=0)
        return self._store.peek(*self._arguments(attempt)).limits

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
        checked = self._joint_attempts(attempts)
        with self._observers.joint("decide_all", checked) as seen:
            try:
                return seen(self._store.decide_all(self._store_attempts(checked)))
            except StoreError as error:
                return seen(self._outage.joint(checked, error, consume=True))

    def peek_all(self, attempts: Sequence[Attempt]) -> Joint:
        """What `decide_all` would answer; consumes nothing. Slots of a cluster are read at slightly different times."""
        checked = self._joint_attempts(attempts)
        with self._observers.joint("peek_all", checked) as seen:
            try:
                return seen(self._store.peek_all(self._store_attempts(checked)))
            except StoreError as error:
                return seen(self._outage.joint(checked, error, consume=False))

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
        columns = self._columns(policy, subjects, segment, codes, channel, cost, zone, receipt)
        with self._seen_many(columns, consume=True) as seen:
            try:
                answers = self._store.decide_many(self._batch(columns))
            except StoreError as error:
                answers = self._outage.many(columns, error, consume=True)
            seen.store_answered()
            return self._spread(columns, answers, seen, consume=True)

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
        columns = self._columns(policy, subjects, segment, codes, channel, cost, zone)
        with self._seen_many(columns, consume=False) as seen:
            try:
                answers = self._store.peek_many(self._batch(columns))
            except StoreError as error:
                answers = self._outage.many(columns, error, consume=False)
            seen.store_answered()
            return self._spread(columns, answers, seen, consume=False)

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
                    self._store.refund(self._rule_of_hits(policy, one), one, at_us, check_cost(cost))
                    for one, at_us in zip(named, stamps_us, strict=True)
                ]
                return np.array(given_back, np.bool_)
            return self._store.refund_many(self._any_rule(policy), named, stamps_us, check_cost(cost))
        finally:
            self._denied.forget(named)
