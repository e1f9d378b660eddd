"""What the store at a URL can do, and what it cannot. Reads only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs, urlsplit

from capline.cli.commands.doctor.finding import Finding, readable, wrong
from capline.cli.render.console import counted
from capline.config.configuration import Configuration
from capline.config.open import open_backend
from capline.model.errors import NoStoreError, StoreError
from capline.store.open import lmdb_path, open_store
from capline.store.redis.io.url import parse_url, safe_url, server_schemes
from capline.support.instant import instant_text
from capline.support.quantity import size

if TYPE_CHECKING:
    from capline.model.policy import Policy
    from capline.store.protocol import Store
    from capline.store.redis.servers import Examined
    from capline.store.redis.store import RedisStore

CLOCK_US = 1_000_000
"""So far may a server's clock be from this machine's: whoever shows its times here is wrong by as much."""
FULL = 0.75
"""Of what a store may take: time to act."""
_RIGHTS = "docs/reference/stores.md#rights"
_SET = "docs/reference/stores.md#what-a-server-should-be-set-to"
_CONFIG = "docs/reference/configuration.md"
_LMDB = "docs/reference/stores.md#options-of-lmdb"


def store(url: str, policies: Sequence[Policy]) -> Iterator[Finding]:
    """What is to be known of the store; raises `InvalidValueError` for a URL that names none."""
    kind = url.partition("://")[0].lower()
    is_server = kind in server_schemes()
    if is_server:
        parse_url(url)
    try:
        opened = open_store(url, create=False)
    except NoStoreError:
        yield Finding("store", f"{url}: not there yet; the first decision makes it", ok=True)
        yield from _disk(lmdb_path(url), 0)
        return
    except StoreError as error:
        yield wrong("store", str(error), "docs/howto/installing.md" if is_server else _LMDB)
        return
    try:
        if is_server:
            yield from _servers(url, cast("RedisStore", opened), policies)
        else:
            yield readable("store", lambda: _writable(url, opened), _LMDB)
        if kind == "lmdb":
            yield from _file(url, opened)
        elif kind == "memory":
            yield Finding("memory", "hits are this process's own, and end with it", ok=True)
    finally:
        opened.close()


def configuration(url: str, namespace: str) -> tuple[list[Finding], Sequence[Policy]]:
    """What is to be known of the configuration store, and its policies; raises as `store`."""
    try:
        with Configuration(url, namespace=namespace, create=False) as opened:
            policies, figures = [*opened.policies.values()], opened.stats()
    except NoStoreError:
        return [Finding("config", f"{url}: not there yet; the first change makes it", ok=True)], ()
    except StoreError as error:
        return [wrong("config", str(error), _CONFIG)], ()
    found = f"{safe_url(url)}: version {opened.version}, {counted(len(policies), 'policy', 'policies')}, "
    found += f"overrides of {figures['overrides']:,.0f} subject(s)"

    backend = open_backend(url, namespace, create=False)
    try:
        backend.settle(0)  # no commit is 0: it changes nothing, and asks for the right to
    except StoreError as error:
        return [wrong("config", f"{found}; it can be read, not changed: {error}", _RIGHTS)], policies
    finally:
        backend.close()
    return [Finding("config", f"{found}; takes changes", ok=True)], policies


def _writable(url: str, opened: Store) -> str:
    opened.try_write()
    return f"{safe_url(url)}: takes writes"


def _disk(path: Path, file_bytes: int) -> Iterator[Finding]:
    """Room for the next growth of the file, and the right to make it."""
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    need = min(max(file_bytes, 16 << 20), 1 << 30)
    if not os.access(there, os.W_OK):
        yield wrong("disk", f"{there} cannot be written by this user; give it the right, or name another", _LMDB)
    elif free < need:
        yield wrong("disk", f"{there}: {size(free)} free, and the file grows by {size(need)}; make room", _LMDB)
    else:
        yield Finding("disk", f"{there}: {size(free)} free, {size(need)} needed to grow", ok=True)


def _file(url: str, opened: Store) -> Iterator[Finding]:
    path, stats = lmdb_path(url), opened.stats()
    yield from _disk(path, stats["file_bytes"])
    yield Finding("lock", f"{path / 'lock.mdb'}: held, beside {stats['readers']} reader(s)", ok=True)
    used = stats["used_pages"] * stats["page_bytes"]
    bound = parse_qs(urlsplit(url).query).get("max_bytes")
    most = int(bound[0]) if bound else 0
    said = f"{size(used)} used of {size(stats['file_bytes'])}, {stats['logs']:,} log(s), "
    said += f"grows to {size(most)}" if most else "grows without a bound"
    if most and used > FULL * most:
        yield wrong("map", f"{said}: nearly full; raise max_bytes, or run capline sweep", _LMDB)
    else:
        yield Finding("map", said, ok=True)


def _servers(url: str, opened: RedisStore, policies: Sequence[Policy]) -> Iterator[Finding]:
    from capline.store.redis.servers import examine  # noqa: PLC0415 - as the store

    try:
        found = opened.drive(examine(opened.session))
    except StoreError as error:
        yield wrong("store", f"{error}; is it started, is the URL right?", "docs/reference/operating.md")
        return
    waits = max((policy.wait_replicas for policy in policies), default=0)
    yield Finding("store", f"{safe_url(url)}: answers, {len(found)} server(s) with logs", ok=True)
    for server in found:
        yield from _server(server, waits)


def _server(found: Examined, waits: int) -> Iterator[Finding]:
    from capline.store.redis.io.server_check import version_of  # noqa: PLC0415 - as the store
    from capline.store.redis.servers import figures_of  # noqa: PLC0415 - as the store

    info, figures, name = found.info, figures_of(found.info), found.server
    evicted = figures.get("evicted_keys", 0)
    if not info:
        yield wrong("rights", f"{name}: this user may not ask INFO; allow it", _RIGHTS)
    brand = "Valkey" if "valkey_version" in info else "Redis"
    aof, saved = info.get("aof_enabled") == "1", instant_text(int(info.get("rdb_last_save_time", "0")) * 1_000_000)
    good = {
        "version": f"{brand} {version_of(info)}",
        "eviction": f"none ({info.get('maxmemory_policy')}); {evicted} key(s) evicted so far",
        "persistence": "appendonly yes" if aof else f"saved to disk last at {saved}",
    }
    for about, said in good.items() if info else ():
        advice = found.advice.get(about)
        if advice is None and about == "eviction" and evicted:
            advice = f"{evicted} key(s) were evicted: their hits are lost; give it more memory"
        yield wrong(about, f"{name}: {advice}", _SET) if advice else Finding(about, f"{name}: {said}", ok=True)
    used, most = figures.get("memory_bytes", 0), figures.get("max_memory_bytes", 0)
    said = f"{name}: {size(used)} used of {size(most) if most else 'what there is (maxmemory 0)'}"
    if most and used > FULL * most:
        yield wrong("memory", f"{said}: it soon refuses writes; raise maxmemory", "docs/howto/production.md#size")
    else:
        yield Finding("memory", said, ok=True)
    ahead_s = found.ahead_us / 1e6
    said = f"{name}: {abs(ahead_s):.4f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine"
    if abs(found.ahead_us) > CLOCK_US:
        yield wrong("clock", f"{said}; set both by NTP", "docs/howto/production.md#the-server")
    else:
        yield Finding("clock", said, ok=True)
    replicas = figures.get("replicas", 0)
    said = f"{name}: {replicas} connected" + f", at most {figures.get('replica_lag_s', 0)} s behind" * bool(replicas)
    if waits > replicas:
        mend = f"a policy waits for {waits} (wait_replicas); start them, or lower it"
        yield wrong("replicas", f"{said}; {mend}", "docs/reference/stores.md#failover")
    else:
        yield Finding("replicas", said, ok=True)
    trips = f"{found.script_us} us a script, {found.round_trip_us} us a bare command"
    yield Finding("scripts", f"{name}: they run, {trips}", ok=True)
