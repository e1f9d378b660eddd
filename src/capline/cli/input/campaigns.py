"""Which run is meant: of a campaign file, of a directory, of a name in the store that workers share or at a service."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capline.cli.input.options import LedgerOption
from capline.model.errors import CampaignError

if TYPE_CHECKING:
    from capline.campaign import Ledger
    from capline.cli.input.served import ServedCampaigns

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


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="CAPLINE_SERVER",
        help="Ask a service that has the queue (capline serve --queue), like http://127.0.0.1:8080.",
    ),
]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="A file with the service's token.")
]


@dataclass(slots=True, kw_only=True)
class Service:
    """The service that was named, if one was."""

    server: ServerOption = None
    token_file: TokenFileOption = None

    def __post_init__(self) -> None:
        if self.server is None and self.token_file is not None:
            raise CampaignError("--token-file is for a service; name it with --server URL")

    @property
    def served(self) -> ServedCampaigns | None:
        """The campaigns of the service that was named."""
        from capline.cli.input.served import ServedCampaigns

        return None if self.server is None else ServedCampaigns(self.server, self.token_file)


@dataclass(slots=True, kw_only=True)
class Shared(Service):
    """Where campaigns are that workers share: in a store, or behind a service."""

    queue: QueueOption = None

    def has_run(self, place: Path) -> bool:
        """Whether this is a campaign file, a run's directory, or may be the name of a campaign here."""
        named = (self.queue or self.server) and not place.exists() and str(place) != "-"
        return bool(named) or place.is_dir() or place.suffix in (".yaml", ".yml")

    def messages(self, campaigns: Iterable[Path]) -> Iterator[Any]:
        """The messages of these runs, batch by batch, and of files of outcomes or patterns of such files."""
        from capline.campaign.outcomes import tables_of
        from capline.campaign.response.messages import messages_of_files, messages_of_tables
        from capline.segment.build.source import expand

        for campaign in campaigns:
            if campaign.suffix in (".parquet", ".csv"):
                yield from messages_of_files(expand(campaign))
                continue
            target = Target(target=campaign, queue=self.queue, server=self.server, token_file=self.token_file)
            if (served := target.served) is not None:
                yield from messages_of_tables(served.tables(target.name), campaign)
                continue
            with target.opened() as run:
                yield from messages_of_tables(tables_of(run.facts, run.batches()), campaign)


@dataclass(slots=True, kw_only=True)
class Target(Shared):
    """A run as it was named. `queue` is None for a run with a directory."""

    target: TargetArgument
    ledger: LedgerOption = None

    def __post_init__(self) -> None:
        from capline.campaign import load_campaign
        from capline.campaign.ledger import FILE

        Shared.__post_init__(self)
        if self.server is not None:
            return
        target = self.target
        self.queue = None if self.ledger or (target / FILE).is_file() else self.queue
        if not target.exists() and (self.queue is None or target.suffix in (".yaml", ".yml")):
            raise CampaignError(
                f"{target}: no such file; name the campaign file, a run's directory, or a campaign with --queue URL"
            )
        if self.queue is None and target.is_file() and not self.directory.exists():
            self.queue = queue_of_store(load_campaign(target).store)

    @property
    def directory(self) -> Path:
        """The run's directory, where it has one."""
        return run_directory(self.target, self.ledger)

    @property
    def name(self) -> str:
        """The campaign's name in the store that workers share."""
        from capline.campaign import load_campaign
        from capline.model.policy import check_name

        target = self.target
        return load_campaign(target).campaign if target.is_file() else check_name(str(target), "campaign")

    @contextmanager
    def opened(self, *, steer: bool = False) -> Generator[Ledger]:
        """The run, open to read, or to steer; `CampaignError` where it is not there."""
        from capline.campaign import Ledger
        from capline.campaign.store.open import open_store

        if self.queue is None:
            with Ledger.read(self.directory, steer=steer) as run:
                yield run
            return
        with open_store(self.queue) as store:
            yield Ledger.of(store, self.name)


def run_directory(target: Path, ledger: Path | None) -> Path:
    """The run's directory: as named, or the target itself, or the one beside the campaign file."""
    from capline.campaign import default_directory

    return ledger or (target if target.is_dir() else default_directory(target))


def queue_of_store(store: str) -> str | None:
    """The URL of a campaign's store if campaigns can be there as well: on a single server."""
    return store if store.partition("://")[0] in ("redis", "rediss", "valkey", "valkeys") else None
