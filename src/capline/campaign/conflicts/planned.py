"""The campaigns that wait, and whom each is for: of a store what is undecided or held, or a job that is not begun."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from capline.campaign.file import loads_campaign
from capline.campaign.part import Part
from capline.campaign.prepare import begun_version, local_instant_us, pick_policy, prepare, store_identity
from capline.campaign.store.rows import DECIDING, HELD
from capline.model.errors import CampaignError, CaplineError
from capline.policy.file import loads
from capline.policy.joint import members_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from capline.campaign.file import CampaignFile
    from capline.campaign.prepare import Job
    from capline.campaign.store.protocol import CampaignStore
    from capline.campaign.store.records import StoredRun
    from capline.model.policy import Policy
    from capline.policy.file import PolicyFile

_HELD_BITS = 32


@dataclass(frozen=True, slots=True)
class WaitingPart:
    """Who of a batch waits: to be decided; or held, asked for first at `since_us`, until an instant each."""

    part: Part
    until_us: NDArray[np.int64] | None = None
    since_us: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """A campaign that waits. `part` reads one of its `batches`; None where nobody waits in it, or it was set aside.

    It is due at `due_us`, or later where its file says `send_at_local`, and over at `until_us` (0: never). `place` is
    where its logs are: its store and namespace, and whether its ids are texts.
    """

    file: CampaignFile
    policies: PolicyFile
    policy: Policy
    due_us: int
    until_us: int
    segments: tuple[str | None, ...]
    zones: tuple[str | None, ...]
    place: tuple[str, str, bool]
    batches: int
    part: Callable[[int], WaitingPart | None]
    holds: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Until and since when messages are held, as found so far, and the number of each in `kinds`."""

    @classmethod
    def of_job(cls, job: Job, now_us: int, due_us: int, until_us: int, store: str = "") -> Planned:
        """A campaign whose audience was read, whether it is begun or not."""
        file = replace(job.file, store=store or job.file.store)
        place = store_identity(file.store), job.policies.namespace, job.audience.kind == "text"
        times = max(now_us, due_us), until_us
        kinds = job.audience.segments, job.audience.zones

        def part(number: int) -> WaitingPart:
            return WaitingPart(job.part(number, texts=False))

        return cls(file, job.policies, job.policy, *times, *kinds, place, job.batches, part)

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.file.campaign

    @property
    def logs(self) -> frozenset[str]:
        """The logs of its policies: campaigns that share one, at one place, count each other's messages."""
        return frozenset(policy.log for policy in members_of(self.policy))

    @property
    def zones_told_apart(self) -> int:
        """How many of its zones make a difference."""
        return len(self.zones) if self.policy.needs_zone or self.file.local_minute is not None else 1

    @property
    def most_kinds(self) -> int:
        """How many kinds of recipients there may be: pairs of segment and zone, by how they are held."""
        return self.pairs << (_HELD_BITS if self.file.holds_any else 0)

    @property
    def pairs(self) -> int:
        """Pairs of segment and zone."""
        return len(self.segments) * self.zones_told_apart

    def due_in(self, zone: int) -> int:
        """When those in this zone are due."""
        minute = self.file.local_minute
        if minute is None:
            return self.due_us
        name = self.zones[zone] or self.policy.zone
        return max(self.due_us, local_instant_us(self.file.send_at_us, minute, name))

    def streams(self) -> Iterator[Sequence[int]]:
        """The batches, in lists whose ids ascend from one batch to the next."""
        if self.file.local_minute is None:
            yield range(self.batches)
            return

        def zone_of(number: int) -> int:
            waiting = self.part(number)
            zones = None if waiting is None else waiting.part.zone_codes
            return -1 if zones is None or not len(zones) else int(zones[0])

        for _, numbers in groupby(range(self.batches), zone_of):
            yield [*numbers]

    def kinds(self, waiting: WaitingPart) -> NDArray[np.int64]:
        """The kind of each recipient of a batch, from 1 on."""
        part, zones = waiting.part, self.zones_told_apart
        kinds = part.codes.astype(np.int64) * zones + 1
        if zones > 1 and part.zone_codes is not None:
            kinds += part.zone_codes
        if waiting.until_us is not None:
            instants, of = np.unique(waiting.until_us, return_inverse=True)
            held = [(until_us, waiting.since_us) for until_us in instants.tolist()]
            numbers = [self.holds.setdefault(each, len(self.holds) + 1) for each in held]
            kinds += self.pairs * np.array(numbers, np.int64)[of]
        return kinds


def planned_in(store: CampaignStore, now_us: int, *, but: str = "") -> tuple[list[Planned], dict[str, str]]:
    """The campaigns in a store that are neither over nor paused, without one; by name why others cannot be read.

    Test sends count for nobody, and are not among them.
    """
    found: list[Planned] = []
    unread: dict[str, str] = {}
    for name in sorted(store.ages_s(math.inf)):
        try:
            run = None if name == but else store.find(name)
            planned = None if run is None else _planned(store, run, now_us)
        except CaplineError as error:
            unread[name] = str(error)
        else:
            found += [] if planned is None else [planned]
    return found, unread


def _planned(store: CampaignStore, run: StoredRun, now_us: int) -> Planned | None:
    name, state = run.facts.campaign, store.state(run.facts.campaign)
    if run.facts.is_test or not state.goes_on(now_us):
        return None
    if state.refused is not None:
        raise CampaignError(f"its audience is refused: {state.refused}")
    file = loads_campaign(run.text, Path(run.path))
    if file.as_of_us is not None:  # a rehearsal waits for nothing
        return None
    due_us = int(state.due_us)
    if not state.is_whole:
        job = prepare(file, begun_version(run.inputs), run.policies)
        return Planned.of_job(job, now_us, due_us, state.until_us, run.store)
    file = replace(file, store=run.store or file.store)
    policies = loads(run.policies, name=str(file.policies))
    policy = pick_policy(file, policies)

    def part(number: int) -> WaitingPart | None:
        batch = None if number in state.aside else store.stored(name, number)
        rows = None if batch is None else batch.steps()
        held = None if rows is None else np.isin(rows.state, (HELD, DECIDING))
        if batch is None or (held is not None and not held.any()):
            return None
        if not batch.data:
            raise CampaignError("its subjects are where it was begun, by capline campaign run")
        part = Part.claimed(batch, run)
        if rows is None or held is None:
            return WaitingPart(part)
        until_us = np.where(rows.state == HELD, rows.held_until_us, 0)[held]
        return WaitingPart(part.take(held), np.maximum(until_us, now_us), rows.at_us)

    return Planned(
        file,
        policies,
        policy,
        max(now_us, due_us),
        state.until_us,
        tuple(segment for segment, _ in run.facts.segments),
        run.zones or (None,),
        (store_identity(file.store), policies.namespace, run.facts.ids == "text"),
        state.batches,
        part,
    )
