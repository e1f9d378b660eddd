"""Options and arguments that several commands share, each declared once.

A parameter whose type is a dataclass, like `Source`, stands for the options that are its fields (`Commands.verb`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from capline.limiter.limiter import DEFAULT_URL, Limiter

__all__ = [
    "DEFAULT_POLICIES",
    "ChannelOption",
    "HitArgument",
    "IdOption",
    "JsonOption",
    "Place",
    "PoliciesOption",
    "PolicyArgument",
    "ProgressOption",
    "SegmentOption",
    "Source",
    "SubjectArgument",
    "TextOption",
    "ZoneOption",
]

DEFAULT_POLICIES = Path("policies.yaml")

PolicyArgument = Annotated[str, typer.Argument(help="The policy's name.")]
SubjectArgument = Annotated[str, typer.Argument(help="Who is limited: text, or an integer; s:42 is the text 42.")]
HitArgument = Annotated[int, typer.Argument(help="The hit, as the decision showed it.")]

PoliciesOption = Annotated[Path, typer.Option("--policies", "-p", envvar="CAPLINE_POLICIES", help="The policy file.")]
SegmentOption = Annotated[str | None, typer.Option("--segment", help="The subject's segment.")]
ChannelOption = Annotated[str | None, typer.Option("--channel", help="The channel of the attempt.")]
ZoneOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The subject's time zone, like Asia/Singapore; the policy's, if left out."),
]
IdOption = Annotated[
    str | None, typer.Option("--id", help="The attempt's id: a retry with the same id consumes nothing.")
]
TextOption = Annotated[bool, typer.Option("--text", help="Take the subject as text, even if it is digits.")]
ProgressOption = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress; on a terminal, if left out.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Answer in JSON, for machines; nothing else on standard output.")
]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the limits and the hits are."""

    policies: PoliciesOption = DEFAULT_POLICIES
    store: Annotated[str, typer.Option("--store", "-s", envvar="CAPLINE_STORE", help="The store's URL.")] = DEFAULT_URL
    config: Annotated[
        str | None,
        typer.Option(
            "--config-store",
            metavar="URL",
            envvar="CAPLINE_CONFIG_STORE",
            help="The configuration store: its overrides hold, and its policies where there is no policy file.",
        ),
    ] = None

    def limiter(self, *, create: bool = False) -> Limiter:
        """The limiter of the policy file and of the overrides in the configuration store.

        Where there is no such file, the policies are those of the configuration store.
        """
        if self.config is not None and not self.policies.exists():
            return Limiter.from_config(self.config, self.store, create=create)
        return Limiter.from_file(self.policies, self.store, create=create, config=self.config)


@dataclass(frozen=True, slots=True)
class Place:
    """Which of a policy's limits hold for the subject: named, looked up, or as a campaign has them."""

    segment: SegmentOption = None
    segments: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="Look up its segment here: a snapshot or a publication.")
    ] = None
    campaign: Annotated[
        Path | None,
        typer.Option(
            metavar="CAMPAIGN.YAML",
            help="Ask as this campaign does: with its store, policies, segments, channel, zone and cost.",
        ),
    ] = None
    channel: ChannelOption = None
    zone: ZoneOption = None
