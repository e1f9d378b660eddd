"""One rate for all of a `rate_key`, counted at the receiver at every instant, whatever becomes of those who send.

Two campaigns of workers and one of `campaign run` have one key and one store of limits. Processes are killed, suspended
and resumed, and the rate is changed, while a receiver notes when each message arrived.
"""

import random
import signal
import time
from bisect import bisect_right
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.distributed.test_campaign_workers import Shared, start, until
from tests.kit import forked
from tests.kit.campaign import Receiver, Site, answer, capline, environment, receiver
from tests.kit.forked import Command
from tests.kit.servers import single
from tests.profiles import size

pytestmark = pytest.mark.deep

QUOTA, WINDOW_S = 200, 5
WINDOWS = size(2, 2, 8)
QUEUED = ("spring", "autumn")


class Shop:
    """Campaigns of one key, each of so many users, with a receiver that knows when each message came."""

    def __init__(self, folder: Path, kind: str, url: str, far: Receiver, users: int) -> None:
        self.queue = Shared(url if kind == "redis" else f"sqlite://{folder}/queue.sqlite")
        self.users, self.far, self.arrived = users, far, list[float]()
        far.on_request = lambda _count: self.arrived.append(time.monotonic())
        sender = f"{{webhook: {{url: '{far.url}', concurrency: 10}}}}"
        store = url if kind == "redis" else f"lmdb://{folder}/limits"
        self.sites: dict[str, Site] = {}
        for place, name in enumerate((*QUEUED, "run")):
            (folder / name).mkdir()
            more = {"sender": sender, "rate": f"{QUOTA}/{WINDOW_S}s", "rate_key": "push", "batch": "25"}
            site = self.sites[name] = Site(folder / name, {"campaign": name, **more}, store)
            site.audience(range(place * users, (place + 1) * users))  # nobody is over a cap
            site.write(segments=None, as_of=None)
        for name in QUEUED:
            answer("campaign", "enqueue", self.sites[name].file, "--queue", self.queue.url)

    def begin(self, who: str) -> Command:
        if who == "worker":
            return start(self.queue)
        return forked.start("campaign", "run", str(self.sites[who].file), env=environment())

    def most_in_a_window(self, since: float = 0) -> int:
        at = sorted(each for each in self.arrived if each > since)
        return max((place + 1 - bisect_right(at, each - WINDOW_S) for place, each in enumerate(at)), default=0)

    def check_all(self, campaigns: int) -> None:
        """Each user of the first campaigns has one message."""
        assert self.far.delivered() == list(range(campaigns * self.users))
        assert {len(keys) for keys in self.far.keys.values()} == {1}


@contextmanager
def shop(folder: Path, kind: str, users: int) -> Generator[Shop]:
    with single("redis") as server, receiver() as far:
        yield Shop(folder, kind, server.url, far, users)


@contextmanager
def at_work(shop: Shop, *roles: str) -> Generator[list[tuple[str, Command]]]:
    """Processes by what they do; whichever still runs in the end is killed."""
    working = [(each, shop.begin(each)) for each in roles]
    try:
        yield working
    finally:
        for _, process in working:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()


def end_all(working: list[tuple[str, Command]]) -> None:
    for _, process in working:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("seed", range(size(1, 1, 3)))
def test_who_is_killed_or_suspended_breaks_no_rate(tmp_path: Path, kind: str, seed: int) -> None:
    chance = random.Random(f"{kind} {seed}")
    with shop(tmp_path, kind, QUOTA * WINDOWS // 3) as place:
        with at_work(place, "worker", "worker", "run") as working:
            faults = 0
            while len(place.arrived) < 2.5 * place.users:
                target = min(len(place.arrived) + chance.randint(1, QUOTA // 4), 2.5 * place.users)
                until(lambda target=target: len(place.arrived) >= target, "messages", 60)
                time.sleep(chance.uniform(0, 0.3))
                faults += 1
                chosen, other = chance.sample(range(len(working)), 2)
                role, victim = working[chosen]
                if faults % 3 == 0:
                    victim.kill()
                    victim.communicate()
                    working[chosen] = role, place.begin(role)
                else:  # two at once: the margin of the rate has room for what is late by itself
                    suspended = [each for each in (victim, working[other][1]) if each.poll() is None]
                    for each in suspended:
                        each.send_signal(signal.SIGSTOP)
                    time.sleep(chance.uniform(0.3, 1.5))
                    for each in suspended:
                        each.send_signal(signal.SIGCONT)
            assert faults >= 3
            end_all(working)
        place.check_all(len(QUEUED) + 1)
        assert QUOTA // 2 < place.most_in_a_window() <= QUOTA


@pytest.mark.parametrize(("kind", "new"), [("sqlite", QUOTA * 2), ("redis", QUOTA // 2)])
def test_a_rate_that_is_changed_while_workers_send_counts_at_once_for_all(tmp_path: Path, kind: str, new: int) -> None:
    is_raised, users = new > QUOTA, (5 * new + 5 * QUOTA) // 8
    with shop(tmp_path, kind, users) as place, at_work(place, "worker", "worker") as working:
        until(lambda: len(place.arrived) >= QUOTA // 2, "messages", 60)
        done = capline("campaign", "set", "spring", "--rate", f"{new}/{WINDOW_S}s", "--queue", place.queue.url)
        assert done.returncode == 0, done.stderr
        changed = time.monotonic()
        end_all(working)
        place.check_all(len(QUEUED))
        assert place.most_in_a_window() <= max(QUOTA, new)
        most = place.most_in_a_window(changed + (0 if is_raised else WINDOW_S))
        assert (QUOTA if is_raised else 0) < most <= new
