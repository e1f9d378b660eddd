"""What scheduled campaigns do to each other, beside a naive oracle that counts message by message."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from tests.kit.campaign import AT_US, HOUR_US
from tests.profiles import size, sized

from capline import Limiter, ManualClock, Policy
from capline.campaign.conflicts import find, patterns
from capline.campaign.conflicts.find import Conflict, conflicts
from capline.campaign.conflicts.past import Past
from capline.campaign.conflicts.patterns import Patterns, blocks
from capline.campaign.conflicts.planned import Planned, WaitingPart
from capline.campaign.file import loads_campaign
from capline.campaign.part import Part
from capline.campaign.prepare import pick_policy
from capline.policy.file import loads

SECOND_US = 1_000_000
ZONES = (None, "Asia/Tokyo", "America/New_York")
SEGMENTS = (None, "new", "gone")
UNDER = ["promo"] * 5 + ["apart", "all", "[all, promo]", "[all, promo]", "[promo, apart]", "[apart, promo, all]"]
"""One policy or several, as files name them."""
FILE = """\
campaign: {name}
policies: policies.yaml
policy: {policy}
store: {store}
audience: {{csv: users.csv, column: id, zone_column: zone}}
sender: {{file: out/}}
send_at: 2026-11-21T16:00:00Z
"""


@dataclass
class Message:
    """One of a campaign for one subject."""

    planned: Planned
    segment: str | None
    zone: str | None
    held: tuple[int, int] = (0, 0)
    """Until and since when it is held already."""
    fate: str = "refused"
    takers: frozenset[str] = frozenset()
    limit: str = ""

    @property
    def under(self) -> list[Policy]:
        """The policies that must all allow it."""
        by_name = {policy.name: policy for policy in self.planned.policies.policies}
        return [by_name[name] for name in self.planned.file.policy.split("+")]

    def logs(self) -> dict[str, tuple[str, Sequence[Any]]]:
        """The logs that it counts in, a channel's beside its policy's; how each names its limits, and these."""
        found: dict[str, tuple[str, Sequence[Any]]] = {}
        for policy in self.under:
            several = len(self.under) > 1
            limits = policy.by_segment.get(self.segment or "", policy.limits)
            found[policy.name] = f"{policy.name}: " if several else "", limits
            channel = self.planned.file.channel
            if channel and channel in policy.channels:
                title = f"{policy.name}/{channel}"
                found[title] = f"{title}: " if several else "", policy.channels[channel]
        return found

    def due_us(self) -> int:
        if self.held[0]:
            return max(AT_US, self.held[0])
        minute = self.planned.file.local_minute
        if minute is None:
            return self.planned.due_us
        zone = ZoneInfo(self.zone or self.planned.policy.zone)
        at = datetime.fromtimestamp(self.planned.file.send_at_us // SECOND_US, zone)
        local = at.replace(hour=minute // 60, minute=minute % 60, second=0)
        local += timedelta(days=local.timestamp() * SECOND_US < self.planned.file.send_at_us)
        return max(self.planned.due_us, int(local.timestamp()) * SECOND_US)


Hit = tuple[int, int, str, frozenset[str]]
"""Stamp, units, campaign (empty: the past), logs."""


@dataclass
class Naive:
    """All that happens to one subject."""

    messages: Mapping[str, Message]
    hits: list[Hit]
    held: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    due_us: dict[str, int] = field(default_factory=dict[str, int])

    def run(self) -> None:
        self.due_us = {
            name: each.due_us()
            for name, each in self.messages.items()
            if not 0 < each.planned.until_us <= each.due_us()
        }
        due: list[tuple[int, int, int, str]] = []
        for name, message in self.messages.items():
            at_us = message.due_us()
            if message.held[0]:
                self.held[name] = at_us, message.held[1]
            heappush(due, (at_us, -message.planned.file.priority, message.held[1] or at_us, name))
        while due:
            at_us, rank, first_us, name = heappop(due)
            message, file = self.messages[name], self.messages[name].planned.file
            until_us = message.planned.until_us
            self.held.pop(name, None)
            self.due_us.pop(name, None)
            if until_us and at_us >= until_us:
                continue
            again_us = 0
            if file.holds_over_cap or file.yields:
                ranks = {other: -self.messages[other].planned.file.priority for other in self.held}
                again_us = max(
                    (
                        at
                        for other, (at, since) in self.held.items()
                        if (ranks[other], since, other) < (rank, first_us, name)
                        and {*message.logs()} & {*self.messages[other].logs()}
                    ),
                    default=0,
                )
                again_us = again_us if again_us > at_us else 0
            if not again_us:
                again_us = self.decide(message, at_us, was_held=at_us > first_us)
            if again_us:
                self.held[name] = again_us, first_us
                if not 0 < until_us <= again_us:
                    self.due_us[name] = again_us
                heappush(due, (again_us, rank, first_us, name))

    def decide(self, message: Message, at_us: int, *, was_held: bool) -> int:
        """When it is asked again; 0 for never."""
        file, logs = message.planned.file, message.logs()
        stamp_us = max([at_us, *(hit[0] + 1 for hit in self.hits if hit[3] & {*logs})])
        binding: tuple[int, str, list[Hit]] | None = None
        higher: set[str] = set()
        is_full = False
        for log, (title, limits) in logs.items():
            hits = [hit for hit in self.hits if log in hit[3]]
            for limit in limits:
                wanting = self.wanting(message, limit, log, at_us) if file.yields else set[str]()
                higher |= wanting
                units = file.cost + sum(self.messages[name].planned.file.cost for name in wanting)
                fits_us = self.fits(limit, hits, stamp_us, units, message)
                is_full |= self.fits(limit, hits, stamp_us, file.cost, message) > stamp_us
                if fits_us > stamp_us and (binding is None or fits_us > binding[0]):
                    inside = [hit for hit in hits if self.counts(limit, hit[0], stamp_us, message)]
                    binding = fits_us, f"{title}{limit}", inside
        if binding is None or file.transactional:
            self.hits.append((stamp_us, file.cost, file.campaign, frozenset(logs)))
            message.fate = "later" if was_held else "sent"
            return 0
        fits_us, limit, inside = binding
        never = fits_us >= 1 << 62
        if not message.limit and (not never or not is_full):
            message.limit = limit
            inside_of = {name for _, _, name, _ in inside if name}
            message.takers = frozenset(inside_of if is_full else inside_of | higher)
        if is_full and (not file.holds_over_cap or (never and not higher)):
            return 0
        if higher:
            first_us = min(self.due_us[name] for name in higher)
            fits_us = min(fits_us, max(first_us, (at_us // SECOND_US + 1) * SECOND_US))
        return -(-fits_us // SECOND_US) * SECOND_US

    def wanting(self, message: Message, limit: Any, log: str, at_us: int) -> set[str]:
        """Who of a higher priority wants to send to this subject before a hit of now leaves the window."""
        file, end_us = message.planned.file, self.leaves(limit, at_us, message)
        return {
            name
            for name, due_us in self.due_us.items()
            if (other := self.messages[name]).planned.file.priority > file.priority
            and due_us < end_us
            and log in other.logs()
        }

    def fits(self, limit: Any, hits: Sequence[Hit], from_us: int, cost: int, message: Message) -> int:
        """The first instant at which it fits."""
        if cost > limit.quota:
            return 1 << 62
        instants = [from_us, *sorted(self.leaves(limit, hit[0], message) for hit in hits)]
        for at_us in instants:
            inside = sum(units for stamp_us, units, _, _ in hits if self.counts(limit, stamp_us, at_us, message))
            if at_us >= from_us and inside + cost <= limit.quota:
                return at_us
        raise AssertionError

    def leaves(self, limit: Any, stamp_us: int, message: Message) -> int:
        if not limit.needs_zone:
            return stamp_us + limit.window_us
        midnight = self.day(stamp_us, message) + timedelta(days=1)
        return int(midnight.timestamp()) * SECOND_US

    def counts(self, limit: Any, stamp_us: int, at_us: int, message: Message) -> bool:
        if not limit.needs_zone:
            return at_us - limit.window_us < stamp_us <= at_us
        return self.day(stamp_us, message) == self.day(at_us, message)

    def day(self, at_us: int, message: Message) -> datetime:
        zone = ZoneInfo(message.zone or message.planned.policy.zone)
        return datetime.fromtimestamp(at_us // SECOND_US, zone).replace(hour=0, minute=0, second=0)


@dataclass
class World:
    """Campaigns drawn at random, and what each is to each subject."""

    planned: list[Planned]
    messages: dict[int | str, dict[str, Message]]
    left_out: Counter[str]


def world(rng: random.Random, path: Path, store: str) -> World:
    limits = rng.choice(["1/day", "2/day, 3/week", "3/24h, 4/48h", "2/calendar-day", "2/6h"])
    new = rng.choice(["1/day", "2/12h", "1/calendar-day"])
    promo = f"{{limits: [{limits}], by_segment: {{new: [{new}]}}, channels: {{push: [1/12h]}}}}"
    everything = f"{{limits: [{rng.choice(['3/48h', '2/calendar-day', '2/day'])}], by_segment: {{gone: [1/36h]}}}}"
    text = f"policies: {{promo: {promo}, apart: {{limits: [1/day]}}, all: {everything}}}"
    as_text = rng.random() < 0.3
    found = World([], {}, Counter())
    (path / "out.csv").write_text("id\n" + "".join(f"{_id(n, as_text=as_text)}\n" for n in (1, 4)))
    for number in range(rng.randrange(3, 9)):
        found.planned.append(campaign(rng, path, store, f"c{number}", text, found, as_text=as_text))
    return found


def _id(number: int, *, as_text: bool) -> Any:
    return f"user-{number:02}" if as_text else number


def campaign(
    rng: random.Random, path: Path, store: str, name: str, policies_text: str, found: World, *, as_text: bool
) -> Planned:
    policy_name = rng.choice(UNDER)
    more = {
        "priority": rng.choice([20, 50, 50, 80]),
        "cost": rng.choice([1, 1, 1, 2]),
        "over_cap": rng.choice(["drop", "hold"]),
        "yields": "true" if rng.random() < 0.3 else None,
        "transactional": "true" if rng.random() < 0.1 else None,
        "channel": "push" if "promo" in policy_name and rng.random() < 0.3 else None,
        "send_at_local": rng.choice([None, None, "09:00"]),
        "holdout": "20%" if rng.random() < 0.2 else None,
        "exclude": "{csv: out.csv, column: id}" if rng.random() < 0.2 else None,
    }
    if more["transactional"]:
        more |= {"holdout": None, "over_cap": None, "yields": None}
    lines = FILE.format(name=name, policy=policy_name, store=store)
    lines += "".join(f"{key}: {value}\n" for key, value in more.items() if value is not None)
    file = loads_campaign(lines, path / "campaign.yaml")
    policies = loads(policies_text.encode(), name="policies.yaml")
    policy = pick_policy(file, policies)
    due_us = AT_US + rng.choice([0, 0, 4, 4, 8, 24, 25]) * HOUR_US + rng.choice([0, 0, 0, 1])
    until_us = rng.choice([0, 0, 0, due_us + 20 * HOUR_US])
    numbers = sorted(rng.sample(range(12), rng.randrange(4, 12)))
    codes, zones = [rng.randrange(3) for _ in numbers], [rng.randrange(3) for _ in numbers]
    order = (
        sorted(range(len(numbers)), key=lambda row: zones[row])
        if file.local_minute is not None
        else range(len(numbers))
    )
    batches: list[list[int]] = []
    for row in order:
        is_apart = file.local_minute is not None and batches and zones[batches[-1][0]] != zones[row]
        if not batches or len(batches[-1]) == 3 or is_apart:
            batches.append([])
        batches[-1].append(row)

    over, held_of = decided_of(rng, batches) if file.holds_any else (set[int](), dict[int, tuple[int, int]]())

    def part(number: int) -> WaitingPart | None:
        whole = entire(number)
        if number not in over:
            return WaitingPart(whole)
        held = np.array([row in held_of for row in batches[number]])
        mine = [held_of[row] for row in batches[number] if row in held_of]
        until_us = np.array([max(AT_US, until_us) for until_us, _ in mine], np.int64)
        return WaitingPart(whole.take(held), until_us, mine[0][1]) if mine else None

    def entire(number: int) -> Part:
        rows = batches[number]
        ids = np.array([_id(numbers[row], as_text=as_text) for row in rows], object if as_text else np.uint32)
        codes_of = np.array([codes[row] for row in rows], np.uint16)
        return Part(number, ids, codes_of, {}, np.array([zones[row] for row in rows], np.uint16))

    place = "store", policies.namespace, as_text
    kinds = SEGMENTS, ZONES
    planned = Planned(file, policies, policy, due_us, until_us, *kinds, place, len(batches), part)
    decided = {row for batch in over for row in batches[batch]}
    for row, number in enumerate(numbers):
        if row in decided and row not in held_of:
            continue
        subject = np.array([_id(number, as_text=as_text)], object if as_text else np.uint32)
        excluded = file.exclude is not None and number in (1, 4)
        if excluded or (file.holdout is not None and file.holdout.among(subject)[0]):
            found.left_out[name] += 1
        else:
            message = Message(planned, SEGMENTS[codes[row]], ZONES[zones[row]], held_of.get(row, (0, 0)))
            found.messages.setdefault(_id(number, as_text=as_text), {})[name] = message
    return planned


def decided_of(rng: random.Random, batches: list[list[int]]) -> tuple[set[int], dict[int, tuple[int, int]]]:
    """The batches that are decided already, and by row until and since when the messages that wait of them are held."""
    over, held_of = set[int](), dict[int, tuple[int, int]]()
    for number, rows in enumerate(batches):
        since_us = AT_US - rng.choice([1, 1, 3]) * HOUR_US
        ends_us = AT_US + rng.choice([-1, 2, 4, 9, 24]) * HOUR_US
        if rng.random() < 0.5:
            over.add(number)
            held = [row for row in rows if rng.random() < 0.7]
            held_of |= {row: (ends_us + rng.choice([0, 0, 1, 2]) * SECOND_US, since_us) for row in held}
    return over, held_of


@sized
@pytest.mark.parametrize("history", [False, True])
def test_random_campaigns_as_a_naive_oracle_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, history: bool
) -> None:
    for seed in range(size(20, 75, 150)):
        rng = random.Random(seed)
        store = f"lmdb://{tmp_path}/store-{seed}"
        drawn = world(rng, tmp_path, store)
        past: dict[Any, list[Hit]] = {}
        monkeypatch.setattr(find, "_MOST_CELLS", rng.choice([1, 1 << 20]))
        monkeypatch.setattr(patterns, "_ROOM", 0)
        looked: list[Any] = []
        hits_of = Past._hits  # pyright: ignore[reportPrivateUsage]

        def seen(self: Past, limiter: Limiter, subject: Any, looked: list[Any] = looked, of: Any = hits_of) -> Any:
            looked.append(subject)
            return of(self, limiter, subject)

        with monkeypatch.context() as patched:
            patched.setattr(Past, "_hits", seen)
            if history:
                past = lived(rng, drawn, store)
            found = conflicts(drawn.planned, {}, AT_US, history=history)
        assert not found.unread
        assert {*looked} <= {*drawn.messages}, "others have a past too, which nobody needs"
        fates: dict[str, Counter[str]] = {each.name: Counter() for each in drawn.planned}
        places: Counter[tuple[str, str, str, str | None, bool]] = Counter()
        for subject, messages in drawn.messages.items():
            Naive(messages, [*past.get(subject, ())]).run()
        for messages in drawn.messages.values():
            for name, each in messages.items():
                fates[name][each.fate] += 1
                fates[name]["losing"] += bool(each.takers)
                for taker in each.takers:
                    places[name, taker, each.limit, each.segment, each.fate == "later"] += 1
        for each in found.campaigns:
            came = fates[each.campaign]
            assert (each.sent, each.later, each.refused, each.losing) == (
                came["sent"] + came["later"],
                came["later"],
                came["refused"],
                came["losing"],
            ), (seed, each)
            assert each.audience == each.excluded + each.held_out + each.sent + each.refused
            assert each.excluded + each.held_out == drawn.left_out[each.campaign]
        expected = [
            Conflict(*key, places[*key, False] + places[*key, True], places[*key, True])
            for key in {place[:4] for place in places}
        ]
        assert {*found.conflicts} == {*expected}, seed


def lived(rng: random.Random, drawn: World, store: str) -> dict[Any, list[Hit]]:
    """Give subjects a past; what their logs hold then."""
    first = drawn.planned[0]
    past: dict[Any, list[Hit]] = {}
    clock = ManualClock(start_us=AT_US - 40 * HOUR_US)
    with Limiter(store, first.policies.policies, clock=clock, namespace=first.policies.namespace) as limiter:
        for ago_us in sorted((rng.randrange(1, 40 * HOUR_US) for _ in range(12)), reverse=True):
            clock.advance_us(AT_US - ago_us - clock.now_us())
            subject = rng.choice([*drawn.messages])
            policy, channel = rng.choice([("promo", None), ("promo", "push"), ("all", None)])
            hit = limiter.charge(policy, subject, 1, channel=channel).hit
            logs = frozenset({policy} if channel is None else {policy, f"{policy}/{channel}"})
            past.setdefault(subject, []).append((cast("int", hit), 1, "", logs))
        limiter.charge("promo", "somebody" if isinstance(next(iter(drawn.messages)), str) else 99, 1)
    return past


def test_patterns_are_all_columns_however_many_words_they_take() -> None:
    rng = np.random.default_rng(5)
    most = [3, 1 << 40, 1, (1 << 62) - 1, 7, 1 << 30]
    tables = [np.stack([rng.integers(0, top + 1, 400) % 3 for top in most]) for _ in range(3)]
    found = Patterns(most)
    for table in tables:
        found.add(table)
    found.settle()
    assert dict(zip(columns(found.table), found.counts.tolist(), strict=True)) == Counter(
        columns(np.concatenate(tables, axis=1))
    )


def columns(table: Any) -> list[tuple[int, ...]]:
    return [tuple(column) for column in table.T.tolist()]


@pytest.mark.parametrize("as_text", [False, True])
def test_blocks_are_all_subjects_once(*, as_text: bool) -> None:
    rng = random.Random(7)
    expected: dict[Any, list[int]] = {}
    streams: list[tuple[int, Any]] = []
    for row in (0, 1, 1, 2):
        ids = sorted(rng.sample(range(300), 100))
        ids = [each for each in ids if not expected.get(each, [0, 0, 0])[row]]
        kinds = [rng.randrange(1, 9) for _ in ids]
        for each, kind in zip(ids, kinds, strict=True):
            expected.setdefault(each, [0, 0, 0])[row] = kind
        shown = np.array([_id(each, as_text=as_text) for each in ids], object if as_text else np.uint64)
        if as_text:
            shown = np.array(sorted(shown.tolist()), object)
            kinds = [expected[int(each[5:])][row] for each in shown]
        size_of = rng.randrange(1, 30)
        cut = range(0, len(ids), size_of)
        streams.append((row, iter([(shown[i : i + size_of], np.array(kinds[i : i + size_of])) for i in cut])))
    found = [column for _, table in blocks(3, streams) for column in columns(table)]
    assert Counter(found) == Counter(tuple(kinds) for kinds in expected.values())
