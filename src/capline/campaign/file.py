"""The campaign file: YAML in, a `CampaignFile` out, or every fault with its line.

docs/reference/campaigns.md has each key and what it means.

The rule: a file is accepted whole or not at all; nothing is guessed, and unknown keys are refused. Paths, also the
store's, are relative to the file. `prepare` checks the files that it names.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec
import numpy as np

from capline.campaign.audience import AudienceSource
from capline.campaign.exclusion import Exclusion, Holdout
from capline.campaign.rate import parse_rate
from capline.campaign.senders.file import FileSender
from capline.campaign.senders.find import build_sender
from capline.campaign.senders.template import filled
from capline.campaign.store.rows import LARGEST_BATCH
from capline.forms.fields import Fields
from capline.forms.tree import each_in_a_line, in_one_line, read_tree, shown
from capline.model.attempt import check_cost
from capline.model.errors import CampaignError, CaplineError, InvalidValueError
from capline.model.limit import LARGEST_QUOTA, QuietHours, parse_span
from capline.model.policy import check_name
from capline.policy.joint import MARK
from capline.segment.files import read
from capline.segment.objects.address import REMOTE
from capline.store.open import DEFAULT_URL
from capline.support.instant import zoned_instant_us

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from capline.campaign.senders.find import BuiltSender
    from capline.campaign.store.packed import Ids
    from capline.model.limit import Limit

T = TypeVar("T")

LARGEST_FILE_BYTES = 1 << 20
MOST_ONLY = 100
_LONGEST_STEM = 50
_HOLDS = ("over_cap", "quiet", "yields")

SUFFIXES = {"csv": (".csv", ".csv.gz"), "parquet": (".parquet", ".pq"), "bitmap": (".roaring", ".bitmap")}
_SOURCES = (*SUFFIXES, "segments")


@dataclass(frozen=True, slots=True)
class Retry:
    """How transient failures are retried: the wait doubles from `wait_s` up to `longest_s`."""

    attempts: int = 4
    wait_s: float = 1.0
    longest_s: float = 60.0


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """What a campaign file says. Paths are resolved; the sender is made but not opened.

    `policy`: the name of several has `+` between theirs (`policy_names`).

    `text` is the file's text, `store_text` its store with each `${NAME}` as written, `as_of_us` the instant of a
    rehearsal, None for the real clock. `rehearsal`: the store is for rehearsals only. `send_at_us`: when it is due, 0
    for at once; `local_minute`: the minute of each subject's own day that it waits for from then on. `until_us`: when
    it is cancelled, None for never. `only`: ids, of a test send, which has a name of its own. `rate`: messages for all
    campaigns of this `rate_key`, None for no limit. `exclude` and `holdout`: who is not sent to. `keep_us`: how long
    after its end it is kept, None for as long as its store does.
    """

    path: Path
    text: str
    campaign: str
    policies: Path
    policy: str
    channel: str | None
    store: str
    store_text: str
    segments: Path | str | None
    audience: AudienceSource
    cost: int
    as_of_us: int | None
    rehearsal: bool
    send_at_us: int
    local_minute: int | None
    until_us: int | None
    priority: int
    keep_us: int | None
    rate: Limit | None
    rate_key: str
    transactional: bool
    holds_over_cap: bool
    holds_quiet: bool
    yields: bool
    exclude: Exclusion | None
    holdout: Holdout | None
    only: tuple[str, ...]
    batch: int
    retry: Retry
    sender: BuiltSender

    @property
    def policy_names(self) -> list[str]:
        """The names of its policies."""
        return self.policy.split(MARK)

    @property
    def holds_any(self) -> bool:
        """Whether it holds messages that some limit refuses, or that leave room for others."""
        return self.holds_over_cap or self.holds_quiet or self.yields

    def left_out(self, ids: Ids) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of these are excluded, and which of the others are held out."""
        nobody = np.zeros(len(ids), bool)
        excluded = nobody if self.exclude is None else self.exclude.among(ids)
        return excluded, nobody if self.holdout is None else self.holdout.among(ids) & ~excluded

    def holds(self, limit: Limit) -> bool:
        """Whether it holds what this limit refuses."""
        return self.holds_quiet if isinstance(limit, QuietHours) else self.holds_over_cap


def load_campaign(path: str | os.PathLike[str], only: Sequence[str] = ()) -> CampaignFile:
    """Read a campaign file; `CampaignError` with the first fault, its line and fix, and the lines of the others."""
    path = Path(path)
    return loads_campaign(text_of(path, only), path)


def text_of(path: Path, only: Sequence[str] = ()) -> str:
    """The text of a campaign file, or of a test send of it; `CampaignError` where it cannot be read."""
    try:
        data = read(path, LARGEST_FILE_BYTES)
    except CaplineError as error:
        raise CampaignError(str(error)) from None
    try:
        text = data.decode("utf-8-sig")
        return f"{text.rstrip()}\nonly: {msgspec.json.encode(only).decode()}\n" if only else text
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CampaignError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None


def loads_campaign(text: str, path: Path) -> CampaignFile:
    """Read a campaign file from its text; `path` is its name in errors and the base of relative paths."""
    root, faults = read_tree(text)
    campaign = None
    if root is not None:
        campaign = _read(Fields(root, "", faults, path.parent, "campaign: summer-sale"), path, text)
    elif not faults:
        faults = [(0, "the file is empty; begin it with 'campaign: a-name'")]
    if faults or campaign is None:
        error = CampaignError(in_one_line(str(path), faults))
        for each in each_in_a_line(str(path), faults):
            error.add_note(each)
        raise error
    return campaign


def _read(fields: Fields, path: Path, text: str) -> CampaignFile:
    campaign = CampaignFile(
        path=path,
        text=text,
        campaign=fields.checked("campaign", lambda name: check_name(name, "campaign")),
        policies=fields.path("policies", "policies.yaml"),
        policy=_policy(fields),
        channel=fields.optional("channel"),
        store_text=(store := fields.text("store", DEFAULT_URL)),
        store=_beside(path, filled(fields, "store", store)),
        segments=_segments(fields),
        audience=_audience(fields),
        cost=_cost(fields),
        as_of_us=(as_of_us := _parsed(fields, "as_of", zoned_instant_us)),
        rehearsal=fields.flag("rehearsal", default=False),
        send_at_us=_parsed(fields, "send_at", zoned_instant_us) or 0,
        local_minute=_parsed(fields, "send_at_local", _minute),
        until_us=_parsed(fields, "until", zoned_instant_us),
        priority=fields.whole("priority", 50, 0, 100),
        keep_us=_parsed(fields, "keep", lambda text: parse_span(text, "keep")),
        rate=_parsed(fields, "rate", parse_rate),
        rate_key=fields.checked("rate_key", lambda name: check_name(name, "rate_key"), ""),
        transactional=fields.flag("transactional", default=False),
        holds_over_cap=_holds(fields, "over_cap"),
        holds_quiet=_holds(fields, "quiet"),
        yields=fields.flag("yields", default=False),
        exclude=_exclude(fields),
        holdout=_holdout(fields),
        only=_only(fields),
        batch=fields.whole("batch", 10_000, 1, LARGEST_BATCH),
        retry=_retry(fields),
        sender=build_sender(fields.section("sender", "{file: out/}"), fields),
    )
    for key in ("send_at", "send_at_local", "until", "rate", *_HOLDS) if as_of_us is not None else ():
        if fields.has(key):
            fields.fault(key, "a rehearsal waits for nothing; leave out 'as_of:' or this")
    if campaign.local_minute is not None and not (campaign.send_at_us and campaign.audience.zone_column):
        fields.fault(
            "send_at_local", "it needs 'send_at:', from when on it counts, and a 'zone_column:' in 'audience:'"
        )
    if campaign.until_us is not None and campaign.until_us <= campaign.send_at_us:
        fields.fault("until", "it is over before it is due; name an instant after 'send_at:'")
    if campaign.rate is not None and campaign.sender.sender.most is None:
        fields.fault("rate", f"{campaign.sender.name} takes a batch as a whole, however large; leave it out")
    for key in ("holdout", *_HOLDS) if campaign.transactional else ():
        if fields.has(key):
            fields.fault(key, "a transactional message goes to everyone; leave out 'transactional:' or this")
    if campaign.rate is None and fields.has("rate_key"):
        fields.fault("rate_key", "it needs a 'rate:', like 5000/s")
    fields.close()
    campaign = replace(campaign, rate_key=campaign.rate_key or campaign.campaign)
    return _test_send(campaign) if campaign.only else campaign


def _policy(fields: Fields) -> str:
    names = fields.texts("policy", like="promo")
    if any(MARK in name for name in names):
        fields.fault("policy", f"write several policies as a list: [{', '.join(MARK.join(names).split(MARK))}]")
    return MARK.join(names)


def _only(fields: Fields) -> tuple[str, ...]:
    only = fields.texts("only", (), "[42, 43]")
    if len(set(only)) != len(only) or len(only) > MOST_ONLY:
        fields.fault("only", f"a test send has at most {MOST_ONLY} recipients, each once; here are {len(only)}")
    return only


def _test_send(file: CampaignFile) -> CampaignFile:
    """The test send as a campaign of its own, sent at once; the same text makes the same campaign."""
    digest = hashlib.sha256(file.text.encode()).hexdigest()[:8]
    sender = file.sender.sender
    if isinstance(sender, FileSender):
        sender.directory = sender.directory.with_name(f"{sender.directory.name}.test-{digest}")
    name = f"{file.campaign[:_LONGEST_STEM]}.test-{digest}"
    at_once = replace(file, send_at_us=0, local_minute=None, until_us=None, holds_over_cap=False, holds_quiet=False)
    return replace(at_once, campaign=name, holdout=None, yields=False)


def _beside(path: Path, store: str) -> str:
    """The store's URL, with the path of an embedded store relative to the file made absolute."""
    parts = urlsplit(store)
    if parts.scheme != "lmdb" or not parts.netloc or parts.netloc.startswith("~"):
        return store
    where = os.path.abspath(path.parent / unquote(parts.netloc + parts.path))  # noqa: PTH100 - links are not followed
    return f"lmdb://{quote(where)}{'?' + parts.query if parts.query else ''}"


def _segments(fields: Fields) -> Path | str | None:
    """A snapshot's directory, or a publication's address as it stands."""
    text = fields.optional("segments")
    return text if text is None or "://" in text else fields.base / text


def _audience(fields: Fields) -> AudienceSource:
    part = fields.section("audience", "{csv: users.csv, column: id}")
    if part is None:
        fields.fault(None, "no 'audience:' here; add it, like audience: {csv: users.csv, column: id}")
        return AudienceSource("csv")
    kinds = _kinds(part)
    if part.has("upload"):
        part.fault("upload", "an upload is at a service; ask it, by --server URL, or name a file")
        part.rest()
        return AudienceSource("csv")
    if len(kinds) != 1:
        part.fault(None, f"name one of {', '.join(_SOURCES)}, and only one; here are {', '.join(kinds) or 'none'}")
        part.rest()
        return AudienceSource("csv")
    source = _source(fields, part, kinds[0])
    if source.kind in ("csv", "parquet"):
        source = replace(
            source,
            column=part.text("column", "id"),
            columns=part.texts("columns", ()),
            drop_duplicates=part.one_of("duplicates", ("error", "drop"), "error") == "drop",
            zone_column=part.optional("zone_column", like="zone"),
            ids=part.one_of("ids", ("number", "text"), "number") if part.has("ids") else None,
        )
        if len({source.column, *source.columns}) <= len(source.columns):
            part.fault("columns", f"name each column once, and not {shown(source.column)}, which is the id")
        if source.zone_column == source.column:
            part.fault("zone_column", f"not {shown(source.column)}, which is the id; name the column of time zones")
    part.close()
    return source


def _kinds(part: Fields) -> list[str]:
    return [key for key in part.keys() if key in _SOURCES]  # noqa: SIM118 - Fields is no dictionary


def _source(fields: Fields, part: Fields, kind: str) -> AudienceSource:
    """Where ids come from: files, or an expression over the segments."""
    if kind != "segments":
        return AudienceSource(kind, _paths(part, kind))
    if not fields.has("segments"):
        part.fault(kind, "an expression over segments needs a snapshot; add 'segments: DIR' to the file")
    return AudienceSource(kind, expression=part.text(kind, like="active - churned"))


def _exclude(fields: Fields) -> Exclusion | None:
    part = fields.section("exclude", like := "{csv: optouts.csv, column: id}")
    if part is None:
        return None
    kinds = _kinds(part)
    if not kinds and part.is_mapping:
        part.fault(None, f"name {', '.join(_SOURCES)} or several of them, like exclude: {like}")
    sources = tuple(_source(fields, part, kind) for kind in kinds)
    for path in (path for source in sources for path in source.paths):
        if "://" in path:
            part.fault(None, f"{shown(path)}: name a file; what changes far away is published as segments")
    column = part.text("column", "id")
    part.close()
    return Exclusion(tuple(replace(source, column=column) for source in sources), _segments(fields), fields.base)


def _holdout(fields: Fields) -> Holdout | None:
    group = fields.checked("holdout_group", lambda name: check_name(name, "holdout_group"), "")
    if fields.has("holdout_group") and not fields.has("holdout"):
        fields.fault("holdout_group", "it needs a 'holdout:', like 5%")
    return _parsed(fields, "holdout", lambda share: Holdout.parse(share, group or fields.text("campaign", "")), "5%")


def _holds(fields: Fields, key: str) -> bool:
    return fields.one_of(key, ("drop", "hold"), "drop") == "hold"


def _paths(part: Fields, kind: str) -> tuple[str, ...]:
    paths = part.texts(kind, like=f"users{SUFFIXES[kind][0]}")
    for path in paths:
        if path and not path.endswith(SUFFIXES[kind]):
            part.fault(kind, f"{shown(path)}: the name of a {kind} file ends in {' or '.join(SUFFIXES[kind])}")
        if "://" in path and path.partition("://")[0].lower() not in REMOTE:
            part.fault(kind, f"{shown(path)}: an object's address begins with {', '.join(REMOTE)}")
    return tuple(path if "://" in path else str(part.base / path) for path in paths)


def _cost(fields: Fields) -> int:
    cost = fields.whole("cost", 1, 0, LARGEST_QUOTA)
    try:
        return check_cost(cost)
    except CaplineError as error:
        fields.fault("cost", str(error))
        return 1


def _parsed(fields: Fields, key: str, parse: Callable[[str], T], like: str = "") -> T | None:
    """The value of a text; None if the text is left out or faulty."""
    text = fields.optional(key, like)
    try:
        return parse(text) if text else None
    except (CaplineError, ValueError) as error:
        fields.fault(key, str(error))
        return None


def _minute(text: str) -> int:
    found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)", text, re.ASCII)
    if found is None:
        raise InvalidValueError(f"{shown(text)} is not a time of the day; write it like 16:00")
    return 60 * int(found[1]) + int(found[2])


def _retry(fields: Fields) -> Retry:
    part = fields.section("retry", "{attempts: 4, wait: 1, longest: 60}")
    usual = Retry()
    if part is None:
        return usual
    retry = Retry(
        part.whole("attempts", usual.attempts, 1, 100),
        part.seconds("wait", usual.wait_s, 3600),
        part.seconds("longest", usual.longest_s, 86_400),
    )
    part.close()
    return retry
