"""`Limiter`: the verbs over a store that answers at once."""

# ruff: noqa: SLF001 - its verbs are made from those of its own base

from __future__ import annotations

import time
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from capline.limiter.arguments.checks import check_iterable, fingerprint, typed
from capline.limiter.arguments.records import LoadProgress
from capline.limiter.patience import Acquisition, Wanted
from capline.limiter.steps import acquiring, blocking, named_as, run
from capline.limiter.verbs import Verbs, more_of
from capline.model.attempt import Attempt, check_cost
from capline.model.errors import InvalidValueError, StoreError
from capline.model.limit import LARGEST_QUOTA
from capline.model.subject import check_subject
from capline.store.open import open_store
from capline.store.protocol import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from capline.limiter.arguments.records import Loaded, LogRecord, Record
    from capline.limiter.policies.overrides import Unit
    from capline.limiter.steps import Steps
    from capline.model.clock import Clock
    from capline.model.decision import Decision, Joint
    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.subject import Subject
    from capline.store.protocol import CompiledRule, Kind, Store

__all__ = ["Limiter"]

_ZERO, _ONE = 0, 1
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
Slot = TypeVar("Slot", "Decision", "Joint")


class AcquiredSlot(ContextDecorator, Generic[Slot]):
    """A block that begins once its slot is there; each time that it is entered takes a slot of its own.

    It takes another slot if it was late for one by more than the slack.
    """

    def __init__(self, want: Wanted[Slot]) -> None:
        self._want = want

    def __enter__(self) -> Slot:
        wanted = self._want()
        if not isinstance(wanted, Acquisition):
            return wanted
        while True:
            slot = run(wanted.taken())
            if not slot.allowed:
                raise wanted.refusal(slot)
            try:
                while wanted.left_us:
                    wanted.sleep(wanted.nap())
                    slot = run(wanted.moved(slot))
            except BaseException as stopped:
                try:
                    run(wanted.given_back(slot))
                except StoreError as error:
                    stopped.add_note(f"the slot was not given back: {error}")
                raise
            if not wanted.patience.is_late(slot):
                return slot
            run(wanted.given_back(slot))

    def __exit__(self, *_: object) -> None:
        return None


def _asking(kind: Kind, verb: Callable[Concatenate[V, P], Steps[Decision]]) -> Callable[Concatenate[V, P], Decision]:
    """The verb as a method that blocks; at once on the store's fast path where little more than a cost is given."""
    general: Any = blocking(verb)
    more, usual = more_of(kind)

    def call(self: Any, policy: str, subject: Subject, cost: int = 1, id: str | None = None, **named: Any) -> Any:
        answer = None
        if not named or (more and [*named] == [more]):
            answer = self._asked(kind, policy, subject, cost, id, named.get(more, usual))
        return general(self, policy, subject, cost, id, **named) if answer is None else answer

    named_as(call, verb)
    return call  # pyright: ignore[reportReturnType] - `verb` has these parameters


def _committing(verb: Callable[Concatenate[V, P], Steps[bool]]) -> Callable[Concatenate[V, P], bool]:
    """The verb as a method that blocks; at once where the store's own step is all it takes."""
    general: Any = blocking(verb)

    def call(self: Any, policy: str, subject: Subject, hit: int | None) -> Any:
        operation = self._commitment(policy, subject, hit)
        return general(self, policy, subject, hit) if operation is None else self._store.step(operation)

    named_as(call, verb)
    return call  # pyright: ignore[reportReturnType] - `verb` has these parameters


def _asking_all(kind: Kind, verb: Callable[Concatenate[V, P], Steps[Joint]]) -> Callable[Concatenate[V, P], Joint]:
    """The verb over several attempts as a method that blocks; at once where the store's own step is all it takes."""
    general: Any = blocking(verb)

    def call(self: Any, attempts: Sequence[Attempt]) -> Any:
        answer = self._asked_all(self._store, kind, attempts)
        return general(self, attempts) if answer is None else answer

    named_as(call, verb)
    return call  # pyright: ignore[reportReturnType] - `verb` has these parameters


class Limiter(Verbs):
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
                      there, and where `policies` is empty the policies as well (docs/reference/configuration.md)

    A limiter may be shared by threads, and on lmdb the file by processes. Bad input raises a `CaplineError` that is
    also a `ValueError` or a `TypeError`. Use it as a context manager, or `close` it.

    >>> from capline import Limiter, Policy
    >>> with Limiter("memory://", policies=[Policy("promo", ["3/day", "10/week"])]) as limiter:
    ...     [bool(limiter.decide("promo", "user:42")) for _ in range(4)]
    [True, True, True, False]
    """

    def decide(  # noqa: C901, PLR0911 - one way after the other
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
        keep_free: int | Sequence[int] = 0,
    ) -> Decision:
        """May the subject have `cost` units now? Consumes them when allowed, nothing when refused.

        The same `id` on the same log counts once: for as long as the widest window a retry gets the same hit.
        The same id with another cost raises `IdConflictError`. Costs O(1) a limit, whatever the quota.

        `limits` decides by these instead of a policy made before: `policy` is then a name of your own, and each set of
        limits under it has its own history. `erase` does not reach it; it expires by itself, after the widest window.

        `keep_free` units of each limit must stay free after it, for others who will come: one number for all limits, or
        a list with one for each, in the order of `decision.limits` (the policy's, then the channel's; 0 for quiet
        hours). The attempt is judged as `cost + keep_free`, in `retry_after` too, and recorded as `cost`; what is left
        is told as ever. An override's limits are kept as the policy's are. A refusal that only `keep_free` caused is
        in no deny cache and counts not under `count_denied`; what is reserved is used. Costs nothing more.
        """
        if limits is not None:
            return self._with_limits(policy, limits).decide(
                policy, subject, cost, id, segment=segment, channel=channel, zone=zone, keep_free=keep_free
            )
        try:
            plain = segment is None and channel is None and zone is None
            key = policy if plain else (policy, segment, channel, zone)
            decision: Decision
            if id is None and cost is _ONE and keep_free is _ZERO:
                unit = self._units.get(key)
                if unit is not None:
                    decision = unit(subject)
                    return decision
            elif (compiled := self._direct.get(key)) is not None:
                if keep_free is not _ZERO:
                    kept = compiled.kept.get(keep_free) if type(keep_free) is int else None
                    compiled = self._keeping(compiled, keep_free) if kept is None else kept
                    if id is None and cost is _ONE:
                        decision = compiled.decide_one(subject)
                        return decision
                units, name = (
                    cost if type(cost) is int and 0 < cost <= LARGEST_QUOTA else check_cost(cost),
                    fingerprint(id),
                )
                ask = compiled.ask
                if ask is not None:
                    decision = ask(subject, units, name)
                    return decision
                decision = self._store.step(Operation("decide", compiled, check_subject(subject), units, name))
                return decision
        except InvalidValueError:
            if not self._hashes_long:
                raise
        except StoreError as error:
            attempt = Attempt(policy, subject, cost, id, segment, channel, zone, None, keep_free)
            return self._outage.single("decide", error, self._checked(attempt))
        except TypeError as error:
            raise typed(error, policy, segment, channel, zone) from None
        attempt = Attempt(policy, subject, cost, id, segment, channel, zone, None, keep_free)
        return run(self._decide(self._checked(attempt)))

    peek = _asking("peek", Verbs._peek)
    charge = blocking(Verbs._charge)
    settle = blocking(Verbs._settle)
    usage = blocking(Verbs._usage)
    decide_all = _asking_all("decide", Verbs._decide_all)
    peek_all = _asking_all("peek", Verbs._peek_all)
    decide_batch = blocking(Verbs._decide_batch)
    decide_many = blocking(Verbs._decide_many)
    peek_many = blocking(Verbs._peek_many)
    refund_many = blocking(Verbs._refund_many)
    refund = blocking(Verbs._refund)
    refund_all = blocking(Verbs._refund_all)
    schedule = _asking("schedule", Verbs._schedule)
    schedule_all = blocking(Verbs._schedule_all)
    move = blocking(Verbs._move)
    reserve = _asking("reserve", Verbs._reserve)
    commit = _committing(Verbs._commit)
    cancel = blocking(Verbs._cancel)
    explain = blocking(Verbs._explain)
    override = blocking(Verbs._override)
    flush = blocking(Verbs._flush)
    erase = blocking(Verbs._erase)
    sweep = blocking(Verbs._sweep)
    now_us = blocking(Verbs._now_us)
    try_write = blocking(Verbs._try_write)
    servers = blocking(Verbs._servers)

    acquire = acquiring(AcquiredSlot, Verbs._acquire)
    acquire_all = acquiring(AcquiredSlot, Verbs._acquire_all)

    def export(
        self, policies: Sequence[str] | None = None, *, on_fault: Callable[[CaplineError], object] | None = None
    ) -> Iterator[LogRecord]:
        """Every log of these policies (default: of all), with the hits within the widest window; in no order.

        Decisions go on meanwhile: each log is of one instant, but not all of the same. A log may come twice; `load`
        adds it once. A log that cannot be read raises its error, or is passed to `on_fault` and left out.
        """
        compiled = self._rules_to_scan(policies, self._store.filled(len(self._rules.policies)))
        page = self._store.scan(compiled) if compiled else None
        while page is not None:
            yield from self._exported(page.found, on_fault)
            page = None if page.after is None else self._store.scan(compiled, page.after)

    def load(self, records: Iterable[Record]) -> Loaded:
        """Merge past hits into the logs, as if each had been recorded at its own time; returns the counts.

        Each record is one atomic step. The whole is not, but may be repeated: a known hit (by its id, or else by its
        stamp and units, one of an export by its stamp) is not added again. One without an id at the instant of a hit
        of other units is left out as `ambiguous`: two hits of one instant need ids to count as two. A bad record raises
        with its number; some thousand records before it may or may not be loaded.
        """
        progress = LoadProgress()
        for record in check_iterable(records, "records"):
            if progress.add(record):
                run(self._loaded(progress))
        run(self._loaded(progress))
        return progress.loaded

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

    @staticmethod
    def _open(url: str, clock: Clock | None, *, create: bool) -> Store:
        return open_store(url, clock, create=create)

    _run = staticmethod(run)

    def _bare(self, compiled: CompiledRule) -> Unit:
        return compiled.decide_one

    def _work(self, rows: int, work: Callable[[], T]) -> T:  # noqa: ARG002 - there is no loop that it could block
        return work()

    def _learn(self, policy: str, subject: Subject) -> None:
        """Nothing: an override that is not cached is read where it is needed."""

    def _at_hand(self) -> Store | None:
        return None if self._store.may_lose_answers else self._store

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
