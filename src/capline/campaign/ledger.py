"""A run: one campaign in its store, as `run`, `report` and `outcomes` use it.

`campaign run` keeps its store in a directory beside the campaign file, which one process has at a time:

    summer-sale.run/
    ├── ledger.sqlite-lock   held (flock) by the process of the run; a second process is refused
    └── ledger.sqlite        the campaign store (`store.sqlite_store`) with this one campaign

Its batches have no data: whoever runs it has the audience. Only further batches (`retry`) bring their subjects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec

from capline.campaign.pending import wake_others
from capline.campaign.rate import change_rate, parse_rate, rate_now
from capline.campaign.store.database import NotBegunError, sqlite_errors
from capline.campaign.store.protocol import CampaignStore, Change
from capline.campaign.store.records import Input, RunFacts, State, StoredRun, changed_inputs
from capline.campaign.store.rows import REFUNDED, BatchRows
from capline.campaign.store.sqlite_store import SqliteCampaignStore
from capline.model.clock import SystemClock
from capline.model.errors import CampaignConflictError, CampaignError, CampaignNotFoundError, CaplineError
from capline.model.limit import Limit
from capline.model.subject import Subject
from capline.support.instant import zoned_instant_us

FILE = "ledger.sqlite"


class Ledger:
    """A run in an open store, which it closes; `begin` and `read` open that of a directory. A context manager."""

    def __init__(self, store: CampaignStore, run: StoredRun, place: str, *, has_new_file: bool = False) -> None:
        self.store = store
        self.run = run
        self.place = place
        """Where it is, in messages."""
        self.has_new_file = has_new_file
        """Whether its file changed since it was begun, or begun again."""

    @classmethod
    def begin(cls, directory: Path, run: StoredRun) -> Self:
        """Begin a run in this directory, or resume the one that is there.

        `CampaignError` where another process runs it, where it was begun with other inputs, or where it cannot be
        written. A run in which nothing was decided yet accepts new inputs.
        """
        with ExitStack() as stack:
            store = stack.enter_context(SqliteCampaignStore(directory / FILE, alone=True))
            store.forget(None)
            found = before = _only(store)
            if found is None or store.store(found.facts.campaign) is None:
                found = run
                if before is None:
                    store.begin(run)
                else:
                    found = replace(run, facts=replace(run.facts, run_id=before.facts.run_id))
                    store.replace(before.facts.campaign, found)
            else:
                _refuse_changes(str(directory), found.inputs, run.inputs)
            stack.pop_all()
            return cls(store, found, str(directory), has_new_file=before is not None and before.text != run.text)

    @classmethod
    def read(cls, directory: Path, *, steer: bool = False) -> Self:
        """Open for reading, or to `steer`, also while a process writes; `CampaignError` where there is no ledger."""
        with ExitStack() as stack:
            store = stack.enter_context(SqliteCampaignStore(directory / FILE, write=steer, make=False))
            if store.expired(None):
                with SqliteCampaignStore(directory / FILE, make=False) as writing:
                    writing.forget(None)
            found = _only(store)
            if found is None:
                raise CampaignError(
                    f"{directory}: no run: it was killed before it began, or was kept as long as it says"
                )
            stack.pop_all()
            return cls(store, found, str(directory))

    @classmethod
    def of(cls, store: CampaignStore, campaign: str) -> Self:
        """The run of a campaign in an open store; `CampaignError` where there is none."""
        found = store.find(campaign)
        if found is None:
            raise CampaignNotFoundError(
                f"{store.url}: no run of a campaign {campaign!r}; begin it with: capline campaign enqueue"
            )
        return cls(store, found, store.url)

    @classmethod
    def begun_inputs(cls, directory: Path) -> tuple[Input, ...]:
        """The inputs of the run in this directory; none where nothing was decided yet: they may still change."""
        with sqlite_errors(directory / FILE):
            if not (directory / FILE).is_file():
                return ()
        with suppress(NotBegunError), SqliteCampaignStore(directory / FILE, write=False) as store:
            found = _only(store)
            return () if found is None or store.store(found.facts.campaign) is None else found.inputs
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. May be called twice."""
        self.store.close()

    @property
    def facts(self) -> RunFacts:
        """What never changes."""
        return self.run.facts

    @property
    def name(self) -> str:
        """The campaign."""
        return self.run.facts.campaign

    def state(self) -> State:
        """The progress now."""
        return replace(self.store.state(self.name), rate=rate_now(self.store, self.run.rate, self.run.rate_key))

    @property
    def is_finished(self) -> bool:
        """Whether every batch is settled."""
        return self.state().finished

    @property
    def is_frozen(self) -> bool:
        """Whether something may have been decided: the inputs can then no longer change."""
        return self.store.store(self.name) is not None

    def change(self, change: Change, by: str) -> None:
        """Pause, resume or cancel the run; `CampaignConflictError` where it is over."""
        if not self.store.steer(self.name, change, by=by):
            raise self._too_late()
        if change != "resume":
            wake_others(self.store, self.run)

    def set(self, settings: Settings, by: str) -> None:
        """Set something of the run; `CampaignConflictError` where it is too late for that."""
        due_us, until_us = settings.instants_us(self.state())
        rate = settings.limit()
        if rate is not None and not self.run.rate:
            raise CampaignConflictError(f"campaign {self.name!r} has no 'rate:' that could change")
        if not self.store.steer(self.name, due_us=due_us, until_us=until_us, by=by):
            raise self._too_late()
        if due_us is not None or until_us is not None:
            wake_others(self.store, self.run)
        if rate is not None:
            change_rate(self.store, self.run, rate, by)

    def _too_late(self) -> CampaignConflictError:
        state = self.state()
        if state.finished or state.cancelled:
            was = "was cancelled" if state.cancelled else "is finished"
            return CampaignConflictError(f"campaign {self.name!r} {was}: there is nothing to steer")
        return CampaignConflictError(f"campaign {self.name!r} was due: its 'send_at' cannot change any more")

    def freeze_inputs(self, store: Input) -> None:
        """Freeze the inputs and the identity of the limits' store, before anything is decided.

        `CampaignError` where they were frozen with another store.
        """
        _refuse_changes(self.place, (self.store.freeze_store(self.name, store),), (store,))

    def refused_for_good(self, attempts: int) -> int:
        """How many failed while attempts were left: their receiver said that it never takes them."""
        return sum(int((rows.attempts[rows.in_state(REFUNDED)] < attempts).sum()) for rows in self.batches())

    def batches(self) -> Iterator[BatchRows]:
        """Every decided batch, in order; one is in memory at a time."""
        return self.store.steps(self.name, range(self.state().batches))

    def batches_of(self, subject: Subject) -> Iterator[BatchRows]:
        """The decided batches that may hold this subject, the newest first. Cost: two comparisons a batch."""
        return self.store.steps(self.name, self.store.holding(self.name, subject))


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What can be set of a campaign: instants like 2027-01-01T20:00:00Z, and its rate; what is None stays as it is.

    `until` may be "never", too. `send_at` can be set until it is due. `rate`, like 5000/s, is that of its `rate_key`.
    """

    until: str | None = None
    send_at: str | None = None
    rate: str | None = None

    def limit(self) -> Limit | None:
        """The rate as a limit; `CampaignError` for a text that is not a rate."""
        try:
            return None if self.rate is None else parse_rate(self.rate)
        except CaplineError as error:
            raise CampaignError(f"rate: {error}") from None

    def instants_us(self, state: State) -> tuple[int | None, int | None]:
        """When it is to be due and over, 0 for never; `CampaignError` where that makes no sense."""
        if self.until is None and self.send_at is None and self.rate is None:
            raise CampaignError("name what to change: until, send_at, rate")
        due_us = _instant_us("send_at", self.send_at)
        until_us = 0 if self.until == "never" else _instant_us("until", self.until)
        if until_us and until_us <= SystemClock().now_us():
            raise CampaignError(f"until: {self.until} has gone by; to end a campaign now, cancel it")
        starts_us = due_us or (0 if math.isinf(state.due_us) else state.due_us)
        if 0 < (state.until_us if until_us is None else until_us) <= starts_us:
            raise CampaignError("until: it is over before it is due; name an instant after 'send_at:'")
        return due_us, until_us


def _instant_us(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else zoned_instant_us(text)
    except ValueError as error:
        raise CampaignError(f"{name}: {error}") from None


def default_directory(campaign_file: Path) -> Path:
    """The default directory of a campaign's ledger: `summer.run` beside `summer.yaml`."""
    return campaign_file.with_name(f"{campaign_file.stem}.run")


def _only(store: SqliteCampaignStore) -> StoredRun | None:
    """The run of a directory's store."""
    names = store.page("", 1)
    return store.find(names[0]) if names else None


def _refuse_changes(place: str, begun: tuple[Input, ...], inputs: tuple[Input, ...]) -> None:
    changed = changed_inputs(begun, inputs)
    if changed:
        raise CampaignError(
            f"{place}: this run was begun with another {', another '.join(changed)}; put it back to go on, "
            "or begin a new run under another name ('campaign:')"
        )
