"""What is said of a server that is not set as a limiter needs it."""

import pytest

from capline.store.redis.io.server_check import advice
from capline.store.redis.io.wire import ServerError

GOOD = b"# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n\r\n# Persistence\r\naof_enabled:1\r\n"  # noqa: E501 - as a server says it
NO_SAVES = [b"save", b""]
SAVES = [b"save", b"3600 1 300 100 60 10000"]

REDIS_6_2 = b"""# Server
redis_version:6.2.14
redis_git_sha1:00000000
redis_mode:standalone
os:Linux 5.15.0 x86_64
arch_bits:64
tcp_port:6379
executable:/usr/bin/redis-server
io_threads_active:0

# Memory
used_memory_human:854.21K
maxmemory:0
maxmemory_policy:noeviction
mem_allocator:jemalloc-5.1.0

# Persistence
loading:0
aof_enabled:0
rdb_last_save_time:1700000000
"""


def test_a_well_set_server_gets_no_advice() -> None:
    assert advice([GOOD, NO_SAVES]) == {}
    assert advice([GOOD.replace(b"aof_enabled:1", b"aof_enabled:0"), SAVES]) == {}


def test_one_that_is_too_old_is_reported() -> None:
    assert advice([REDIS_6_2, SAVES]) == {
        "version": "version 6.2.14 is older than 7.0, the oldest that capline is tested with"
    }


@pytest.mark.parametrize(("version", "old"), [("7.0.0", False), ("7.2.4", False), ("8.0.1", False), ("10.1", False)])
@pytest.mark.parametrize("name", ["redis_version", "valkey_version"])
def test_versions_are_compared_as_numbers(name: str, version: str, old: bool) -> None:
    text = GOOD.replace(b"redis_version:7.0.15", f"{name}:{version}".encode())
    assert bool(advice([text, SAVES])) is old


def test_a_valkey_goes_by_its_own_version() -> None:
    both = GOOD.replace(b"redis_version:7.0.15", b"redis_version:7.2.4\r\nvalkey_version:9.1.0")
    assert advice([both, SAVES]) == {}


def test_eviction_and_no_persistence_are_reported_with_their_fixes() -> None:
    bad = GOOD.replace(b"noeviction", b"allkeys-lru").replace(b"aof_enabled:1", b"aof_enabled:0")
    eviction, persistence = advice([bad, NO_SAVES]).values()
    assert "maxmemory-policy is allkeys-lru" in eviction
    assert "set it to noeviction" in eviction
    assert "persistence is off" in persistence
    assert "set appendonly yes" in persistence


def test_who_may_not_ask_is_shown_less_and_no_error() -> None:
    refused = ServerError("NOPERM", "NOPERM this user has no permissions to run the 'config|get' command")
    off = GOOD.replace(b"aof_enabled:1", b"aof_enabled:0")
    assert advice([off, refused]) == {}
    assert advice([off, []]) == {}
    assert advice([refused, refused]) == {}


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"no colon", b"redis_version:\r\n", b"redis_version:x.y"])
def test_an_info_that_says_nothing_is_no_error(text: bytes) -> None:
    assert all("version" in line for line in advice([text, SAVES]).values())
