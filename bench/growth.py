"""What does not stay flat? Every verb against one thing that grows, as a ratio; and who waits while a long job runs.

A ratio is the largest size over the smallest, each the best of several rounds, on one limiter of that size. The longest
wait is that of another thread, or on a server of another connection, that decides on other subjects meanwhile; beside a
batch of the service it is that of another request. It is what the processes that it waits for computed meanwhile.
`--short` is for every day: small sizes, and it ends with 1 where a ratio shows a class of growth, whatever the machine.
A job's ratio is that of its time a row, at the largest size over a tenth of it: linear is 1. Times are of the
processors of this process and of the server, so that a busy machine adds little.
`--only redis,` runs the rows whose names have these words.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import _growth_faces as faces
import numpy as np
from _harness import Report, arguments, best_seconds, check, processor_clock
from _servers import cluster, single
from tests.kit.campaign import Site, answer, capline
from tests.kit.serving import Serving

from capline import AsyncLimiter, Attempt, Limiter, ManualClock, PastHit, Policy
from capline.config.configuration import Configuration
from capline.service.settings.values import Bounds

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from _servers import Server

START_US = 1_700_000_000_000_000
STEP_US = 1_000
QUOTA = 10_000_000
CALLS = 20
LIVE = 333
_NO_HIT = START_US - 1
MANY = 1_000


class Store(NamedTuple):
    """A store: where an empty one is, and what counts the seconds that it takes, and those of its server alone."""

    url_of: Callable[[], str]
    now_s: Callable[[], float] = time.process_time
    server: tuple[int, ...] = ()

    def server_s(self) -> float:
        """The seconds of its server; 0 without one."""
        return processor_clock(*self.server, own=False)()


class Grown(NamedTuple):
    """A limiter in which something is large; `behind` are the hits of "s" from half way back on."""

    limiter: Limiter
    clock: ManualClock
    policy: str = "p"
    behind: Iterator[int] = iter(())


def policy(name: str = "p", **options: object) -> Policy:
    """A policy that never binds, over a day."""
    return Policy(name, [f"{QUOTA}/day"], **options)  # pyright: ignore[reportArgumentType] - options of this program


def _half_way_back(size: int) -> Iterator[int]:
    """The stamps of that many hits from half way back on; of a few hundred, as many as the verbs ask for.

    But the first ones: in a log of slots these leave the window meanwhile.
    """
    first = min(size // 2, max(size // 8, size - 20 * CALLS))
    return iter(range(START_US + first * STEP_US, START_US + size * STEP_US, STEP_US))


def hits(url: str, size: int) -> Grown:
    """So many hits of one unit in one log."""
    return _recorded(url, size, lambda limiter, _: limiter.decide("p", "s"))


def hits_with_costs(url: str, size: int) -> Grown:
    """So many hits, each of its own cost."""
    return _recorded(url, size, lambda limiter, i: limiter.decide("p", "s", cost=1 + i % 3))


def hits_with_ids(url: str, size: int) -> Grown:
    """So many hits, each with an id."""
    return _recorded(url, size, lambda limiter, i: limiter.decide("p", "s", id=f"id-{i}"))


def _recorded(url: str, size: int, record: Callable[[Limiter, int], object]) -> Grown:
    clock = ManualClock(START_US)
    limiter = Limiter(url, [policy()], clock=clock)
    for i in range(size):
        record(limiter, i)
        clock.advance_us(STEP_US)
    return Grown(limiter, clock, behind=_half_way_back(size))


def reservations(url: str, size: int) -> Grown:
    """A reservation whose caller died, and so many committed ones since."""
    clock = ManualClock(START_US)
    limiter = Limiter(url, [policy(reservations=True)], clock=clock)
    limiter.reserve("p", "s", ttl=36_000)
    for _ in range(size):
        clock.advance_us(STEP_US)
        hit = limiter.reserve("p", "s", ttl=36_000).hit
        limiter.commit("p", "s", hit or 0)
    return Grown(limiter, clock, behind=_half_way_back(size))


def _hits_of(limiter: Limiter) -> Iterator[int]:
    """Enough hits of "s" for refunds and settlements."""
    return iter([limiter.decide("p", "s").hit or _NO_HIT for _ in range(14 * CALLS)])


def policies(url: str, size: int) -> Grown:
    """So many policies."""
    clock = ManualClock(START_US)
    limiter = Limiter(url, [policy(), *(policy(f"p{i}") for i in range(size))], clock=clock)
    return Grown(limiter, clock, behind=_hits_of(limiter))


def sets_of_limits(url: str, size: int) -> Grown:
    """So many sets of limits that came with a call."""
    clock = ManualClock(START_US)
    limiter = Limiter(url, [policy()], clock=clock)
    for i in range(size):
        limiter.decide("call", i, limits=[f"{i + 1}/day"])
    return Grown(limiter, clock, behind=_hits_of(limiter))


def subjects(url: str, size: int) -> Grown:
    """So many subjects with a log."""
    clock = ManualClock(START_US)
    limiter = Limiter(url, [policy()], clock=clock)
    limiter.decide_many("p", np.arange(size))
    return Grown(limiter, clock, behind=_hits_of(limiter))


def slots(url: str, size: int) -> Grown:
    """So many slots in the future."""
    clock = ManualClock(START_US)
    limiter = Limiter(url, [Policy("p", ["1/ms"])], clock=clock)
    for _ in range(size):
        limiter.schedule("p", "s")
    return Grown(limiter, clock, behind=_half_way_back(size))


LONG = (hits, hits_with_costs, hits_with_ids, reservations, slots)
"""These make one log longer; the others are made of many things, and grow to half as many."""
DIMENSIONS = (*LONG, policies, sets_of_limits, subjects)


def _decide(grown: Grown, _: int) -> None:
    grown.limiter.decide(grown.policy, "s")


def _cost(grown: Grown, _: int) -> None:
    grown.limiter.decide(grown.policy, "s", cost=2)


def _kept(grown: Grown, _: int) -> None:
    grown.limiter.decide(grown.policy, "s", keep_free=1)


def _id(grown: Grown, call: int) -> None:
    grown.limiter.decide(grown.policy, "s", id=f"new-{call}")


def _newcomer(grown: Grown, call: int) -> None:
    grown.limiter.decide(grown.policy, f"new-{call}")


def _peek(grown: Grown, _: int) -> None:
    grown.limiter.peek(grown.policy, "s")


def _usage(grown: Grown, _: int) -> None:
    grown.limiter.usage(grown.policy, "s")


def _charge(grown: Grown, _: int) -> None:
    grown.limiter.charge(grown.policy, "s", 1)


def _schedule(grown: Grown, _: int) -> None:
    grown.limiter.schedule(grown.policy, "s")


def _refund(grown: Grown, _: int) -> None:
    """A hit half way back; each call another one, where there are so many."""
    hit = next(grown.behind, _NO_HIT)
    check(grown.limiter.refund(grown.policy, "s", hit) or hit == _NO_HIT, "a hit was not refunded")


def _settle(grown: Grown, _: int) -> None:
    hit = next(grown.behind, _NO_HIT)
    check(grown.limiter.settle(grown.policy, "s", hit, 2) or hit == _NO_HIT, "a hit was not settled")


def _decide_all(grown: Grown, call: int) -> None:
    grown.limiter.decide_all([Attempt("p", "s"), Attempt("p", f"other-{call}")])


def _decide_many(grown: Grown, _: int) -> None:
    grown.limiter.decide_many(grown.policy, ["s", "t"])


def _ids(grown: Grown, call: int) -> None:
    """As many as one script call has."""
    grown.limiter.decide_batch([Attempt("p", "s", id=f"many-{call}-{i}") for i in range(5)])


def _schedule_all(grown: Grown, call: int) -> None:
    grown.limiter.schedule_all([Attempt("p", "s"), Attempt("p", f"other-{call}")])


def _move(grown: Grown, _: int) -> None:
    """A slot half way back, which has no earlier place."""
    hit = next(grown.behind, _NO_HIT)
    check(grown.limiter.move(grown.policy, "s", hit).allowed or hit == _NO_HIT, "a slot is not there")


def _reserve(grown: Grown, _: int) -> None:
    hit = grown.limiter.reserve(grown.policy, "s", ttl=36_000).hit
    check(hit is not None and grown.limiter.commit(grown.policy, "s", hit), "a hit was not committed")


def _erase(grown: Grown, call: int) -> None:
    grown.limiter.erase(f"nobody-{call}")


VERBS: dict[str, Callable[[Grown, int], None]] = {
    "decide": _decide, "cost 2": _cost, "keep_free": _kept, "a new id": _id, "a new subject": _newcomer,
    "peek": _peek, "usage": _usage, "charge": _charge, "schedule": _schedule,
    "refund half way back": _refund, "settle half way back": _settle,
    "reserve and commit": _reserve, "move": _move, "schedule_all": _schedule_all,
    "decide_all": _decide_all, "decide_many": _decide_many, "five new ids": _ids, "erase": _erase,
}  # fmt: skip

ONLY_OF = {"reserve and commit": reservations, "move": slots}
"""Verbs that only these can answer."""

_WRITES = "the present form has the units up to each hit, so those of all later ones are written; forms=next has blocks"
_READS = "the ids' bytes are read, 3 ms for 100,000; the first id of the present form makes each hit 8 bytes longer"
WHY = {
    "refund half way back": _WRITES, "settle half way back": _WRITES, "a new id": _READS, "five new ids": _READS,
}  # fmt: skip


def called(verb: Callable[[Grown, int], None], grown: Grown, calls: Iterator[int]) -> None:
    """Some calls of a verb, each with another number and at another instant."""
    for call in islice(calls, CALLS):
        grown.clock.advance_us(1)
        verb(grown, call)


class Spent(NamedTuple):
    """The seconds of a verb's call at its best; and of its longest script call, when it is called first."""

    call: float
    longest: float


def times(store: Store, grow: Callable[[str, int], Grown], size: int, verbs: Sequence[str]) -> dict[str, Spent]:
    """By verb: what a call takes at this size."""
    grown = grow(store.url_of(), size)
    calls = iter(range(1_000_000))
    spent: dict[str, Spent] = {}
    for name in verbs:
        longest = 0.0
        for call in islice(calls, CALLS):
            begun_s = store.server_s()
            grown.clock.advance_us(1)
            VERBS[name](grown, call)
            longest = max(longest, store.server_s() - begun_s)
        best = best_seconds(partial(called, VERBS[name], grown, calls), now_s=store.now_s) / CALLS
        spent[name] = Spent(best, longest)
    used = grown.limiter.usage("p", "s")[0].used
    check(used > 0, f"{grow.__name__}: nothing was counted")
    grown.limiter.close()
    return spent


def configured(store: Store, size: int) -> float:
    """What it takes to change one policy of so many in a configuration store, and to decide by all, in seconds."""
    with Configuration(store.url_of().partition("?")[0]) as configuration:
        configuration.set_policies([policy(f"p{i}") for i in range(size)])
        with Limiter.from_config(configuration, "memory://") as limiter:
            for i in range(size):
                limiter.decide(f"p{i}", "s")

            def changed() -> None:
                configuration.set_policies([Policy("p0", [f"{next(quotas)}/day"])])
                limiter.decide("p0", "s")
                limiter.decide(f"p{size - 1}", "s")

            quotas = iter(range(QUOTA, 2 * QUOTA))
            return best_seconds(changed, rounds=15, now_s=store.now_s)


def overridden(store: Store, size: int) -> float:
    """What a decision takes where as many overrides as this each have a limit of their own, in seconds."""
    with Configuration(store.url_of().partition("?")[0]) as configuration:
        configuration.set_policies([policy()])
        configuration.override_many("p", {i: [f"{QUOTA + i}/day"] for i in range(size)})
        with Limiter.from_config(configuration, "memory://") as limiter:

            def decide() -> None:
                for i in range(size):
                    limiter.decide("p", i)

            spent_s = best_seconds(decide, now_s=store.now_s) / size
            check(limiter.usage("p", 1)[0].limit.quota == QUOTA + 1, "an override is not in force")
            return spent_s


def exported(store: Store, size: int) -> float:
    """What the export of one log takes where there are so many policies, in seconds."""
    with policies(store.url_of(), size).limiter as limiter:

        def export() -> None:
            check(sum(1 for _ in limiter.export()) == 1, "another number of logs is there")

        return best_seconds(export, now_s=store.now_s)


def kept(url: str, many: int) -> float:
    """How many logs there are for each that is live, when so many subjects have come by, some at a time."""
    clock = ManualClock(START_US)
    with Limiter(url, [Policy("p", ["1/s"])], clock=clock) as limiter:
        for subject in range(many):
            clock.advance_us(1_000_000 // LIVE)
            check(bool(limiter.decide("p", subject)), "a newcomer was refused")
        return (limiter.sweep() + LIVE) / LIVE


def held(url: str, sets: int) -> int:
    """The bytes of this process that so many sets of limits leave, each in force for a second."""
    clock = ManualClock(START_US)
    with Limiter(url, [policy()], clock=clock) as limiter:
        tracemalloc.start()
        for number in range(sets):
            clock.advance_us(10_000)
            check(bool(limiter.decide("call", "s", limits=[f"{number + 1}/s"])), "a set of limits refused")
        gc.collect()
        bytes_held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
    return bytes_held


def objects(url: str) -> float:
    """What a full collection of Python's garbage looks at for each policy that was decided on."""
    with Limiter(url, [policy(f"p{i}") for i in range(MANY)]) as limiter:
        gc.collect()
        before = len(gc.get_objects())
        check(all(limiter.decide_batch([Attempt(f"p{i}", "s") for i in range(MANY)])), "an attempt was refused")
        gc.collect()
        return (len(gc.get_objects()) - before) / MANY


def _many_of_one_subject(limiter: Limiter, size: int) -> None:
    check(bool(limiter.decide_many("p", ["s"] * size).allowed.all()), "a batch of one subject was refused")


def _many_with_ids(limiter: Limiter, size: int) -> None:
    attempts = [Attempt("p", "s", id=f"id-{i}") for i in range(size)]
    check(all(limiter.decide_batch(attempts)), "a batch with ids was refused")


def _many_refunded(limiter: Limiter, size: int) -> None:
    names = [f"s{i}" for i in range(size)]
    stamps = limiter.decide_many("p", names).hit
    check(bool(limiter.refund_many("p", names, stamps).all()), "a refund was not made")


def _imported(limiter: Limiter, size: int) -> None:
    now_us = limiter.now_us()
    loaded = limiter.load(PastHit("p", "s", now_us - size * STEP_US + i * STEP_US) for i in range(size))
    check(loaded.added == size, "an import lost a hit")


def _exported(limiter: Limiter, size: int) -> None:
    limiter.decide_many("p", np.arange(size))
    check(sum(1 for _ in limiter.export()) >= size, "an export lost a log")


def _swept(limiter: Limiter, size: int) -> None:
    limiter.decide_many("p", np.arange(size))
    limiter.sweep()


def _with_receipts(limiter: Limiter, size: int) -> None:
    for first in [*range(0, size, 100)] * 2:
        many = limiter.decide_many("p", np.arange(first, first + 100), receipt=f"batch {first}")
        check(bool(many.allowed.all()), "a batch with a receipt was refused")
    check(limiter.usage("p", 0)[0].used == 1, "a batch was counted twice")


def _explained(limiter: Limiter, size: int) -> None:
    _many_of_one_subject(limiter, size)
    check(len(limiter.explain("p", "s").hits) == size, "a hit is not explained")


def _acquired(limiter: Limiter, size: int) -> None:
    for _ in range(size):
        with limiter.acquire("p", "s"):
            pass


JOBS: dict[str, tuple[Callable[[Limiter, int], None], int]] = {
    "decide_many with receipts, each batch twice": (_with_receipts, 20_000),
    "acquire": (_acquired, 20_000),
    "decide_many of one subject, and explain": (_explained, 100_000),
    "decide_many of one subject": (_many_of_one_subject, 100_000),
    "decide_batch of one subject, with ids": (_many_with_ids, 20_000),
    "refund_many": (_many_refunded, 100_000),
    "import into one log": (_imported, 100_000),
    "export": (_exported, 100_000),
    "sweep": (_swept, 100_000),
}
"""Each with its largest size."""


async def _awaited(url: str, size: int) -> None:
    async with AsyncLimiter(url, [policy()]) as limiter:
        for _ in range(size):
            check((await limiter.decide("p", "s")).allowed, "an awaited decision was refused")


def spent_awaiting(store: Store, size: int) -> float:
    """The seconds that each decision of an `AsyncLimiter` takes, one after the other on one subject."""
    url = store.url_of()
    spent: list[float] = []
    for _ in range(3):
        begun_s = store.now_s()
        asyncio.run(_awaited(url, size))
        spent.append((store.now_s() - begun_s) / size)
    return min(spent)


def _campaign(folder: Path, size: int) -> None:
    """Run one, and write its outcomes."""
    site = Site(folder)
    site.audience(range(size))
    file = site.write(batch="1000")
    total = answer("campaign", "run", file)["total"]
    check(total["sent"] + total["refused"] == size, "a campaign lost somebody")
    check(not capline("campaign", "outcomes", file, "--to", folder / "outcomes.csv").returncode, "no outcomes")


def _replayed(folder: Path, size: int) -> None:
    """So many events of one subject, and a limit that refuses some."""
    rows = (f"s,{1_700_000_000 + row}\n" for row in range(size))
    (folder / "events.csv").write_text("subject,time\n" + "".join(rows), encoding="utf-8")
    answer("replay", folder / "events.csv", "--limit", f"{size // 2}/day")


COMMANDS: dict[str, Callable[[Path, int], None]] = {"campaign run and outcomes": _campaign, "replay": _replayed}


def spent_by_command(work: Callable[[Path, int], None], size: int) -> float:
    """The seconds that commands of this size take for each row; what they begin with is among them."""
    spent: list[float] = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            begun_s = time.perf_counter()
            work(Path(folder), size)
            spent.append((time.perf_counter() - begun_s) / size)
    return min(spent)


def spent_a_row(store: Store, work: Callable[[Limiter, int], None], size: int) -> float:
    """The seconds that a job of this size takes for each row."""
    spent: list[float] = []
    for _ in range(2):
        with Limiter(store.url_of(), [policy()]) as limiter:
            begun_s = store.now_s()
            work(limiter, size)
            spent.append((store.now_s() - begun_s) / size)
    return min(spent)


def longest_wait(store: Store, work: Callable[[Limiter, int], None], size: int, *, alone: bool) -> float:
    """The longest wait of another caller while the job runs, in seconds; `alone` has a limiter of its own."""
    url = store.url_of()
    with Limiter(url, [policy()]) as limiter:
        other = Limiter(url, [policy()]) if alone else limiter
        gc.freeze()  # as the service: a full collection of all that this program has imported is no part of the job
        with other, another_caller(partial(other.decide, "p", "other"), store.now_s) as longest:
            work(limiter, size)
    return longest[0]


def batches(rows: int) -> dict[str, bytes]:
    """Bodies of batches with so many rows."""
    return {
        "integers": json.dumps({"policy": "p", "subjects": list(range(rows))}).encode(),
        "one subject": json.dumps({"policy": "p", "subjects": ["s"] * rows}).encode(),
        "attempts": json.dumps({"attempts": [{"policy": "p", "subject": f"s{row}"} for row in range(rows)]}).encode(),
        f"{MANY:,} policies": json.dumps(
            {"attempts": [{"policy": f"p{row % MANY}", "subject": row} for row in range(rows)]}
        ).encode(),
    }


def beside_batches(url: str, rows: int, *servers: int) -> dict[str, float]:
    """By batch of the service: the longest wait of another request meanwhile, in seconds."""
    waits: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        named = "".join(f"  {name}: {{limits: [{QUOTA}/day]}}\n" for name in ["p", *(f"p{i}" for i in range(MANY))])
        (Path(folder) / "policies.yaml").write_text(f"policies:\n{named}", encoding="utf-8")
        with Serving(Path(folder), "--store", url) as service:
            beside = partial(
                another_caller,
                lambda: service.ask("/v1/decide", policy="p", subject="other"),
                processor_clock(service.process.pid, *servers, own=False),
            )
            for name, body in batches(rows).items():
                with beside() as longest:
                    head = {"Content-Type": "application/json"}
                    answer = service.client.post("/v1/decide/batch", content=body, headers=head, timeout=600)
                check(answer.json()["allowed"] == [True] * rows, "a batch of the service was refused")
                waits[f"a batch of {rows:,}: {name}"] = longest[0]
            with beside() as longest:
                check("capline" in service.client.get(f"{service.admin}/metrics").text, "nothing was scraped")
            waits[f"/metrics of {MANY:,} policies"] = longest[0]
    return waits


@contextmanager
def another_caller(decide: Callable[[], object], now_s: Callable[[], float]) -> Generator[list[float]]:
    """Decides on other subjects until the block ends; the list then has the longest wait, in seconds."""
    longest, ended = [0.0], threading.Event()

    def call() -> None:
        while not ended.is_set():
            begun = now_s()
            decide()
            longest[0] = max(longest[0], now_s() - begun)
            time.sleep(0.0005)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        yield longest
    finally:
        ended.set()
        caller.join()


class Table:
    """The rows whose names have some words; each is measured when it is added."""

    def __init__(self, report: Report, only: str, *, short: bool) -> None:
        self._report, self._only, self.short = report, only, short
        self._tries = 3 if short else 1

    def wants(self, *names: str) -> bool:
        """Whether one of these is among them."""
        return any(self._only in name for name in names)

    def row(
        self, name: str, value: Callable[[], float], unit: str, at_most: float | None, *, tries: int = 0, why: str = ""
    ) -> None:
        """The lowest of some tries: a class of growth shows in each."""
        if not self.wants(name):
            return
        lowest = float("inf")
        for _ in range(tries or self._tries):
            lowest = min(lowest, value())
            if at_most is None or lowest <= at_most:
                break
        self._report.add(name, lowest, unit, at_most=at_most, why=why)
        print(f"{name}: {lowest:.3g} {unit}, at most {at_most}", file=sys.stderr, flush=True)

    def ratio(
        self, name: str, spent: Callable[[int], float], sizes: tuple[int, int], bound: float | None, *, why: str = ""
    ) -> None:
        """What the larger size spends over the smaller."""
        self.row(name, lambda: spent(sizes[1]) / spent(sizes[0]), "times", bound, why=why)

    def job(self, name: str, spent_a_row: Callable[[int], float], most: int) -> None:
        """What a row of that many spends over one of a tenth of them."""
        title = f"{name}: a row of {most:,} beside one of {most // 10:,}"
        self.ratio(title, spent_a_row, (most // 10, most), 5 if self.short else 2)

    def wait(self, name: str, wait_s: Callable[[], float], at_most: float, *, why: str = "") -> None:
        """The longest wait of another caller, in milliseconds."""
        if not self.short:
            self.row(name, lambda: wait_s() * 1000, "ms", at_most, tries=3, why=why)


def without_stores(table: Table) -> None:
    """Commands, faces and jobs, each once."""
    for command, run in COMMANDS.items():
        table.job(command, partial(spent_by_command, run), 2_000 if table.short else 20_000)
    for name, (face, full, less) in faces.CALLED.items():
        sizes, bound = ((10, less), 20) if table.short else ((10, full), 2)
        table.ratio(name, partial(faces.called, face), sizes, bound)
    for name, (job, full, less) in faces.JOBS.items():
        table.job(name, partial(faces.spent_a_row, job), less if table.short else full)


def growing(table: Table, name: str, store: Store, largest: int) -> None:
    """Every verb against each thing that grows."""
    for grow in DIMENSIONS if name != "cluster" else (hits, policies, subjects):
        title = f"{name}, {grow.__name__.replace('_', ' ')}"
        sizes = (10, 500) if table.short else (500, largest // 10, largest if grow in LONG else largest // 2)
        longest_name = f"{title} of {sizes[-1]:,}: the longest script call"
        verbs = [
            verb for verb in VERBS if ONLY_OF.get(verb, grow) is grow and table.wants(f"{title}: {verb}", longest_name)
        ]
        if name == "cluster" and "schedule_all" in verbs:
            verbs.remove("schedule_all")  # it needs one slot
        if not verbs:
            continue
        least, *more = (times(store, grow, size, verbs) for size in sizes)
        for verb in verbs:
            ratio = max(spent[verb].call for spent in more) / least[verb].call
            bound = sizes[-1] / 25 if table.short else 2
            # A server is asked for the log of every policy: nobody knows which there are.
            at_most = None if store.server and verb == "erase" and grow is policies else bound
            table.row(f"{title}: {verb}", lambda ratio=ratio: ratio, "times", at_most, why=WHY.get(verb, ""))
        if store.server and not table.short:
            verb = max(verbs, key=lambda verb: more[-1][verb].longest)
            longest_ms = more[-1][verb].longest * 1000
            table.row(longest_name, lambda ms=longest_ms: ms, "ms", 5, why=f"{verb}: {WHY.get(verb, '')}")


def jobs(table: Table, name: str, store: Store) -> None:
    """Jobs of one store, what they keep waiting, and what the store keeps."""
    waits = f"service on {name}, longest wait beside "
    sizes = (10_000, Bounds().batch_rows)
    beside = [f"{waits}a batch of {rows:,}: {kind}" for rows in sizes for kind in batches(0)]
    asked = table.wants(*beside, f"{waits}/metrics of {MANY:,} policies")
    if name in ("memory", "lmdb", "redis") and not table.short and asked:
        tries: list[dict[str, float]] = [{}, {}]
        for found in tries:
            for rows in sizes:
                found.update(beside_batches(store.url_of(), rows, *store.server))
        why = (
            "full collections of Python's garbage look at each rule and each log in memory" if name == "memory" else ""
        )
        for what in tries[0]:
            at_most = 20 if "policies" in what and f"{Bounds().batch_rows:,}" not in what else 50
            table.wait(waits + what, lambda what=what: min(found[what] for found in tries), at_most, why=why)
    if not store.server:
        many = 2_000 if table.short else 50_000
        kept_name = f"{name}, logs kept of {many:,} that came by, by those live"
        table.row(kept_name, lambda: kept(store.url_of(), many), "times", 2)
    some = 1_500 if table.short else 4_000
    table.row(
        f"{name}, sets of limits: memory that each beyond {some:,} leaves",
        lambda: (held(store.url_of(), 3 * some) - held(store.url_of(), some)) / (2 * some),
        "bytes",
        1_000 if table.short else 100,
    )
    if not store.server:
        table.row(f"{name}, a policy: what a full collection looks at", lambda: objects(store.url_of()), "objects", 25)
    many, bound = (1_000, 20) if table.short else (10_000, 2)
    for title, spent in (
        ("configuration store: one policy of so many changed", configured),
        ("configuration store: a decision under so many overrides, each of other limits", overridden),
        ("export of one log, where there are so many policies", exported),
    ):
        own = None if spent is exported and store.server else bound
        size = 5_000 if table.short and spent is overridden and name == "memory" else many  # a thousand is no cliff
        table.ratio(f"{name}, {title}", partial(spent, store), (10, size), own)
    table.job(f"{name}, AsyncLimiter, a decision", partial(spent_awaiting, store), 2_000 if table.short else 20_000)
    for job, (work, most) in JOBS.items():
        table.job(f"{name}, {job}", partial(spent_a_row, store, work), 2_000 if table.short else most)
        wait = partial(longest_wait, store, work, most, alone=name != "memory")
        table.wait(f"{name}, longest wait beside {job} of {most:,}", wait, 50)


@contextmanager
def every_store(*, short: bool) -> Generator[dict[str, Store]]:
    """Each store by its name; where it is, it is empty."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        stores = {"memory": Store(lambda: "memory://")}
        for form in ("", "?forms=next"):
            stores[f"lmdb{form}"] = Store(lambda form=form: f"lmdb://{tempfile.mkdtemp(dir=folder)}/store{form}")
        groups: dict[str, tuple[str, list[Server]]] = {}
        server = single("redis")
        running.callback(server.stop)
        groups["redis"] = server.url, [server]
        if not short:
            together = cluster("redis", replicas=0)
            running.callback(together.stop)
            groups["cluster"] = together.url, together.servers
        for name, (url, servers) in groups.items():
            pids = tuple(server.pid for server in servers)
            for form in ("", "&forms=next") if name == "redis" else ("",):
                url_of = partial(_emptied, servers, f"{url}?deadline=30s{form}")
                stores[name + form.replace("&", "?")] = Store(url_of, processor_clock(*pids), pids)
        yield stores


def _emptied(servers: Sequence[Server], url: str) -> str:
    for server in servers:
        server.command("FLUSHALL")
    return url


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, largest=100_000, only="", short=False)
    report = Report("What does not stay flat: by how many times a call is longer where something is larger")
    table = Table(report, options.only, short=options.short)
    without_stores(table)
    with every_store(short=options.short) as stores:
        for name, store in stores.items():
            growing(table, name, store, options.largest)
            jobs(table, name, store)
    report.show(as_json=options.json)
    if options.short and any(figure.met is False for figure in report.figures):
        sys.exit(1)


if __name__ == "__main__":
    main()
