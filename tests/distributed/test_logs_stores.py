"""Logs out and in, where stores differ: damaged values, expiry on a server, the seams between the parts of a scan."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# redis-py leaves its commands untyped.

import secrets
from pathlib import Path
from typing import Any

import lmdb
import pytest
import redis
from tests.kit.server import Limiters, each_layout
from tests.kit.servers import shared

from capline import CaplineError, Limiter, LogRecord, ManualClock, PastHit, Policy, StoreDamagedError

NOW_US = 1_700_000_000_000_000
PASTS = [PastHit("p", subject, NOW_US - 5) for subject in (1, 2, 3)]


def check_told(limiter: Limiter) -> None:
    """Subject 2's log is damaged; the others are not."""
    told: list[CaplineError] = []
    assert sorted(str(one.subject) for one in limiter.export(on_fault=told.append)) == ["1", "3"]
    assert [type(error) for error in told] == [StoreDamagedError]
    with pytest.raises(StoreDamagedError):
        list(limiter.export())
    loaded = limiter.load(PASTS)
    assert (loaded.added, loaded.known, loaded.failed) == (2, 0, 1)
    assert [number for number, _ in loaded.faults] == [2]


@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize("wrong", ["value", "kind"])
def test_on_a_server(layout: str, wrong: str) -> None:
    url, namespace = shared("redis").url, f"d{secrets.token_hex(8)}"
    policy = Policy("p", ["9/day"], layout=layout)
    with (
        Limiter(url, [policy], clock=ManualClock(NOW_US), namespace=namespace) as limiter,
        redis.Redis.from_url(url) as server,
    ):
        for subject in (1, 3, 2):
            limiter.decide("p", subject)
        if layout == "subject" and wrong == "kind":
            server.delete(f"{namespace}:p:{{2}}")
            server.hset(f"{namespace}:p:{{2}}", "a", "b")
        elif layout == "subject":
            server.set(f"{namespace}:p:{{2}}", b"\x05short")
        elif wrong == "value":
            server.hset(f"{namespace}:p:{{#0}}", b"\x02", b"\x05short")
        else:
            server.delete(f"{namespace}:p:{{#0}}")
            server.set(f"{namespace}:p:{{#0}}", "no hash")
            told: list[CaplineError] = []
            assert list(limiter.export(on_fault=told.append)) == []
            assert [type(error) for error in told] == [StoreDamagedError]
            assert limiter.load(PASTS).failed == 3
            return
        check_told(limiter)


def test_in_a_file(tmp_path: Path) -> None:
    policy = Policy("p", ["9/day"])
    with Limiter(f"lmdb://{tmp_path}/store", [policy], clock=ManualClock(NOW_US)) as limiter:
        for subject in (1, 2, 3):
            limiter.decide("p", subject)
        limiter.decide("p", "x" * 401)
    with lmdb.open(str(tmp_path / "store"), max_dbs=4) as environment:
        logs = environment.open_db(b"logs")
        with environment.begin(write=True, db=logs) as txn:
            [(key, value)] = [(key, value) for key, value in txn.cursor() if key.endswith(b"\0\0\2")]
            txn.put(key, value[:-1] + b"!")
    with Limiter(f"lmdb://{tmp_path}/store", [policy], clock=ManualClock(NOW_US)) as limiter:
        told: list[CaplineError] = []
        assert len(list(limiter.export(on_fault=told.append))) == 2
        assert sorted(str(error)[:40] for error in told) == [
            "a stored log is damaged: its checksum do",
            "a subject of more than 400 bytes is kept",
        ]
        limiter.erase("x" * 401)
        check_told(limiter)


@pytest.mark.parametrize("layout", ["subject", "bucket"])
def test_what_was_merged_expires_a_while_after_its_last_hit_has_left_every_window(layout: str) -> None:
    url, namespace = shared("redis").url, f"d{secrets.token_hex(8)}"
    policy = Policy("p", ["9/day"], layout=layout, channels={"push": ["1000/h"]})
    with Limiter(url, [policy], namespace=namespace) as limiter, redis.Redis.from_url(url) as server:
        hour_ago = limiter.now_us() - 3_600_000_000
        limiter.load([PastHit("p", 1, hour_ago, channel="push")])
        limiter.load([LogRecord("p", 2, [(hour_ago - i, 1, 0) for i in range(900)])])
        limiter.load([LogRecord("p", 2, [(hour_ago + 1, 1, 0)])])
        keys = server.keys(f"{namespace}:p*")
        left = [server.pttl(key) / 3_600_000 for key in keys]
    assert len(left) == (3 if layout == "subject" else 2)
    assert all(23 < hours < 23.1 for hours in left)


def test_a_bucket_of_more_subjects_than_one_answer_holds_is_exported_whole() -> None:
    policy = Policy("p", ["9/day"], layout="bucket", population=1)
    with Limiter(shared("redis").url, [policy], namespace=f"d{secrets.token_hex(8)}") as limiter:
        subjects = {f"user:{i}" for i in range(1500)}
        limiter.decide_many("p", sorted(subjects))
        assert {record.subject for record in limiter.export()} == subjects


@pytest.mark.parametrize("url", ["memory://", "lmdb://{tmp}/store"])
def test_on_this_machine_every_log_comes_once(url: str, tmp_path: Path) -> None:
    with Limiter(url.format(tmp=tmp_path), [Policy("p", ["9/day"]), Policy("q", ["9/day"])]) as limiter:
        limiter.decide_many("p", range(1500))
        limiter.decide_many("q", range(1500))
        found = [(record.log, record.subject) for record in limiter.export()]
    assert len(found) == len(set(found)) == 3000


@each_layout
@pytest.mark.parametrize("shape", ["single", "cluster"])
def test_erase_reaches_a_channel_that_no_policy_of_its_process_ever_had(
    limiters: Limiters, layout: str, shape: Any
) -> None:
    """A process of before told the server; it may have ended since."""
    server = shared("redis", shape)
    like: dict[str, Any] = {"layout": layout, "population": 640}
    before, after = (Policy("p", ["9/day"], channels=channels, **like) for channels in ({"push": ["2/day"]}, None))
    past = limiters(server, before, Policy("q", ["9/day"], channels={"mail": ["2/day"]}, **like))
    past.decide_many("q", range(640), channel="mail")  # some on each server
    for subject in ("s", 7):
        assert past.decide("p", subject, 2, channel="push")
        assert past.decide_many("p", [subject], channel="push").allowed.tolist() == [False]
    past.decide_many("p", range(100, 740), channel="push")
    begun = limiters(server, after)
    assert [begun.erase(subject) for subject in ("s", 7, 700, "s")] == [2, 2, 2, 0]
    assert past.usage("q", 7, channel="mail")[1].used == 1
    assert past.decide("p", "s", 2, channel="push")


def test_the_names_of_channels_are_told_again_before_they_expire(sync_limiters: Limiters) -> None:
    server, key = shared("redis"), f"{sync_limiters.namespace}:/channels:{{channels}}"
    limiter = sync_limiters(server, Policy("p", ["9/day"], channels={"push": ["2/day"]}))
    for _ in range(2):
        limiter.decide("p", "s", channel="push")
        assert server.command("HKEYS", key) == [f"{sync_limiters.namespace}:p/push".encode()]
        assert 3 * 86_400_000 < server.command("PTTL", key) <= 3 * 86_460_000
        server.command("DEL", key)
        limiter.decide("p", "s", channel="push")
        assert server.command("HKEYS", key) == []
        names = limiter._store.session.router.names
        names.due_s -= names.least_ms / 2000
