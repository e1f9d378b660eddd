"""Options and arguments that several commands share, each declared once.

A parameter whose type is a dataclass, like `Source`, stands for the options that are its fields (`declare.py`).
"""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.model.errors import CaplineError, InvalidValueError
from capline.model.policy import Policy
from capline.model.subject import Subject, parse_subject
from capline.store.open import DEFAULT_URL

if TYPE_CHECKING:
    from capline.limiter.limiter import Limiter

DEFAULT_POLICIES = Path("policies.yaml")


def named_policies(context: typer.Context, incomplete: str) -> list[str]:
    """The policies of the policy file that begin so, for a shell that completes."""
    return [name for name in _policies_typed(context) if name.startswith(incomplete)]


def _named_segments(context: typer.Context, incomplete: str) -> list[str]:
    found = _policies_typed(context)
    return sorted({name for policy in found.values() for name in policy.by_segment if name.startswith(incomplete)})


def _policies_typed(context: typer.Context) -> dict[str, Policy]:
    from capline.policy.file import load

    try:
        return {policy.name: policy for policy in load(context.params.get("policies") or DEFAULT_POLICIES).policies}
    except CaplineError:
        return {}


SubjectArgument = Annotated[str, typer.Argument(help="Who is limited: text, or an integer; s:42 is the text 42.")]
HitArgument = Annotated[int, typer.Argument(help="The hit, as the decision showed it.")]
PoliciesOption = Annotated[Path, typer.Option("--policies", "-p", envvar="CAPLINE_POLICIES", help="The policy file.")]
StoreOption = Annotated[str, typer.Option("--store", "-s", envvar="CAPLINE_STORE", help="The store's URL.")]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config-store",
        metavar="URL",
        envvar="CAPLINE_CONFIG_STORE",
        help="The configuration store: its overrides hold, and its policies where there is no policy file.",
    ),
]
IdOption = Annotated[
    str | None, typer.Option("--id", help="The attempt's id: a retry with the same id consumes nothing.")
]
TextOption = Annotated[bool, typer.Option("--text", help="Take the subject as text, even if it is digits.")]
ProgressOption = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress; on a terminal, if left out.")
]
LedgerOption = Annotated[
    Path | None,
    typer.Option("--ledger", metavar="DIR", help="The run's directory; NAME.run beside NAME.yaml, if left out."),
]


def check_store(url: str) -> None:
    """Raise where it is a service."""
    if url.startswith(("http://", "https://")):
        raise InvalidValueError(
            "--store: a command asks a store itself, like redis://host:port; this is a service's URL"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the limits and the hits are."""

    policies: PoliciesOption = DEFAULT_POLICIES
    store: StoreOption = DEFAULT_URL
    config: ConfigOption = None

    def limiter(self, *, create: bool = False) -> "Limiter":
        """The limiter of the policy file and of the overrides in the configuration store.

        Where there is no such file, the policies are those of the configuration store.
        """
        from capline.limiter.limiter import Limiter

        check_store(self.store)
        if self.config is not None and not self.policies.exists():
            return Limiter.from_config(self.config, self.store, create=create)
        return Limiter.from_file(self.policies, self.store, create=create, config=self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Source):
    """One subject under one policy."""

    policy: Annotated[str, typer.Argument(help="The policy's name.", autocompletion=named_policies)]
    subject: SubjectArgument
    text: TextOption = False

    @property
    def who(self) -> Subject:
        """The subject that was typed; raises where it cannot be one."""
        return parse_subject(self.subject, as_text=self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted(Log):
    """Which of a policy's limits hold for the subject, all named."""

    segment: Annotated[
        str | None, typer.Option("--segment", help="The subject's segment.", autocompletion=_named_segments)
    ] = None
    channel: Annotated[str | None, typer.Option("--channel", help="The channel of the attempt.")] = None
    zone: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The subject's time zone, like Asia/Singapore; the policy's, if left out."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place(Attempted):
    """The same, named or looked up, or as a campaign has them."""

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
