"""Two processes serve decisions while a third publishes 50 versions, one in five of them broken on purpose.

Each version k puts user i into one segment by a rule, so every answer can be checked against the version that gave it:
the segment, and the quota that the decision was bound by. The publisher waits until both processes tell of a version,
or of its being refused; they never stop deciding meanwhile.
"""

import hashlib
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.kit.s3 import S3
from tests.kit.segments import Site, claiming, directory_site, make, resealed, s3_site

from capline.segment import IdSet
from capline.segment.publish.pointer import POINTER

VERSIONS = 50
USERS = 1_000
WAIT_SECONDS = 30

SERVER = """
import json, random, sys, threading, time, zlib
from capline import Limiter, Policy
from capline.segment import SegmentWatch

url, cache, options, USERS = json.loads(sys.argv[1])
QUOTA = {"new": 1, "active": 2, "gone": 3}

def rule(version, user):
    return ("new", "active", "gone", None)[zlib.crc32(b"%d-%d" % (version, user)) % 4]

watch = SegmentWatch(url, cache, interval_s=0.02, options=options).start()
policy = Policy("p", ["9/day"], by_segment={name: [f"{quota}/day"] for name, quota in QUOTA.items()})
limiter = Limiter("memory://", policies=[policy])
ended = []
threading.Thread(target=lambda: (sys.stdin.read(), ended.append(1)), daemon=True).start()
chance, told, answers, longest, last = random.Random(1), None, 0, 0.0, time.monotonic()
while not ended:
    snapshot = watch.current
    version = int(snapshot.version[1:])
    for _ in range(20):
        user = chance.randrange(USERS)
        segment = snapshot.segment_of(user)
        decision = limiter.decide("p", f"{version}-{answers}", segment=segment)
        answers += 1
        if segment != rule(version, user) or not decision or decision.limit.quota != QUOTA.get(segment, 9):
            print(json.dumps({"wrong": [version, user, segment, str(decision)]}), flush=True)
    time.sleep(0.002)  # the machine has other work; bench/segments_swap.py goes at full speed
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    status = watch.status
    state = (version, status.refused, status.error)
    if state != told:
        told = state
        print(json.dumps({"version": version, "refused": status.refused, "error": status.error}), flush=True)
print(json.dumps({"answers": answers, "longest_s": longest, "swaps": watch.status.swaps}), flush=True)
watch.stop()
"""


def rule(version: int, user: int) -> str | None:
    return ("new", "active", "gone", None)[zlib.crc32(b"%d-%d" % (version, user)) % 4]


def sets_of(version: int) -> dict[str, list[int]]:
    return {name: [user for user in range(USERS) if rule(version, user) == name] for name in ("new", "active", "gone")}


class Server:
    """A process that serves, and what it said."""

    def __init__(self, site: Site, cache: Path) -> None:
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, json.dumps([site.url, str(cache), site.options, USERS])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def wait_for(self, truth: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not any(truth(each) for each in reversed(self.said)):
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            assert time.monotonic() < deadline, self.said[-3:]
            time.sleep(0.005)

    def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._reader.join(WAIT_SECONDS)
        assert self.process.wait(WAIT_SECONDS) == 0
        return self.said[-1]


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made: list[Server] = []
    yield made
    for server in made:
        server.process.kill()
        server.process.wait()
        server._reader.join(5)  # pyright: ignore[reportPrivateUsage]
        for pipe in (server.process.stdin, server.process.stdout, server.process.stderr):
            if pipe is not None:
                pipe.close()


def publish_broken(site: Site, directory: Path, version: int) -> None:
    """Publish a version that is broken, in a way of its own, from the first moment that anybody can see it."""
    kind = version // 5 % 5
    if kind == 0:  # consistent by every hash, and two segments share a user
        manifest = site.read(site.pointer().serving.manifest_path)
        bits = IdSet(range(5)).to_bytes()
        same = {"bytes": len(bits), "sha256": hashlib.sha256(bits).hexdigest(), "cardinality": 5}
        entries = [{**each, **same} for each in json.loads(manifest)["segments"]]
        site.smuggle(f"v{version}", resealed(claiming(manifest, entries), version=f"v{version}"), [bits])
        return
    snapshot = make(directory, f"v{version}", **sets_of(version))
    one = hashlib.sha256(next(snapshot.glob("new*.roaring")).read_bytes()).hexdigest()
    with site.publisher() as publisher:
        place: Any = publisher._objects  # pyright: ignore[reportPrivateUsage]
        swap = place.swap

        def broken(path: str, data: bytes, tag: str | None) -> bool:
            if path != POINTER:
                return bool(swap(path, data, tag))
            if kind == 1:
                site.delete(f"objects/{one}")
            elif kind == 2:
                content = site.read(f"objects/{one}")
                site.write(f"objects/{one}", content[:-1] + bytes([content[-1] ^ 1]))
            elif kind == 3:
                site.delete(f"manifests/{json.loads(data)['versions'][-1]['manifest']}.json")
            return bool(swap(path, data[:-40] if kind == 4 else data, tag))

        place.swap = broken
        publisher.publish(snapshot)


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_fifty_versions(kind: str, request: pytest.FixtureRequest, tmp_path: Path, servers: list[Server]) -> None:
    if kind == "directory":
        site = directory_site(tmp_path)
    else:
        server: S3 = request.getfixturevalue("s3")
        site = s3_site(server)

    def publish(version: int, *, resend: bool = False) -> None:
        with site.publisher() as publisher:
            publisher.publish(make(tmp_path, f"v{version}", **sets_of(version)), resend=resend)

    publish(0)
    # One cache for both, as on one host.
    servers += [Server(site, tmp_path / "cache") for _ in range(2)]
    for each in servers:
        each.wait_for(lambda said: said.get("version") == 0)
    good, refused = [0], [0, 0]
    for version in range(1, VERSIONS + 1):
        is_broken = version % 5 == 0
        if is_broken:
            publish_broken(site, tmp_path, version)
        else:
            publish(version, resend=version % 25 == 21)  # after the torn pointer
            good.append(version)
        for number, each in enumerate(servers):
            if not is_broken:
                each.wait_for(lambda said, now=version: said["version"] == now and said["error"] is None)
                continue
            start = refused[number]
            each.wait_for(
                lambda said, start=start: (
                    said["error"] is not None
                    and said["version"] == good[-1]
                    and (said["refused"] > start or "pointer" in said["error"])
                )
            )
            refused[number] = max(said.get("refused", 0) for said in each.said)
    for each in servers:
        ended = each.end()
        assert [said for said in each.said if "wrong" in said] == []
        seen = list(dict.fromkeys(said["version"] for said in each.said if "version" in said))
        assert seen == good
        assert len(good) == 41
        assert ended["swaps"] == len(good)
        assert ended["answers"] > 5_000
        # No gap: a snapshot was there at every turn (else the process had ended), and no turn waited for a fetch.
        assert ended["longest_s"] < 5
