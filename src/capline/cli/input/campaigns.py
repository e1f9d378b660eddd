"""Which run is meant: that of a campaign file, of a directory, or of a name in the store that workers share."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from collections.abc import Generator

    from capline.campaign import Ledger

TargetArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CAMPAIGN.YAML|DIR|NAME", help="The campaign file, a run's directory, or the name of a queued campaign."
    ),
]
QueueOption = Annotated[
    str | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="URL",
        envvar="CAPLINE_QUEUE",
        help="Where workers find campaigns: redis://, valkey://, or sqlite:///FILE for one machine. If left out: the "
        "campaign's store, where it can be.",
    ),
]


class Target:
    """A run as it was named. `queue` is the URL of the store that workers share; None for a run with a directory."""

    def __init__(self, target: Path, ledger: Path | None, queue: str | None) -> None:
        from capline.campaign import load_campaign

        self._target = target
        self.directory = run_directory(target, ledger)
        self.queue = None if ledger or target.is_dir() else queue
        if not target.exists() and (self.queue is None or target.suffix in (".yaml", ".yml")):
            raise CampaignError(
                f"{target}: no such file; name the campaign file, a run's directory, or a campaign with --queue URL"
            )
        if self.queue is None and target.is_file() and not self.directory.exists():
            self.queue = queue_of_store(load_campaign(target).store)

    @property
    def name(self) -> str:
        """The campaign's name in the store that workers share."""
        from capline.campaign import load_campaign
        from capline.model.policy import check_name

        return (
            load_campaign(self._target).campaign
            if self._target.is_file()
            else check_name(str(self._target), "campaign")
        )

    @contextmanager
    def opened(self, *, steer: bool = False) -> Generator[Ledger]:
        """The run, open to read, or to steer; `CampaignError` where it is not there."""
        from capline.campaign import Ledger
        from capline.campaign.store.open import open_store

        if self.queue is None:
            with Ledger.read(self.directory, steer=steer) as run:
                yield run
            return
        store = open_store(self.queue)
        try:
            yield Ledger.of(store, self.name)
        finally:
            store.close()


def run_directory(target: Path, ledger: Path | None) -> Path:
    """The run's directory: as named, or the target itself, or the one beside the campaign file."""
    from capline.campaign import default_directory

    return ledger or (target if target.is_dir() else default_directory(target))


def queue_of_store(store: str) -> str | None:
    """The URL of a campaign's store if campaigns can be there as well: on a single server."""
    return store if store.partition("://")[0] in ("redis", "rediss", "valkey", "valkeys") else None
