"""The target of a command about one subject: store, policy, and the subject's segment, channel and zone.

They come from single options, from `--segments` (which looks up the subject's segment), or from a campaign's file, with
its clock and cost. Remarks on standard error tell what was looked up or assumed; and, where nothing is found for one of
them, that 42 and "42" are two subjects. `--and` names the further subjects of a joint attempt.

Cost: `--segments` opens or fetches a snapshot; `--campaign` reads all that a run would read, the audience too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from capline.cli.render.console import note, plain, warn
from capline.model.attempt import Attempt
from capline.model.errors import InvalidValueError, quoted
from capline.model.subject import LARGEST_ID, Subject, parse_subject, subject_text
from capline.model.zone import UTC_ZONE
from capline.policy.joint import members_of

if TYPE_CHECKING:
    import typer

    from capline.campaign import CampaignFile, Job
    from capline.cli.input.options import Place
    from capline.limiter.explain import Explanation
    from capline.limiter.limiter import Limiter
    from capline.model.policy import Policy
    from capline.segment import Snapshot

_COST = re.compile(r"[0-9]{1,20}")
_OF_A_CAMPAIGN = ("policies", "store", "config", "segment", "segments", "channel", "zone")
"""Options whose values are in a campaign's file."""


@dataclass(frozen=True, slots=True)
class Target:
    """The limiter, the attempt, and the zone in which times are shown; `job` is the campaign's."""

    limiter: Limiter
    attempt: Attempt
    zone: str
    job: Job | None
    remarks: list[str]
    find: Callable[[Policy, Subject], str | None]
    """The subject's segment under a policy, by `--segments`; None without that option."""

    def with_segment(self, part: Attempt) -> Attempt:
        """A further part of a joint attempt, with its own segment."""
        policy = self.limiter.policies.get(part.policy)
        if policy is None or not policy.by_segment:
            return part
        return msgspec.structs.replace(part, segment=self.find(policy, part.subject))

    @property
    def names(self) -> dict[str, str | None]:
        """What a verb of the limiter takes by name: the segment, the channel and the zone."""
        attempt = self.attempt
        return {"segment": attempt.segment, "channel": attempt.channel, "zone": attempt.zone}

    def explain(self, ids: Sequence[str] = (), subject: Subject | None = None) -> Explanation:
        """Explain this subject or another one; of a campaign, ids may be message keys."""
        attempt = self.attempt
        who = attempt.subject if subject is None else subject
        why = self.limiter.explain(attempt.policy, who, ids=ids, **self.names)
        return why if self.job is None or not ids else _with_messages(why, self.job.file, ids, self.remarks)


@contextmanager
def target(
    context: typer.Context, place: Place, cost: int | None = None, id: str | None = None, *, create: bool = False
) -> Generator[Target]:
    """Open the limiter and look up what was not typed; `create` makes a missing store.

    What was looked up or assumed is printed at the end, on standard error.
    """
    _refuse_beside_campaign(context)
    remarks: list[str] = []
    who = place.who
    snapshot = cache(_snapshot)

    def find(policy: Policy, subject: Subject) -> str | None:
        if place.segments is None:
            return None
        name = _look_up(snapshot(place.segments), subject, place.segments)
        return _found(policy, subject, name, place.segments, remarks)

    with ExitStack() as stack:
        if place.campaign is None:
            job, limiter = None, stack.enter_context(place.limiter(create=create))
            segment = _segment(limiter.policies.get(place.policy), place, who, find, remarks)
            attempt = Attempt(place.policy, who, 1 if cost is None else cost, id, segment, place.channel, place.zone)
        else:
            job, attempt = _of_campaign(place.campaign, place.policy, who, cost, id, remarks)
            limiter = stack.enter_context(job.open_limiter(create=create))
        rule = limiter.policies.get(attempt.policy)
        zone = (attempt.zone or rule.zone) if rule is not None and rule.needs_zone else UTC_ZONE
        yield Target(limiter, attempt, zone, job, remarks, find)
        for remark in remarks:
            note.print(plain(remark), style="dim", soft_wrap=True)


def _refuse_beside_campaign(context: typer.Context) -> None:
    """Raise where `--campaign` was typed with an option whose value is in the campaign's file."""
    for name in _OF_A_CAMPAIGN if context.params.get("campaign") is not None else ():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            typed = "config-store" if name == "config" else name
            raise InvalidValueError(f"the file of --campaign says it: leave out --{typed}")


def _segment(
    policy: Policy | None,
    place: Place,
    subject: Subject,
    find: Callable[[Policy, Subject], str | None],
    remarks: list[str],
) -> str | None:
    """The segment as it was named, or as a snapshot has it."""
    if place.segments is not None and place.segment is not None:
        raise InvalidValueError("--segment names it, --segments looks it up; give one of them")
    if policy is None or not policy.by_segment:
        return place.segment
    if place.segments is not None:
        return find(policy, subject)
    if place.segment is None:
        remarks.append(
            f"policy {policy.name} differs by segment, and none was named: shown are the limits of subjects in no "
            "segment; see --segment, --segments and --campaign"
        )
    return place.segment


def _snapshot(address: str) -> Snapshot:
    from capline.segment import fetch_snapshot  # noqa: PLC0415 - imports roaring bitmaps, which few commands need

    return fetch_snapshot(address)[0]


def _look_up(snapshot: Snapshot, subject: Subject, where: object) -> str | None:
    if isinstance(subject, str) != (snapshot.kind == "text"):
        other = "text" if isinstance(subject, int) else "numbers"
        raise InvalidValueError(
            f"subject {subject_text(subject)} cannot be in {where}: the ids there are {other}; write i:42 for the "
            "number 42, s:42 for the text"
        )
    return snapshot.segment_of(subject)


def _found(policy: Policy, subject: Subject, name: str | None, where: object, remarks: list[str]) -> str | None:
    """The segment for the policy: None if the policy does not list it."""
    who = subject_text(subject)
    if name is None:
        remarks.append(f"{who} is in no segment of {where}")
    elif name not in policy.by_segment:
        remarks.append(
            f"{who} is in segment {name} of {where}, for which policy {policy.name} has no limits of its own"
        )
        return None
    else:
        remarks.append(f"{who} is in segment {name} of {where}")
    return name


def _of_campaign(
    path: Path, name: str, subject: Subject, cost: int | None, id: str | None, remarks: list[str]
) -> tuple[Job, Attempt]:
    from capline.campaign import (  # noqa: PLC0415 - imports roaring bitmaps and Arrow
        Ledger,
        begun_version,
        default_directory,
        load_campaign,
        open_segments,
        prepare,
    )

    file = load_campaign(path)
    job = prepare(file, begun_version(Ledger.begun_inputs(default_directory(path))))
    policy = next((member for member in members_of(job.policy) if member.name == name), None)
    if policy is None:
        raise InvalidValueError(
            f"{path}: this campaign is under policy {' and '.join(map(repr, file.policy_names))}, not {name!r}"
        )
    if isinstance(subject, str) != (job.audience.kind == "text"):
        raise InvalidValueError(
            f"subject {subject_text(subject)}: this campaign's ids are {job.audience.kind}; write i:42 for the number "
            "42, s:42 for the text"
        )
    row = job.audience.row_of(subject)
    zone = segment = None
    if row is not None:
        segment = job.audience.segments[int(job.audience.codes[row])]
        if policy.needs_zone and job.audience.zone_codes is not None:
            zone = job.audience.zones[int(job.audience.zone_codes[row])]
    else:
        remarks.append(f"{subject_text(subject)} is not in the audience of {path}")
        if file.segments is not None:
            segment = _look_up(open_segments(file, begun_version(job.inputs))[0], subject, file.segments)
    if policy.by_segment:
        segment = _found(policy, subject, segment, file.segments or path, remarks)
    cost = file.cost if cost is None else cost
    channel = file.channel if len(file.policy_names) == 1 or file.channel in policy.channels else None
    return job, Attempt(policy.name, subject, cost, id, segment, channel, zone)


def _with_messages(why: Explanation, file: CampaignFile, ids: Sequence[str], remarks: list[str]) -> Explanation:
    """Mark the subject's hit with the key of its message, by the campaign's ledger."""
    from capline.campaign import Ledger, default_directory  # noqa: PLC0415 - as above
    from capline.campaign.senders.protocol import message_key  # noqa: PLC0415 - as above

    directory = default_directory(file.path)
    if not directory.is_dir():
        remarks.append(f"{directory}: the campaign has no ledger here, so the hits of its messages are not known")
        return why
    with Ledger.read(directory) as ledger:
        key = message_key(ledger.facts.campaign, ledger.facts.run_id, why.subject)
        if key not in ids:
            return why
        stamp_us = None
        for rows in reversed([*ledger.batches_of(why.subject)]):
            for row in (rows.ids == why.subject).nonzero()[0].tolist():
                stamp_us = int(rows.hit[row])
    if stamp_us is None or stamp_us < 0:
        remarks.append(f"message {key} has no hit: it was {'not decided yet' if stamp_us is None else 'refused'}")
        return why
    hits = tuple(msgspec.structs.replace(hit, id=key) if hit.stamp_us == stamp_us else hit for hit in why.hits)
    if hits == why.hits:
        remarks.append(f"message {key}: its hit {stamp_us} is out of every window")
    return msgspec.structs.replace(why, hits=hits)


def read_also(also: Sequence[str], id: str | None, *, as_text: bool) -> list[Attempt]:
    """The further parts of a joint attempt, each `policy=subject` or `policy:cost=subject`.

    A policy's name has no `=`. What stands behind its last colon is the cost, unless there is a `/` in it:
    `GET:/search=x` names no cost, and a policy `a:b` is written with one, `a:b:1=x`.
    """
    attempts: list[Attempt] = []
    for words in also:
        named, equals, subject = words.partition("=")
        policy, colon, cost = named.rpartition(":")
        if not colon or "/" in cost:
            policy, cost = named, ""
        if not equals or (policy != named and not _COST.fullmatch(cost)):
            raise InvalidValueError(
                f"--and {quoted(words)}: write policy=subject, or policy:cost=subject, like tenant:2=acme"
            )
        attempts.append(Attempt(policy, parse_subject(subject, as_text=as_text), int(cost or 1), id))
    return attempts


def twin_of(subject: Subject) -> Subject | None:
    """The other subject with the same digits, if there is one."""
    if isinstance(subject, int):
        return str(subject)
    if subject.isascii() and subject.isdecimal() and int(subject) <= LARGEST_ID and str(int(subject)) == subject:
        return int(subject)
    return None


def is_empty(why: Explanation) -> bool:
    """Whether nothing at all is held."""
    return not why.hits and not any(state.used for state in why.limits)


def warn_of_twin(limiter: Limiter, subject: Subject, policy: str | None = None) -> Subject | None:
    """Warn that nothing was found for this subject, but its digits name another one; return that if it has hits.

    Looks under this policy, or under all.
    """
    twin = twin_of(subject)
    if twin is None:
        return None
    names = limiter.policies if policy is None else [policy]
    there = any(not is_empty(_explained(limiter, name, twin)) for name in names)
    found = f"{_named(twin)} has hits here" if there else "neither has a hit here"
    warn(f"nothing is held for {_named(subject)}; {_named(twin)} is another subject: {found}")
    return twin if there else None


def _explained(limiter: Limiter, name: str, subject: Subject) -> Explanation:
    policy = limiter.policies[name]
    return limiter.explain(name, subject, channel=None if policy.limits else next(iter(policy.channels)))


def _named(subject: Subject) -> str:
    return f"i:{subject} (the integer)" if isinstance(subject, int) else f"{subject_text(subject)} (the text)"
