"""A configuration followed by other processes: within seconds, through a fork, a server that goes, a writer killed."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.kit.servers import sentinel, shared, single
from tests.kit.serving import Serving

from capline import AsyncLimiter, Attempt, Limiter, ManualClock, Policy
from capline.config.configuration import POLL_EVERY_S, Configuration
from capline.model.errors import StoreError, StoreUnavailableError

WITHIN_S = 60
PATIENT = "?deadline=20s"
ALGORITHMS = ["sliding_log", "bucketed", "sliding_counter", "fixed_window", "gcra"]

FOLLOWER = """
import sys, time
from capline import Limiter
url, namespace, until = sys.argv[1:]
with Limiter.from_config(url, "memory://", namespace=namespace) as limiter:
    print(limiter.peek("promo", "u").limit, flush=True)
    while str(limiter.peek("promo", "u").limit) != until:
        time.sleep(0.01)
    print(limiter.peek("promo", "u").limit, flush=True)
"""


def wait_for(what: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not what():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_thread_follows_and_ends(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}"
    with Configuration(url) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"])])
        other = os.fork()
        if not other:
            # Another process, which has the open configuration of its parent, too.
            try:
                configuration.override("promo", "u", ["9/day"])
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the parent reads it from the status
                os._exit(1)
        with Limiter.from_config(url, "memory://") as limiter:
            wait_for(lambda: str(limiter.peek("promo", "u").limit) == "9/day")
            assert limiter.configuration is not None
            thread = limiter.configuration._follower  # pyright: ignore[reportPrivateUsage] - whether it ends
            assert thread is not None
        assert not thread.is_alive()
        assert os.waitpid(other, 0)[1] == 0


def test_two_polls_are_less_than_two_seconds() -> None:
    assert 2 * POLL_EVERY_S <= 1


@pytest.mark.deep
@pytest.mark.parametrize("store", ["lmdb", "redis"])
def test_other_processes_follow(tmp_path: Path, store: str) -> None:
    url = f"lmdb://{tmp_path}" if store == "lmdb" else shared("redis").url + PATIENT
    namespace = f"two-{uuid4().hex}"
    with Configuration(url, namespace=namespace) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"])])
        others = [
            subprocess.Popen(
                [sys.executable, "-c", FOLLOWER, url, namespace, "7/day"], stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == "3/day\n"
        configuration.override("promo", "u", ["9/day"])
        configuration.override("promo", "u", ["7/day"])
        for other in others:
            out, _ = other.communicate(timeout=WITHIN_S)
            assert out == "7/day\n"
            assert other.returncode == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.deep
def test_a_forked_child_follows_by_itself(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}"
    with Limiter.from_config(url, "memory://") as limiter:
        assert limiter.configuration is not None
        limiter.configuration.set_policies([Policy("promo", ["3/day"])])
        child = os.fork()
        if not child:
            try:
                wait_for(lambda: str(limiter.peek("promo", "u").limit) == "8/day")
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the parent reads it from the status
                os._exit(1)
        limiter.configuration.override("promo", "u", ["8/day"])
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.deep
def test_a_server_that_goes_and_comes() -> None:
    with single("redis") as server:
        url = server.url + "?deadline=20s"
        with Limiter.from_config(url, "memory://") as limiter:
            configuration = limiter.configuration
            assert configuration is not None
            configuration.set_policies([Policy("promo", ["9/day"])])
            configuration.override_many("promo", {"u": ["5/day"]})
            assert limiter.decide("promo", "u").remaining == 4
            server.kill()
            wait_for(lambda: configuration.stats()["up"] == 0)
            assert limiter.decide("promo", "u").remaining == 3
            assert configuration.stale_s > 0
            with pytest.raises(StoreUnavailableError):
                configuration.override("promo", "u", None)
            with pytest.raises(StoreError):
                Limiter.from_config(url, "memory://")
            server.restart()
            # It kept nothing on disk: the empty configuration is the one in force now.
            wait_for(lambda: configuration.stats()["up"] == 1)
            wait_for(lambda: not limiter.policies)


def test_a_server_that_hangs_makes_a_follower_stale_before_its_poll_has_failed() -> None:
    with single("redis") as server, Configuration(server.url + "?deadline=60s") as configuration:
        configuration.follow()
        wait_for(lambda: configuration.stale_s == 0.0)
        server.pause()
        wait_for(lambda: configuration.stale_s > 4 * POLL_EVERY_S)
        assert configuration.stats()["up"] == 1
        server.resume()
        wait_for(lambda: configuration.stale_s == 0.0)


@pytest.mark.deep
def test_two_services_follow_one_configuration(tmp_path: Path) -> None:
    words = ("--config-store", f"lmdb://{tmp_path}/shared", "--store", "memory://")
    with Serving(tmp_path, *words) as one, Serving(tmp_path, *words) as two:
        assert one.client.put("/v1/policies/promo", json={"limits": ["3/day"]}).json() == {"version": 1}
        assert one.ask("/v1/decide", policy="promo", subject="u").json()["remaining"] == 2
        wait_for(lambda: two.client.get("/v1/policies/promo").status_code == 200)
        two.client.put("/v1/overrides/promo/u", json={"limits": ["9/day"]})
        assert two.ask("/v1/decide", policy="promo", subject="u").json()["remaining"] == 8
        wait_for(lambda: one.ask("/v1/peek", policy="promo", subject="u").json()["limit"] == "9/day")
        metrics = one.client.get(f"{one.admin}/metrics").text
        assert "capline_config_version 2.0" in metrics
        assert "capline_config_up 1.0" in metrics
        # Which process has heard of it, watched every two seconds.
        wait_for(lambda: "capline_config_known_version 2.0" in two.client.get(f"{two.admin}/metrics").text)
        for service in (one, two):
            assert service.stop() == 0


@pytest.mark.parametrize("store", ["lmdb", "redis"])
@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_overrides_on_every_kind_of_store(tmp_path: Path, store: str, layout: str, asynchronous: bool) -> None:
    url = f"lmdb://{tmp_path}" if store == "lmdb" else shared("redis").url + PATIENT
    namespace = f"own-{uuid4().hex}"
    policies = [Policy("promo", ["2/day"], layout=layout), Policy("other", ["2/day"], log="promo", layout=layout)]
    options: dict[str, Any] = {"policies": policies, "namespace": namespace, "config": "memory://"}

    def asked() -> list[list[int]]:
        with Limiter(url, **options) as limiter:
            limiter.override("promo", 7, ["4/day", "5/week"])
            limiter.override("promo", "u", ["3/day"])
            first = limiter.decide_many("promo", [6, 7, "u", 7, 6, 6], receipt="one").remaining.tolist()
            again = limiter.decide_many("promo", [6, 7, "u", 7, 6, 6], receipt="one").remaining.tolist()
            hits = [limiter.decide("promo", 7).remaining, limiter.decide("promo", "u").remaining]
            shared_log = limiter.peek("other", 7).remaining
            return [first, again, hits, [shared_log]]

    async def awaited() -> list[list[int]]:
        async with AsyncLimiter(url, **options) as limiter:
            await limiter.override("promo", 7, ["4/day", "5/week"])
            await limiter.override("promo", "u", ["3/day"])
            first = (await limiter.decide_many("promo", [6, 7, "u", 7, 6, 6], receipt="one")).remaining.tolist()
            again = (await limiter.decide_many("promo", [6, 7, "u", 7, 6, 6], receipt="one")).remaining.tolist()
            hits = [(await limiter.decide("promo", 7)).remaining, (await limiter.decide("promo", "u")).remaining]
            shared_log = (await limiter.peek("other", 7)).remaining
            return [first, again, hits, [shared_log]]

    columns = [1, 3, 2, 2, 0, 0]
    assert (asyncio.run(awaited()) if asynchronous else asked()) == [columns, columns, [1, 1], [0]]


CONSUME: dict[str, Callable[[Limiter, str], Any]] = {
    "decide": lambda limiter, subject: limiter.decide("p", subject).hit,
    "with an id": lambda limiter, subject: limiter.decide("p", subject, id=uuid4().hex).hit,
    "decide_many": lambda limiter, subject: int(limiter.decide_many("p", ["v", subject, "v", 7]).hit[1]),
    "with a receipt": lambda limiter, subject: int(
        limiter.decide_many("p", [7, "v", subject], receipt=uuid4().hex).hit[2]
    ),
    "decide_batch": lambda limiter, subject: getattr(
        limiter.decide_batch([Attempt("p", "v"), Attempt("p", subject)])[1], "hit", None
    ),
    "decide_all": lambda limiter, subject: limiter.decide_all([Attempt("p", subject), Attempt("p", "v")]).hits[0],
    "charge": lambda limiter, subject: limiter.charge("p", subject, 1).hit,
    "schedule": lambda limiter, subject: limiter.schedule("p", subject).hit,
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("store", ["memory", "lmdb", "redis", "valkey"])
@pytest.mark.parametrize("layout", ["subject", "bucket"])
def test_every_verb_counts_an_overridden_subject_under_the_same_keys(
    tmp_path: Path, store: str, layout: str, algorithm: str
) -> None:
    urls = {"memory": "memory://", "lmdb": f"lmdb://{tmp_path}"}
    url = urls.get(store) or shared(store).url + PATIENT
    policy = Policy("p", ["999/hour", "9999/day"], algorithm=algorithm, layout=layout)
    options: dict[str, Any] = {"namespace": f"same-{uuid4().hex}", "config": "memory://"}
    with Limiter(url, policies=[policy], clock=ManualClock(1_800_000_000_000_000), **options) as limiter:
        for first, second in product(CONSUME, CONSUME):
            subject = f"{first}, {second}"
            limiter.override("p", subject, ["10/hour"])
            hits = [CONSUME[first](limiter, subject), CONSUME[second](limiter, subject)]
            assert [state.used for state in limiter.usage("p", subject)] == [2], subject
            assert limiter.peek("p", subject).remaining == 7, subject
            assert limiter.peek_many("p", ["v", subject]).remaining.tolist()[1] == 7, subject
            assert limiter.refund("p", subject, hits[0]), subject
            assert limiter.refund_many("p", [subject], [hits[1] or 0]).all(), subject
            assert limiter.peek_all([Attempt("p", subject)]).remaining == 9, subject


@pytest.mark.deep
def test_behind_sentinels() -> None:
    with sentinel("redis") as group, Configuration(group.url + PATIENT) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"])])
        assert configuration.override("promo", "u", ["9/day"]) == 2
        own = configuration.view.own("promo", "u")
        assert own is not None
        assert str(own.limits[0]) == "9/day"
