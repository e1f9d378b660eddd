"""A run: one campaign in its store, as `run`, `report` and `outcomes` use it.

`campaign run` keeps its store in a directory beside the campaign file, which one process has at a time:

    summer-sale.run/
    ├── ledger.sqlite-lock   held (flock) by the process of the run; a second process is refused
    └── ledger.sqlite        the campaign store (`store.sqlite_store`) with this one campaign

Its batches have no data: whoever runs it has the audience. Only further batches (`retry`) bring their subjects.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from capline.campaign.store.database import sqlite_errors
from capline.campaign.store.inputs import changed_inputs
from capline.campaign.store.rows import REFUNDED
from capline.campaign.store.sqlite_store import SqliteCampaignStore
from capline.model.errors import CampaignConflictError, CampaignError, CampaignNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from capline.campaign.store.inputs import Input
    from capline.campaign.store.protocol import CampaignStore, Change
    from capline.campaign.store.records import RunFacts, State, StoredRun
    from capline.campaign.store.rows import BatchRows
    from capline.model.subject import Subject

FILE = "ledger.sqlite"


class Ledger:
    """A run in an open store, which it closes; `begin` and `read` open that of a directory. A context manager."""

    def __init__(self, store: CampaignStore, run: StoredRun, place: str) -> None:
        self.store = store
        self.run = run
        self.place = place
        """Where it is, in messages."""

    @classmethod
    def begin(cls, directory: Path, run: StoredRun) -> Self:
        """Begin a run in this directory, or resume the one that is there.

        `CampaignError` where another process runs it, where it was begun with other inputs, or where it cannot be
        written. A run in which nothing was decided yet accepts new inputs.
        """
        with ExitStack() as stack:
            store = stack.enter_context(SqliteCampaignStore(directory / FILE, alone=True))
            found = _only(store)
            if found is None or store.store(found.facts.campaign) is None:
                before, found = found, run
                if before is None:
                    store.begin(run)
                else:
                    found = replace(run, facts=replace(run.facts, run_id=before.facts.run_id))
                    store.replace(before.facts.campaign, found)
            else:
                _refuse_changes(str(directory), found.inputs, run.inputs)
            stack.pop_all()
            return cls(store, found, str(directory))

    @classmethod
    def read(cls, directory: Path, *, steer: bool = False) -> Self:
        """Open for reading, or to `steer`, also while a process writes; `CampaignError` where there is no ledger."""
        with ExitStack() as stack:
            store = stack.enter_context(SqliteCampaignStore(directory / FILE, write=steer, make=False))
            found = _only(store)
            if found is None:
                raise CampaignError(f"{directory}: the run was killed before it began; run it again")
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
        with SqliteCampaignStore(directory / FILE, write=False) as store:
            found = _only(store)
            return () if found is None or store.store(found.facts.campaign) is None else found.inputs

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
        return self.store.state(self.name)

    @property
    def is_finished(self) -> bool:
        """Whether every batch is settled."""
        return self.state().finished

    @property
    def is_frozen(self) -> bool:
        """Whether something may have been decided: the inputs can then no longer change."""
        return self.store.store(self.name) is not None

    def steer(self, change: Change = "", *, due_us: int | None = None) -> bool:
        """Pause, resume or cancel the run, or change when it is due; False where it is finished."""
        return self.store.steer(self.name, change, due_us=due_us)

    def change(self, change: Change) -> None:
        """Pause, resume or cancel the run; `CampaignConflictError` where it is over."""
        if not self.steer(change):
            was = "was cancelled" if self.state().cancelled else "is finished"
            raise CampaignConflictError(f"campaign {self.name!r} {was}: there is nothing to steer")

    def freeze_inputs(self, store: Input) -> None:
        """Freeze the inputs and the identity of the limits' store, before anything is decided.

        `CampaignError` where they were frozen with another store.
        """
        _refuse_changes(self.place, (self.store.freeze_store(self.name, store),), (store,))

    def refused_for_good(self, attempts: int) -> int:
        """How many failed while attempts were left: their receiver said that it never takes them."""
        return sum(int((rows.attempts[rows.where(REFUNDED)] < attempts).sum()) for rows in self.batches())

    def batches(self) -> Iterator[BatchRows]:
        """Every decided batch, in order; one is in memory at a time."""
        return self.store.steps(self.name, range(self.state().batches))

    def batches_of(self, subject: Subject) -> Iterator[BatchRows]:
        """The decided batches that may hold this subject, the newest first. Cost: two comparisons a batch."""
        return self.store.steps(self.name, self.store.holding(self.name, subject))


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
