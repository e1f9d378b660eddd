"""Makes a job from a campaign file: reads and checks everything that it names, before anything is consumed or written.

    policies.yaml ─> policy ──┐
    segments/…    ─> snapshot ├─> Accepted ─┐
    users.csv     ─> its size ┘             ├─> Job ─> plan, or run
              └────> audience ──────────────┘

A campaign is accepted without its audience, which whoever prepares it reads. What was seen of its files then (size and
time of writing) must still be so; afterwards what was read in them must be the same.

A segment of the snapshot that the policy does not list has the policy's plain `limits`, like subjects in no segment,
and is still reported under its name. A segment that the policy lists and the snapshot lacks is refused: it is probably
misspelt. A policy whose algorithm keeps no single hits is refused too: after a kill, a hit could be refunded twice.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import msgspec
import numpy as np

from capline.campaign.audience import Audience, read
from capline.campaign.part import Part
from capline.campaign.store.records import Input, RunFacts, StoredRun, changed_inputs
from capline.forms.tree import each_in_a_line
from capline.limiter.arguments.checks import MOST_CODES
from capline.limiter.limiter import Limiter
from capline.model.clock import ManualClock, SystemClock
from capline.model.errors import CampaignError, CaplineError, PolicyError, UnknownNameError
from capline.policy.file import PolicyFileError, loads, read_bytes
from capline.policy.joint import JointPolicy, members_of
from capline.segment import expand, fetch_snapshot
from capline.segment.build.inputs import stamp_of
from capline.segment.publish.follow import DEFAULT_CACHE
from capline.store.open import lmdb_path
from capline.support.instant import instant_text
from capline.support.system import who

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from capline.campaign.file import AudienceSource, CampaignFile
    from capline.campaign.store.packed import Ids
    from capline.campaign.store.protocol import CampaignStore
    from capline.model.policy import Policy
    from capline.observe import Observer
    from capline.policy.file import PolicyFile
    from capline.segment import Snapshot

_T = TypeVar("_T")

SNAPSHOT, NONE = "snapshot", "none"
"""The name of the input of segments, and its text if there are none."""
AUDIENCE = "audience"
_NOBODY = Audience(np.empty(0, np.uint32), np.empty(0, np.uint8), (None,), {})


@dataclass(frozen=True, slots=True)
class Accepted:
    """A campaign whose files are checked, but for what its audience holds."""

    file: CampaignFile
    policies: PolicyFile
    policies_text: bytes
    policy: Policy
    other_inputs: tuple[Input, ...]
    """All inputs except the audience."""
    files_seen: Input
    """The audience's files as they were seen."""

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What must be the same when a run is resumed. What only changes its speed is not among them."""
        return (*self.other_inputs, self.files_seen)

    def changed(self, run: StoredRun) -> list[str]:
        """The inputs that are not as the run was begun with, in words; the audience only as far as it is known."""
        if not run.batches:
            return changed_inputs(run.inputs, (*self.other_inputs, self.files_seen))
        return changed_inputs([each for each in run.inputs if each.name != self.files_seen.name], self.other_inputs)

    def run(self, store: str = "") -> StoredRun:
        """A new run for a campaign store; `store` replaces the file's own store for workers."""
        file = self.file
        now_us = SystemClock().now_us() if file.as_of_us is None else file.as_of_us
        nobody = ((None, 0),)
        facts = RunFacts(file.campaign, file.policy, file.channel, file.cost, 0, nobody, now_us, secrets.token_hex(8))
        return StoredRun(
            replace(facts, is_test=bool(file.only), holds=self._log if file.holds_any else "", log=self._log),
            self.inputs,
            file.text,
            os.path.abspath(file.path),  # noqa: PTH100 - `resolve` would follow links, and paths start where the file is
            store,
            self.policies_text,
            (),
            (),
            0,
            file.priority,
            file.keep_us,
            *(("", "") if file.rate is None else (str(file.rate), file.rate_key)),
        )

    @property
    def _log(self) -> str:
        namespace = self.policies.namespace
        return " ".join(f"{namespace}/{member.log}" for member in members_of(self.policy))

    def take_over_file(self, store: CampaignStore, wanted: StoredRun, *, is_new: bool) -> None:
        """Apply the file to a run that was begun: its texts, and when it is due and over unless someone changed that.

        A file that `is_new` counts as a change by someone.
        """
        self.set_times(store, by=who() if is_new else "")
        store.put_files(wanted)

    def set_times(self, store: CampaignStore, *, by: str = "") -> None:
        """Set when a run is due and over: `by` someone, or as the file says unless someone changed that."""
        file = self.file
        if by or not store.state(file.campaign).changes:
            store.steer(file.campaign, due_us=file.send_at_us, until_us=file.until_us or 0, by=by)

    def open_limiter(self, url: str | None = None, *, create: bool = True) -> Limiter:
        """The limiter of this campaign; see `open_limiter`."""
        return open_limiter(self.file, self.policies, url, create=create)


@dataclass(frozen=True, slots=True)
class Job(Accepted):
    """A campaign that is ready to plan or run."""

    audience: Audience
    audience_input: Input
    """What the audience is."""
    order: NDArray[np.intp] | None
    """The audience's rows zone by zone, where batches wait for a local time; None for their own order."""
    slices: tuple[slice, ...]

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What must be the same when a run is resumed."""
        return (*self.other_inputs, self.audience_input)

    def changed(self, run: StoredRun) -> list[str]:
        """The inputs that are not as the run was begun with, in words."""
        return changed_inputs(run.inputs, (*self.other_inputs, self.audience_input if run.batches else self.files_seen))

    @property
    def batches(self) -> int:
        """How many batches the audience makes."""
        return len(self.slices)

    def rows(self, number: int) -> slice:
        """The subjects of this batch, as a slice of the audience, or of its `order`."""
        return self.slices[number]

    def due_us(self, number: int) -> int:
        """When this batch is due; 0 with its campaign."""
        codes, minute = self.audience.zone_codes, self.file.local_minute
        if self.order is None or codes is None or minute is None:
            return 0
        zone = self.audience.zones[codes[self.order[self.rows(number).start]]]
        return local_instant_us(self.file.send_at_us, minute, zone or self.policy.zone)

    def part(self, number: int, *, texts: bool = True) -> Part:
        """The subjects of this batch, with their further columns, or without."""
        rows = self.rows(number)
        order = np.arange(rows.start, rows.stop, dtype=np.intp) if self.order is None else self.order[rows]
        return self._part(number, order, texts=texts)

    def part_of(self, number: int, ids: Ids) -> Part:
        """A further batch: these subjects of the audience, ascending, with their columns."""
        return self._part(number, self.audience.find(ids), texts=True)

    def _part(self, number: int, rows: NDArray[np.intp], *, texts: bool) -> Part:
        audience = self.audience
        zone_codes = None if audience.zone_codes is None else audience.zone_codes[rows]
        columns = audience.columns(rows) if texts else {}
        return Part(number, audience.ids[rows], audience.codes[rows], columns, zone_codes)

    def run(self, store: str = "") -> StoredRun:
        """A new run for a campaign store; `store` replaces the file's own store for workers."""
        return self.described(Accepted.run(self, store))

    def described(self, run: StoredRun) -> StoredRun:
        """A run with what its audience is."""
        audience = self.audience
        return replace(
            run,
            facts=replace(run.facts, audience=len(audience), segments=audience.sizes(), ids=audience.kind),
            inputs=self.inputs,
            columns=tuple(audience.texts),
            zones=() if audience.zone_codes is None else audience.zones,
            batches=self.batches,
        )


def open_limiter(
    file: CampaignFile,
    policies: PolicyFile,
    url: str | None = None,
    *,
    create: bool = True,
    observers: Sequence[Observer] = (),
) -> Limiter:
    """The limiter of a campaign, on its store or the one at `url`; its clock is real, or stands still at `as_of`.

    With `create` off, a missing store raises `NoStoreError`.
    """
    clock = None if file.as_of_us is None else ManualClock(start_us=file.as_of_us)
    several = [pick_policy(file, policies)] if len(file.policy_names) > 1 else []
    return Limiter(
        url or file.store,
        [*policies.policies, *several],
        clock=clock,
        namespace=file.campaign if file.only else policies.namespace,  # a test send counts for nobody else
        create=create,
        observers=observers,
    )


def local_instant_us(from_us: int, minute: int, zone: str) -> int:
    """The first instant from `from_us` on at which it is this minute of the day in a zone.

    A minute that occurs twice is its first; one that the clock skips is as long after the last one before (02:30 is
    03:30 then).
    """
    at = datetime.fromtimestamp(from_us // 1_000_000, ZoneInfo(zone))
    at = at.replace(hour=minute // 60, minute=minute % 60, second=0, fold=0)
    if int(at.timestamp()) * 1_000_000 < from_us:
        at += timedelta(days=1)
    return int(at.timestamp()) * 1_000_000


def _slices(file: CampaignFile, audience: Audience) -> tuple[NDArray[np.intp] | None, tuple[slice, ...]]:
    """The order of the audience and its batches; a batch that waits for a local time is of one zone."""
    order, ends = None, [len(audience)]
    if file.local_minute is not None and audience.zone_codes is not None:
        order = np.argsort(audience.zone_codes, kind="stable")
        ends = np.cumsum(np.bincount(audience.zone_codes)).tolist()
    return order, tuple(
        slice(start, min(start + file.batch, end))
        for begin, end in pairwise([0, *ends])
        for start in range(begin, end, file.batch)
    )


def limiter_kinds(
    policy: Policy, part: Part, segments: Sequence[str | None], zones: Sequence[str | None]
) -> tuple[list[str | None], list[str | None] | None, NDArray[np.integer[Any]]]:
    """What `decide_many` needs for a part: segments, zones, and codes into both.

    Zones are None if all subjects have the policy's zone, or no limit depends on a zone.
    """
    names: list[str | None] = [None, *policy.by_segment]
    codes_by_name = {name: code for code, name in enumerate(names)}
    codes = np.array([codes_by_name.get(name, 0) for name in segments], np.uint16)[part.codes]
    if part.zone_codes is None or not policy.needs_zone:
        return names, None, codes
    pairs, points = np.unique(codes.astype(np.int64) * len(zones) + part.zone_codes, return_inverse=True)
    kinds = [divmod(pair, len(zones)) for pair in pairs.tolist()]
    return [names[segment] for segment, _ in kinds], [zones[zone] for _, zone in kinds], points


def accept(file: CampaignFile, version: str | None = None) -> Accepted:
    """Check what the file names, but for what its audience holds; raises as `prepare` does."""
    return _checked(file, version, None, reads=False)[0]


def prepare(file: CampaignFile, version: str | None = None, policies: bytes | None = None) -> Job:
    """Read and check what the file names; raises a `CaplineError` that names whatever cannot be used, see `faults_of`.

    `version` is the version of published segments that a resumed run was begun with; a new run takes the newest.
    `policies`: the text of its policies, where they are not read from their file.
    """
    accepted, audience = _checked(file, version, policies, reads=True)
    if file.only:
        audience = audience.only(file.only)
    policy = accepted.policy
    if policy.needs_zone and min(file.batch, (len(policy.by_segment) + 1) * len(audience.zones)) > MOST_CODES:
        raise CampaignError(
            f"{file.path}: {len(policy.by_segment)} segments in {len(audience.zones)} zones are too many for a batch; "
            f"write 'batch: {MOST_CODES}' or less"
        )
    return Job(
        file,
        accepted.policies,
        accepted.policies_text,
        policy,
        accepted.other_inputs,
        accepted.files_seen,
        audience,
        Input(AUDIENCE, audience.digest(), f"{len(audience)} ids"),
        *_slices(file, audience),
    )


def _checked(
    file: CampaignFile, version: str | None, policies_text: bytes | None, *, reads: bool
) -> tuple[Accepted, Audience]:
    faults: list[CaplineError] = []
    named = _noted(faults, _named_policy, file, policies_text)
    opened = _noted(faults, _named_segments, file, version)
    seen = _noted(faults, _seen, file.audience)
    audience = None if reads else _NOBODY
    if reads and seen is not None and (opened is not None or file.audience.kind != "segments"):
        audience = _noted(faults, _read, file.audience, opened and opened[0], seen)
    _noted(faults, file.sender.check, file.audience.columns)
    if file.exclude is not None and reads and audience is not None:
        _noted(faults, file.exclude.among, audience.ids[:1])
    if named is not None and opened is not None:
        _noted(faults, _check_segments, file, named[1], opened[0])
    if named is None or opened is None or seen is None or audience is None or faults:
        raise _as_one(faults, file.policies)
    (policies, policy, text), (snapshot, version) = named, opened
    others = _inputs(file, policies, policy, snapshot, version)
    return Accepted(file, policies, text, policy, others, seen), audience


def _seen(source: AudienceSource) -> Input:
    """What can be seen of an audience without reading it."""
    try:
        stamps = [stamp_of(path) for path in expand(source.paths)] if source.paths else []
    except OSError as error:
        raise CampaignError(f"{error.filename}: the audience cannot be read: {error.strerror}") from None
    last_us = max((written_us for _, written_us, _ in stamps), default=0)
    shown = f"{sum(size for size, _, _ in stamps)} bytes, written {instant_text(last_us)}" if stamps else ""
    names = [path.rpartition("/")[2] for path in source.paths]  # relative or not, it is the same file
    return Input(AUDIENCE, _digest([replace(source, paths=()), names, stamps]), shown)


def _read(source: AudienceSource, snapshot: Snapshot | None, seen: Input) -> Audience:
    audience = read(source, snapshot)
    if _seen(source) != seen:
        raise CampaignError(f"{', '.join(source.paths)}: it changed while it was read; try again when it is whole")
    return audience


def _noted(faults: list[CaplineError], what: Callable[..., _T], *of: object) -> _T | None:
    """The result of a function; None if it raises, and its error is added to the faults."""
    try:
        return what(*of)
    except CaplineError as error:
        faults.append(error)
        return None


def _as_one(faults: Sequence[CaplineError], policies: Path) -> CaplineError:
    """One error that names all faults, and each fault of the policy file."""
    lines: list[str] = []
    for fault in faults:
        found = fault.faults if isinstance(fault, PolicyFileError) else ()
        lines += each_in_a_line(str(policies), found) or [str(fault)]
    if len(lines) == 1:
        return faults[0]
    error = CampaignError(f"{lines[0]} (and {len(lines) - 1} more)")
    for line in lines:
        error.add_note(line)
    return error


def _named_policy(file: CampaignFile, text: bytes | None) -> tuple[PolicyFile, Policy, bytes]:
    text = read_bytes(file.policies)[0] if text is None else text
    policies = loads(text, name=str(file.policies))
    return policies, pick_policy(file, policies), text


def _named_segments(file: CampaignFile, version: str | None) -> tuple[Snapshot | None, str | None]:
    if file.segments is None:
        return None, version
    return open_segments(file, version)


def _check_segments(file: CampaignFile, policy: Policy, snapshot: Snapshot | None) -> None:
    missing = [name for name in policy.by_segment if snapshot is not None and name not in snapshot.names]
    if missing and snapshot is not None:
        raise UnknownNameError(
            f"{file.policies}: policy {policy.name!r} has limits for segment {', '.join(map(repr, missing))}, which is "
            f"not in {file.segments}; there are: {', '.join(snapshot.names) or 'none'}"
        )


def open_segments(file: CampaignFile, version: str | None = None) -> tuple[Snapshot, str]:
    """The segments of the campaign, and their version. Published ones are cached beside the file."""
    if file.segments is None:
        raise CampaignError(f"{file.path}: it names no segments; add 'segments:'")
    cache = file.path.parent / DEFAULT_CACHE
    return fetch_snapshot(file.segments, cache, version=version, trust="nothing")


def begun_version(inputs: Iterable[Input]) -> str | None:
    """The version of segments among the inputs of a begun run; None without segments."""
    return next((each.shown for each in inputs if each.name == SNAPSHOT and each.shown != NONE), None)


def pick_policy(file: CampaignFile, policies: PolicyFile) -> Policy:
    """The policy that the campaign names; raises a `CaplineError` if it is missing, or cannot cap a campaign."""
    by_name = {policy.name: policy for policy in policies.policies}
    for name in file.policy_names:
        if name not in by_name:
            raise UnknownNameError(f"{file.policies}: no policy {name!r}; there are: {', '.join(sorted(by_name))}")
    members = [by_name[name] for name in file.policy_names]
    for member in members:
        if member.shadow:
            raise CampaignError(
                f"{file.path}: policy {member.name!r} is in shadow and refuses nobody; name one that binds, "
                "or take out 'shadow: true'"
            )
    try:
        policy = JointPolicy(members) if members[1:] else members[0]
    except PolicyError as error:
        raise CampaignError(f"{file.path}: {error}") from None
    channels = ", ".join(sorted(policy.channels))
    if file.channel is not None and file.channel not in policy.channels:
        raise UnknownNameError(
            f"{file.path}: policy {policy.name!r} has no channel {file.channel!r}; it has: {channels or 'none'}"
        )
    if file.channel is None and not policy.limits:
        raise CampaignError(
            f"{file.path}: policy {policy.name!r} limits channels only; add 'channel:', one of {channels}"
        )
    if policy.algorithm != "sliding_log":
        raise CampaignError(
            f"{file.path}: policy {policy.name!r} is {policy.algorithm}, which keeps no single hits: after a kill, "
            "a failed delivery could be refunded twice; campaigns need sliding_log"
        )
    if policy.count_denied and file.holds_any:
        raise CampaignError(
            f"{file.path}: policy {policy.name!r} counts what it refuses, so a held message would be refused for ever; "
            "leave out 'over_cap: hold', 'quiet: hold' and 'yields:'"
        )
    return policy


def _inputs(
    file: CampaignFile, policies: PolicyFile, policy: Policy, snapshot: Snapshot | None, version: str | None
) -> tuple[Input, ...]:
    """All inputs except the audience."""
    limits = {
        "namespace": policies.namespace,
        "log": policy.log,
        "algorithm": policy.algorithm,
        "limits": [str(limit) for limit in policy.limits],
        "by_segment": {name: [str(limit) for limit in limits] for name, limits in policy.by_segment.items()},
        "channels": {name: [str(limit) for limit in limits] for name, limits in policy.channels.items()},
        **({"zone": policy.zone} if policy.needs_zone else {}),
        **({"count_denied": True} if policy.count_denied else {}),
    }
    if file.holds_any:  # which are decided by the limits then in force
        limits = {key: limits[key] for key in ("namespace", "log", "algorithm")}
    members: dict[str, list[object]] = {}
    if snapshot is not None:
        members = {name: [len(ids), _sha(ids.to_bytes())] for name, ids in snapshot.sets.items()}
    return (
        Input("campaign name", _digest(file.campaign), file.campaign),
        Input("policy", _digest([policy.name, limits]), policy.name),
        Input("channel", _digest(file.channel), file.channel or "none"),
        Input("store", _digest(store_identity(file.store))),
        Input(SNAPSHOT, _digest(members), NONE if snapshot is None or version is None else version),
        Input("cost", _digest(file.cost), str(file.cost)),
        Input(
            "instant (as_of)",
            _digest(file.as_of_us),
            "the real clock" if file.as_of_us is None else f"{file.as_of_us} us",
        ),
        Input(
            "batch size",
            _digest(file.batch if file.local_minute is None else [file.batch, file.local_minute]),
            str(file.batch),
        ),
        Input("sender", _digest([file.sender.name, file.sender.digest]), file.sender.name),
        *(Input(name, _digest(value)) for name, value in _choices(file) if value is not None),
    )


def _choices(file: CampaignFile) -> Iterable[tuple[str, object]]:
    """Optional settings: each is an input only if the file has it."""
    yield "transactional", file.transactional or None
    yield "over_cap", file.holds_over_cap or None
    yield "quiet", file.holds_quiet or None
    yield "yields", file.yields or None
    named = [
        [each.kind, *(os.path.relpath(path, file.path.parent) for path in each.paths), each.expression, each.column]
        for each in (file.exclude.sources if file.exclude is not None else ())
    ]
    yield "exclude", named or None
    yield "holdout", file.holdout and [file.holdout.group, str(file.holdout.below)]


def store_identity(url: str) -> str:
    """The store that a URL names, without options, credentials and relative paths."""
    parts = urlsplit(url)
    if parts.scheme == "lmdb":
        return f"lmdb:{lmdb_path(url).resolve()}"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _digest(value: object) -> str:
    return _sha(msgspec.json.encode(value, order="sorted"))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
