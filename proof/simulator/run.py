"""One seed: a fleet, its faults, callers that ask, and the judgement of what they were told."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capline import AsyncLimiter, Limit, Policy
from capline.model.policy import RESERVED
from capline.store.redis.scripting.keys import field_of, slot_of, tag_of, tag_of_key
from capline.window.log import Log
from proof.checker import Report, check, read
from proof.record import Recorder
from proof.simulator.callers import Caller, Told
from proof.simulator.clock import SimulatedLoop, in_simulated_time
from proof.simulator.network import Network
from proof.simulator.resuming import ResumingLimiter
from proof.simulator.scripts import held
from proof.simulator.server import Fleet
from proof.simulator.server_faults import ServerFaults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["KINDS", "Outcome", "Scenario", "run"]

LIMITS = ("3/400ms", "8/2s")
KEEP = Limit.parse("1000000000/day")
POPULATION = 1000
CALLERS, CALLS = 2, 16
SETTLED_S = 30.0
"""Longer than any message takes."""
KINDS = ("single", "slots", "together", "across", "failover", "settled", "reserved", "moved")
EXCUSED = frozenset(("refusal-unjustified", "retry-after-wrong", "remaining-wrong"))
"""Kinds that the checker cannot judge in some runs. There, refusals may be due to hits that it does not know: hits that
a joint attempt takes in one cluster slot and gives back, hits that a failover loses, and slots of unanswered calls,
whose time of taking is unknown."""
BEHIND_SLOTS = frozenset(("slot-not-first", "queue-jumped", "over-quota-by-stamps"))
"""The same for slots of calls without an answer. `Outcome.over` still checks every window, by what the servers hold."""


@dataclass(frozen=True)
class Scenario:
    """What a seed plays."""

    kind: str
    shape: str
    buckets: bool
    rate: float
    verbs: tuple[str, ...]
    server_faults: tuple[str, ...]
    subjects: tuple[str | int, ...]

    @classmethod
    def of(cls, seed: int) -> Scenario:
        """The seed's own; the kinds take turns."""
        draw, kind = random.Random(f"scenario {seed}"), KINDS[seed % len(KINDS)]
        shape = "cluster" if kind in ("across", "slots", "moved") else draw.choice(("cluster", "sentinel"))
        buckets = kind != "across" and draw.random() < 0.3
        verbs = {
            "single": ("decide", "decide", "named", "batch", "refund"),
            "slots": ("decide", "decide", "named", "schedule"),
            "moved": ("decide", "schedule", "schedule", "refund", "refund", "move", "move", "move"),
            "together": ("decide", "named", "joint", "joint"),
            "across": ("decide", "named", "joint", "joint"),
            "failover": ("decide", "decide", "named", "batch"),
            "settled": ("decide", "named", "settle", "settle"),
            "reserved": ("decide", "named", "reserve", "reserve", "commit", "commit", "settle"),
        }[kind]
        moves = ("move",) if shape == "cluster" else ()
        server_faults = ("restart", "swap", *moves)
        if kind in ("failover", "settled") or (kind == "reserved" and draw.random() < 0.7):
            server_faults = ("failover", "failover", "failover", "restart")
        elif kind == "reserved":
            verbs += ("refund",)  # What a failover loses of it counts again.
        if buckets:
            subjects: tuple[str | int, ...] = (1, 2, 3)
        elif kind == "across":
            subjects = ("a", "b", "c")
        else:
            subjects = ("{s}:0", "{s}:1", "{s}:2")[: 1 if kind == "moved" else 3]
        return cls(kind, shape, buckets, draw.choice((0.0, 0.01, 0.03, 0.08)), verbs, server_faults, subjects)


@dataclass
class Outcome:
    """What became of one seed. True where every promise was kept."""

    seed: int
    scenario: Scenario
    report: Report
    told: Told
    over: list[str]
    """Windows of what the servers hold at the end that hold more than their quota."""
    faults: int
    server_faults: int
    lost: int
    trace: list[str] = field(default_factory=list[str])

    @property
    def broken(self) -> set[str]:
        """The kinds of promise that were broken: the checker's, `late`, `strange` for odd errors, and `over`."""
        untold = self.scenario.kind in ("slots", "moved") and self.told.unknown
        excused = EXCUSED if self.scenario.kind == "across" or self.lost or untold else frozenset[str]()
        kinds = self.report.kinds() - excused - (BEHIND_SLOTS if untold else frozenset[str]())
        own = {"late": self.told.late, "strange": self.told.strange, "over": self.over}
        return kinds | {kind for kind, found in own.items() if found}

    def __bool__(self) -> bool:
        return not self.broken

    def text(self) -> str:
        """For people."""
        told = self.told
        head = (
            f"seed {self.seed} ({self.scenario.kind}, {self.scenario.shape}{', buckets' * self.scenario.buckets}): "
            f"{told.answers} answers, {told.unknown} unknown, {told.unavailable} unavailable; "
            f"{self.faults} faults of messages, {self.server_faults} of servers, {self.lost} writes lost"
        )
        own = [*(f"LATE {one}" for one in told.late), *(f"STRANGE {one}" for one in told.strange)]
        own += [f"OVER {one}" for one in self.over]
        return head if self else "\n".join((head, *own, self.report.text()))


def run(seed: int, wrong: Callable[[], AbstractContextManager[Any]] | None = None) -> Outcome:
    """Play the seed, with a `wrong` engine in place of the real one where one is given."""
    scenario, draw, loop = Scenario.of(seed), random.Random(seed), SimulatedLoop()
    trace: list[str] = []

    def tell(line: str) -> None:
        trace.append(f"{loop.time():9.6f}  {line}")

    fleet = Fleet(scenario.shape, loop, draw)
    network = Network(fleet, scenario.rate, tell)
    told = Told(Recorder(loop.now_us))
    slots = sorted({slot_of(_tag(scenario, subject)) for subject in scenario.subjects})
    server_faults = ServerFaults(fleet, scenario.server_faults, slots, tell)
    failed: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: failed.append(context))
    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.enter_context(in_simulated_time(loop, draw))
        stack.enter_context(network.instead_of_sockets())
        if wrong is not None:
            stack.enter_context(wrong())
        loop.run_until_complete(_play(scenario, fleet, network, server_faults, told, tell))
    if failed:
        raise RuntimeError(f"seed {seed}: the simulation itself failed: {failed[0]}") from failed[0].get("exception")
    report = check(read(told.recorder.lines))
    # Settlements may pass the quota.
    judged = () if "settle" in scenario.verbs else scenario.subjects
    over = [one for subject in judged for one in _over(_held(scenario, fleet, subject))]
    return Outcome(
        seed, scenario, report, told, over, network.faults, server_faults.happened, server_faults.lost, trace
    )


async def _play(
    scenario: Scenario,
    fleet: Fleet,
    network: Network,
    server_faults: ServerFaults,
    told: Told,
    tell: Callable[[str], None],
) -> None:
    limits = [Limit.parse(text) for text in LIMITS]
    told.recorder.policy("p", [(one.quota, one.window_us) for one in limits], retention_us=KEEP.window_us)
    limiters = [
        kind(fleet.url(), _policies(scenario, limits), namespace="sim")
        for kind in (AsyncLimiter, ResumingLimiter, ResumingLimiter)
    ]
    callers = [
        Caller(f"h{host}c{number}", limiter, scenario.subjects, scenario.verbs, told, fleet.draw, tell)
        for host, limiter in enumerate(limiters)
        for number in range(CALLERS)
    ]
    playing = asyncio.create_task(server_faults.go_on())
    await asyncio.gather(*(caller.go_on(CALLS) for caller in callers))
    network.rate = 0.0
    server_faults.stopped = True
    await playing
    await asyncio.sleep(SETTLED_S)
    for subject in scenario.subjects:
        held = _held(scenario, fleet, subject)
        told.recorder.final("p", subject)(held, None)
    for limiter in limiters:
        await limiter.close()


def _policies(scenario: Scenario, limits: list[Limit]) -> list[Policy]:
    """The policy that is asked; and one that nobody asks, for which the log keeps every hit until the end."""
    fails = "failover" in scenario.server_faults
    own: dict[str, Any] = {"wait_replicas": int(fails), "reservations": scenario.kind == "reserved"}
    if scenario.buckets:
        own |= {"layout": "bucket", "population": POPULATION}
    return [Policy("p", limits, **own), Policy("all", [KEEP], log="p", **own)]


def _tag(scenario: Scenario, subject: str | int) -> bytes:
    return tag_of(subject, POPULATION if scenario.buckets else 0)


def _held(scenario: Scenario, fleet: Fleet, subject: str | int) -> list[tuple[int, int]]:
    """What the log of this subject holds."""
    tag, field = _tag(scenario, subject), field_of(subject) if scenario.buckets else b""
    logs = fleet.owner(slot_of(tag)).primary.logs
    found = {key: fields[field] for key, fields in logs.items() if tag_of_key(key) == tag and field in fields}
    record = next((log for key, log in found.items() if RESERVED.encode() in key), Log())
    return [hit for log in found.values() if log is not record for hit in held(log, record, fleet.loop.now_us())]


def _over(hits: list[tuple[int, int]]) -> Iterator[str]:
    """The windows, up to each hit, that hold more than their quota."""
    for limit in map(Limit.parse, LIMITS):
        for last_us, _ in hits:
            units = sum(units for stamp_us, units in hits if last_us - limit.window_us < stamp_us <= last_us)
            if units > limit.quota:
                yield f"{units} units up to {last_us}, under {limit}"
