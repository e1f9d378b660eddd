"""`capline config get | set | delete | override | history | rollback`: reads and changes the configuration store.

A change prints the configuration's new version. Running processes follow within two seconds, without a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capline.cli.input.declare import Commands
from capline.cli.input.options import named_policies
from capline.cli.render.console import Answer, out, plain, table
from capline.config.bulk import read_overrides
from capline.config.document import entry_facts
from capline.model.errors import CaplineError, InvalidValueError, UnknownNameError
from capline.model.subject import parse_subject, subject_text
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from rich.table import Table

    from capline.config.configuration import Configuration
    from capline.config.records import Commit, Entry

WhoOption = Annotated[
    str | None, typer.Option(envvar="CAPLINE_WHO", help="Who makes the change; your user name, if left out.")
]
PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help="The policy's name.", autocompletion=named_policies)
]
SubjectOption = Annotated[
    str | None, typer.Option(help="The override of this subject; 42 is the integer, s:42 the text.")
]
StoreOption = Annotated[
    str, typer.Option("--store", "-s", metavar="URL", envvar="CAPLINE_CONFIG_STORE", help="The configuration store.")
]
DEFAULT_STORE = "lmdb://.capline/store"


@dataclass(frozen=True, slots=True)
class Place:
    """Which configuration it is."""

    store: StoreOption = DEFAULT_STORE
    namespace: Annotated[str, typer.Option(help="The namespace of the logs.")] = "capline"

    def open(self, *, create: bool = False) -> Configuration:
        """The configuration there; `create` makes a missing store."""
        from capline.config.configuration import Configuration  # noqa: PLC0415 - keeps `--help` instant

        return Configuration(self.store, namespace=self.namespace, create=create)


@dataclass(frozen=True, slots=True)
class Change:
    """Who makes a change, and when it holds."""

    who: WhoOption = None
    effective_at: Annotated[
        str | None,
        typer.Option("--at", metavar="INSTANT", help="In force from this instant on, like 2026-11-21T16:00Z."),
    ] = None


@dataclass(frozen=True, slots=True)
class ChangeOfOne(Change):
    """The change of one policy or one override."""

    if_version: Annotated[int | None, typer.Option(help="Only if this is its version now (0: never set).")] = None


UntilOption = Annotated[
    str | None,
    typer.Option(metavar="INSTANT", help="At once, and until then; what was there before holds again afterwards."),
]

app = Commands("config", "Read and change the [bold]configuration store[/]: policies, and limits of single subjects.")


@app.answers(
    "capline config get",
    "capline config get promo --json",
    "capline config get promo --subject user:42",
    "capline config get promo --overrides --limit 1000 --after user:42 --json",
)
def get(
    policy: Annotated[
        str | None, typer.Argument(metavar="POLICY", help="Only this one.", autocompletion=named_policies)
    ] = None,
    subject: SubjectOption = None,
    overrides: Annotated[bool, typer.Option("--overrides", help="Every override of the policy.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many overrides: a page of them.")] = None,
    after: Annotated[str | None, typer.Option(help="Those that come after this subject, as `next` names it.")] = None,
    *,
    place: Place,
) -> Answer:
    """Show the policies, one policy, or the limits of a subject."""
    with place.open() as configuration:
        if (subject is not None or overrides) and policy is None:
            raise InvalidValueError("name the policy as well: capline config get POLICY --subject …")
        if (limit is not None or after is not None) and (subject is not None or not overrides):
            raise InvalidValueError("--limit and --after are of the list of overrides: give --overrides")
        now_us, following = configuration.view.now_us(), None
        if policy is not None and subject is not None:
            who = parse_subject(subject)
            entry = configuration.override_of(policy, who)
            if entry is None:
                raise UnknownNameError(f"{subject_text(who)} has no override under policy {policy!r}")
            rows = [(f"{policy} {subject_text(who)}", entry)]
        elif policy is not None and overrides:
            page, following = configuration.overrides_page(policy, after and parse_subject(after), limit)
            rows = [(f"{policy} {subject_text(who)}", entry) for who, entry in page]
        elif policy is not None:
            configuration.policy(policy)
            rows = [(policy, configuration.policy_versions(policy)[0])]
        else:
            rows = [(name, configuration.policy_versions(name)[0]) for name in sorted(configuration.view.entries)]
        entries, shown = _entries(rows, now_us)
        totals = configuration.view.totals.items()
        many = ", ".join(f"{name} {count:,}" for name, total in totals if (count := total.count_at(now_us))) or "none"
        version = configuration.version

    def lines() -> None:
        out.print(shown)
        out.print(f"version {version}; overrides: {many}", markup=False)
        if following is not None:
            out.print(f"there are more: --after {following}", markup=False)

    told = {"version": version, "entries": entries}
    return Answer(told | {"next": following} if overrides and subject is None else told, lines)


def _entries(rows: list[tuple[str, Entry]], now_us: int) -> tuple[list[dict[str, Any]], Table]:
    entries = [
        {"name": name, **entry_facts(entry), "value": entry.value, "in_force": entry.at(now_us)} for name, entry in rows
    ]
    shown = table("name", "version", "by", "in force", "from then on")
    for name, entry in rows:
        later = f"{_at(entry.effective_us)}: {_shown(entry.value)}" if entry.effective_us > now_us else ""
        shown.add_row(plain(name), str(entry.version), plain(entry.who), plain(_shown(entry.at(now_us))), plain(later))
    return entries, shown


@app.answers(
    "capline config set policies.yaml", "capline config set policies.yaml --only promo --at 2030-11-21T16:00Z --who ann"
)
def set_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A policy file.")],
    only: Annotated[list[str] | None, typer.Option(help="Only this policy of the file.")] = None,
    store: StoreOption = DEFAULT_STORE,
    *,
    change: ChangeOfOne,
) -> Answer:
    """Set the policies of a file, in its namespace. Policies that are not in the file stay."""
    from capline.policy.file import load  # noqa: PLC0415 - YAML is loaded where a file is read

    read = load(file)
    policies = [policy for policy in read.policies if not only or policy.name in only]
    for name in only or ():
        if name not in {policy.name for policy in policies}:
            raise UnknownNameError(f"{file} has no policy {name!r}")
    with Place(store, read.namespace).open(create=True) as configuration:
        return _version(configuration.set_policies(policies, **asdict(change)))


@app.answers("capline config delete promo --who ann")
def delete(policy: PolicyArgument, place: Place, change: ChangeOfOne) -> Answer:
    """Delete a policy. Its versions and its logs stay."""
    with place.open() as configuration:
        return _version(configuration.delete_policy(policy, **asdict(change)))


@app.answers(
    "capline config override promo user:42 10/day 50/week",
    "capline config override promo 42 20/day --at 2030-11-21T16:00Z",
    "capline config override promo user:42 50/day --until 2030-11-28T16:00Z",
    "capline config override promo user:42 --none",
)
def override(
    policy: PolicyArgument,
    subject: Annotated[str, typer.Argument(help="42 is the integer, s:42 the text.")],
    limits: Annotated[list[str] | None, typer.Argument(metavar="LIMIT...", help="Like 10/day.")] = None,
    granularity: Annotated[
        str | None, typer.Option(help="How long one sum spans, like 100ms; of a bucketed policy.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove it: the policy's limits hold again.")] = False,
    until: UntilOption = None,
    *,
    place: Place,
    change: ChangeOfOne,
) -> Answer:
    """Give one subject its own limits under a policy, instead of the policy's."""
    if none == bool(limits):
        raise InvalidValueError("give the limits of the subject, like 10/day, or --none")
    with place.open(create=True) as configuration:
        who = parse_subject(subject)
        how = asdict(change)
        wanted = None if none else limits
        return _version(configuration.override(policy, who, wanted, granularity=granularity, until=until, **how))


@app.answers(
    "capline config overrides promo vips.csv --who ann",
    "capline config overrides promo vips.jsonl --at 2030-11-21T16:00Z",
)
def overrides(
    policy: PolicyArgument,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help='.csv with the columns subject, limits ("10/day;50/week"; empty removes them) and, where wanted, '
            "granularity; or lines of JSON.",
        ),
    ],
    until: UntilOption = None,
    *,
    place: Place,
    change: Change,
) -> Answer:
    """Give many subjects their own limits; those that are not in the file stay as they are."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as data:
            wanted, spans = read_overrides(data, is_csv=file.suffix == ".csv")
    except OSError as error:
        raise InvalidValueError(f"{file}: {error.strerror}") from None
    except CaplineError as error:
        raise InvalidValueError(f"{file}, {error}") from None
    with place.open(create=True) as configuration:
        return _version(configuration.override_many(policy, wanted, granularity=spans, until=until, **asdict(change)))


@app.answers("capline config history", "capline config history promo", "capline config history promo --subject user:42")
def history(
    policy: Annotated[
        str | None, typer.Argument(metavar="POLICY", help="Of this policy.", autocompletion=named_policies)
    ] = None,
    subject: SubjectOption = None,
    *,
    place: Place,
) -> Answer:
    """Show the versions of a policy or an override, newest first; without a name, the last 1,024 changes."""
    with place.open() as configuration:
        if policy is None:
            return _commits(configuration.commits())
        of = None if subject is None else parse_subject(subject)
        entries = configuration.policy_versions(policy) if of is None else configuration.override_versions(policy, of)
        if not entries:
            raise UnknownNameError(f"nothing was ever set for {policy!r}{'' if subject is None else f' {subject}'}")
    shown = table("version", "at", "by", "in force from", "value")
    for entry in entries:
        since = _at(entry.effective_us) if entry.effective_us else "at once"
        value = f"{_shown(entry.value)} (before: {_shown(entry.before)})" if entry.effective_us else _shown(entry.value)
        shown.add_row(str(entry.version), _at(entry.at_us), plain(entry.who), since, plain(value))
    told = [{**entry_facts(entry), "value": entry.value, "before": entry.before} for entry in entries]
    return Answer(told, lambda: out.print(shown))


@app.answers("capline config rollback promo 3 --who ann", "capline config rollback promo 7 --subject user:42 --json")
def rollback(
    policy: PolicyArgument,
    version: Annotated[int, typer.Argument(help="As history shows it.")],
    subject: SubjectOption = None,
    *,
    place: Place,
    who: WhoOption = None,
) -> Answer:
    """Set a policy or an override back to an earlier version, at once. This makes a new version where it differs."""
    with place.open() as configuration:
        if subject is None:
            return _version(configuration.roll_back_policy(policy, version, who=who))
        return _version(configuration.roll_back_override(policy, parse_subject(subject), version, who=who))


def _version(version: int) -> Answer:
    return Answer({"version": version}, f"version {version}")


def _commits(commits: Sequence[Commit]) -> Answer:
    facts: list[dict[str, object]] = []
    shown = table("version", "at", "by", "what", "of")
    for commit in commits:
        names = [{"policy": name.policy, "subject": name.subject, "many": name.many} for name in commit.changes]
        head = {"version": commit.version, "at": _at(commit.at_us), "who": commit.who, "verb": commit.verb}
        facts.append({**head, "changes": names})
        named = [
            f"{name.policy} many subjects"
            if name.many
            else name.policy + ("" if name.subject is None else f" {subject_text(name.subject)}")
            for name in commit.changes[:5]
        ]
        more = f" and {len(commit.changes) - 5} more" if len(commit.changes) > 5 else ""  # noqa: PLR2004 - as above
        of = plain(", ".join(named) + more)
        shown.add_row(str(commit.version), _at(commit.at_us), plain(commit.who), commit.verb, of)
    return Answer(facts, lambda: out.print(shown))


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ", ".join(value)  # pyright: ignore[reportUnknownArgumentType] - limits, as they are written
    return "; ".join(f"{key} {_shown_part(part)}" for key, part in value.items())


def _shown_part(part: Any) -> str:
    if isinstance(part, dict):
        return ", ".join(f"{name}: {_shown_part(value)}" for name, value in part.items())  # pyright: ignore[reportUnknownVariableType] - as above
    return ", ".join(part) if isinstance(part, list) else str(part)  # pyright: ignore[reportUnknownArgumentType] - as above


def _at(instant_us: int) -> str:
    return instant_text(instant_us, "milliseconds")
