"""Of growth.py: the faces, and jobs without a limiter of their own: tokens, pages, Envoy, HAProxy, segments, campaigns.

A face is opened at a size and then called; a job does so many rows, in this process.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from _harness import best_seconds, check
from tests.kit.campaign import Far, Site, ledger_of, with_sender
from tests.kit.campaign_store import DAY_US, FACTS, RUN, claimed, fill, filled, part
from tests.kit.envoy import OK, EnvoyService, descriptor
from tests.kit.segments import directory_site, make
from tests.kit.service import Service as Client

from capline import AsyncLimiter, Configuration, Policy
from capline.campaign import Stop, report_of, run
from capline.campaign.senders.protocol import DELIVERED, PERMANENT
from capline.campaign.store.open import open_store
from capline.replay.suggest.histories import Histories
from capline.replay.suggest.suggestion import Bound, suggest
from capline.segment import FixedSegments, IdSet, Snapshot
from capline.service.access.guard import Guard
from capline.service.access.tokens import TokenFile
from capline.service.envoy.messages import rls
from capline.service.envoy.service import Service
from capline.service.gateways.spoe import answered, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractContextManager

__all__ = ["CALLED", "JOBS", "called", "spent_a_row"]

_MANY = 1_000_000


@contextmanager
def _tokens(folder: Path, size: int) -> Generator[Callable[[], object]]:
    """A file of so many tokens: one that is known, and one that is not."""
    path = folder / "tokens.json"
    shown = TokenFile(path, create=True).create("caller", ["decide"])
    form = json.loads(path.read_bytes())
    now = datetime.now(UTC).isoformat()
    form["tokens"] += [
        {"name": f"t{i}", "roles": ["read"], "hash": f"sha256:{i:064x}", "created": now} for i in range(size - 1)
    ]
    path.write_text(json.dumps(form), encoding="utf-8")
    guard = Guard(TokenFile(path))
    headers = [(b"authorization", b"Bearer " + shown.encode())]
    with asyncio.Runner() as runner:

        async def ask() -> None:
            for _ in range(100):
                check((await guard.who(headers, ("decide",))).name == "caller", "a token was not known")

        yield lambda: runner.run(ask())


@contextmanager
def _envoy(folder: Path, size: int, *, brought: bool) -> Generator[Callable[[], object]]:
    """Envoy's descriptors: so many in the files, or so many limits that requests have brought along."""
    tree = "".join(
        f"  - {{key: path, value: /{i}, rate_limit: {{unit: day, requests_per_unit: {_MANY}}}}}\n" for i in range(size)
    )
    (folder / "edge.yaml").write_text(f"domain: edge\ndescriptors:\n{tree}", encoding="utf-8")
    with EnvoyService(folder) as envoy:
        service = Service(envoy.server.ratelimit)

        def asked(limit: int | None) -> object:
            own = {} if limit is None else {"limit": {"requests_per_unit": limit, "unit": "DAY"}}
            form = descriptor({"entries": f"path=/{size - 1}", **own})
            return rls.RateLimitRequest(domain="edge", descriptors=[form])

        async def ask(*limits: int | None) -> None:
            for limit in limits:
                response = await service.answer_message(asked(limit))
                check(response.overall_code == OK, "Envoy was refused")

        if brought:
            envoy.run(ask(*range(_MANY, _MANY + size)))
        yield lambda: envoy.run(ask(*[_MANY if brought else None] * 20))


@contextmanager
def _haproxy(_folder: Path, size: int) -> Generator[Callable[[], object]]:
    """HAProxy's messages, by one of so many policies."""
    with asyncio.Runner() as runner:
        limiter = AsyncLimiter("memory://", [Policy(f"p{i}", [f"{_MANY}/day"]) for i in range(size)])

        async def ask() -> None:
            await _asked(limiter, size - 1, 20)

        yield lambda: runner.run(ask())
        runner.run(limiter.aclose())


async def _asked(limiter: AsyncLimiter, policy: int, messages: int) -> None:
    """One frame of so many messages."""

    def text(word: str) -> bytes:
        return varint(len(word)) + word.encode()

    pairs = (("policy", f"p{policy}"), ("subject", "s"))
    message = text("check") + b"\2" + b"".join(text(key) + b"\x08" + text(value) for key, value in pairs)
    answer = await answered(limiter, b"\3\0\0\0\1\5\7" + message * messages)
    check(answer is not None and answer.count(text("allowed") + b"\x11") == messages, "HAProxy was refused")


@contextmanager
def _pages(_folder: Path, size: int) -> Generator[Callable[[], object]]:
    """Pages of the service with so many policies, and what each probe asks."""
    configuration, segments = Configuration("memory://"), FixedSegments(Snapshot({"new": IdSet([1])}, "v1"))
    configuration.set_policies([Policy(f"p{i}", [f"{_MANY}/day"]) for i in range(size)])
    for limit in ("1/day", "2/day"):
        configuration.set_policies([Policy("p0", [limit])])
    paths = ["/v1/policies/p1", "/v1/policies?limit=10", "/v1/policies?contains=p9&limit=1", "/v1/subjects/s?limit=5"]
    with Client([], config=configuration, segments=segments) as client:

        def ask() -> None:
            for path in [*paths, "/v1/commits?limit=1", "/readyz"]:
                check(client("GET", path).status_code == 200, f"{path} was not answered")
            check(client.post("/v1/decide", policy="none", subject="s").status_code == 422, "a policy was made up")

        yield ask
    configuration.close()


@contextmanager
def _pending(folder: Path, size: int) -> Generator[Callable[[], object]]:
    """A worker's look and claim beside so many campaigns that wait."""
    with closing(open_store(f"sqlite://{folder}/queue.sqlite", work=True, make=True)) as queue:
        for number in range(size):
            run = replace(RUN, facts=replace(FACTS, campaign=f"pending-{number}"), batches=1)
            queue.begin(run)
            queue.steer(run.facts.campaign, due_us=time.time_ns() // 1000 + DAY_US)
            fill(queue, run, [(0, 3, part(0).pack(), 0, None)])
        filled(queue)

        def work() -> None:
            for _ in range(20):
                check(queue.look(1).campaigns == ["sale"], "another campaign is due")
                check(queue.release(claimed(queue, "worker"), "give_back"), "a batch was lost")

        yield work


CALLED: dict[str, tuple[Callable[[Path, int], AbstractContextManager[Callable[[], object]]], int, int]] = {
    "a token of so many": (_tokens, 5_000, 500),
    "Envoy, descriptors in the files": (lambda folder, size: _envoy(folder, size, brought=False), 5_000, 500),
    "Envoy, limits that requests brought": (lambda folder, size: _envoy(folder, size, brought=True), 5_000, 500),
    "HAProxy, policies": (_haproxy, 5_000, 500),
    "HTTP, pages of policies": (_pages, 100_000, 20_000),
    "a worker's look and claim, campaigns that wait": (_pending, 5_000, 500),
}
"""Each with its largest size, and that of `--short`."""


def _frames(_folder: Path, size: int) -> Callable[[], object]:
    async def ask() -> None:
        async with AsyncLimiter("memory://", [Policy("p0", [f"{_MANY}/day"])]) as limiter:
            for _ in range(5):
                await _asked(limiter, 0, size)

    return lambda: asyncio.run(ask())


def _collected(folder: Path, size: int) -> Callable[[], object]:
    """`segments gc` with the objects of so many versions, of which all but one's go."""
    site = directory_site(folder)
    publisher = site.publisher()
    for number in range(size):
        publisher.publish(make(folder, f"v{number}", a=[number]))

    def collect() -> None:
        done = publisher.collect(keep=1, grace_us=0)
        check(len(done.kept) == 1 and done.deleted_objects == 2 * (size - 1), "what no version needs was kept")

    return collect


def _left_out(folder: Path, size: int) -> Callable[[], object]:
    """`campaign plan` where half of the audience is excluded or held out."""
    site = Site(folder)
    site.audience(range(size))
    (folder / "optouts.csv").write_text("id\n" + "".join(f"{number}\n" for number in range(0, size, 2)))
    job = site.job(batch="1000", exclude="{csv: optouts.csv, column: id}", holdout="5%")
    job = with_sender(job, Far(lambda _subject, _tries: DELIVERED))

    def go() -> None:
        with closing(Stop()) as stop, ledger_of(job, folder / "run") as ledger:
            run(job, job.open_limiter("memory://"), ledger, stop, pause=lambda _: None)
            check(report_of(ledger).total.excluded == size // 2, "another number was excluded")

    return go


def _suggested(_folder: Path, size: int) -> Callable[[], object]:
    """`suggest` from so many events, half of them of one busy subject."""
    rows = np.arange(size, dtype=np.int64)
    subjects = (rows % 2 * (rows % 9_973)).astype(np.int32)

    def go() -> None:
        histories = Histories(subjects, 1_700_000_000_000_000 + rows * 5_000_000)
        found = suggest(histories, [60_000_000, 3_600_000_000], Bound.parse("1%", "events"), int)
        check(found.events == size and bool(found.frontier), "nothing was suggested")

    return go


def _retried(folder: Path, size: int) -> Callable[[], object]:
    """`campaign run --retry-failed` with so many outcomes, of which half failed."""
    site = Site(folder)
    site.audience(range(1000, 1000 + size))
    far = Far(lambda subject, tries: PERMANENT if tries == 1 and subject % 2 else DELIVERED)
    job = with_sender(site.job(batch="1000", retry="{attempts: 1}"), far)
    limiter = job.open_limiter("memory://")

    def go(*, again: bool) -> int:
        with closing(Stop()) as stop, ledger_of(job, folder / "run") as ledger:
            run(job, limiter, ledger, stop, retry_failed=again, pause=lambda _: None)
            return report_of(ledger).total.failed

    check(go(again=False) == size // 2, "another number failed")
    return lambda: check(go(again=True) == 0, "somebody was not tried again")


JOBS: dict[str, tuple[Callable[[Path, int], Callable[[], object]], int, int]] = {
    "HAProxy, messages of one frame": (_frames, 400, 400),
    "segments gc, versions": (_collected, 1_000, 100),
    "campaign run --retry-failed, outcomes": (_retried, 100_000, 2_000),
    "campaign run, half of its audience left out": (_left_out, 100_000, 2_000),
    "suggest, events": (_suggested, 1_000_000, 50_000),
}
"""Each with its largest size, and that of `--short`."""


def called(face: Callable[[Path, int], AbstractContextManager[Callable[[], object]]], size: int) -> float:
    """The seconds that some calls take at this size."""
    with tempfile.TemporaryDirectory() as folder, face(Path(folder), size) as call:
        return best_seconds(call)


def spent_a_row(job: Callable[[Path, int], Callable[[], object]], size: int) -> float:
    """The seconds of this process that a job of this size takes for each row."""
    spent: list[float] = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            work = job(Path(folder), size)
            begun_s = time.process_time()
            work()
            spent.append((time.process_time() - begun_s) / size)
    return min(spent)
