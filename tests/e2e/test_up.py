"""`capline up` as somebody types it: it starts whole, what it prints to try works, and any process may be killed."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Self

import httpx
import pytest
from proof.checker import check, read
from proof.record import Recorder
from tests.kit.asking import ask_until
from tests.kit.program import lives
from tests.kit.server import soon

ROOT = Path(__file__).parents[2]
WITHIN_S = 60
READY_WITHIN_S = 180
PATHS = "/usr/bin:/usr/sbin:/usr/local/bin"
NEEDED = ("redis-server", "redis-cli", "nginx", "prometheus", "curl")
MINUTE_US = 60_000_000


class Up:
    """A running `capline up`; `said` are the lines of both its outputs."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "capline.cli", "up"],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ready(self) -> bool:
        return soon(lambda: "Ctrl-C ends it.\n" in self.said or self.process.poll() is not None, READY_WITHIN_S)

    def has(self, text: str) -> bool:
        return any(text in line for line in self.said)

    @property
    def pids(self) -> dict[str, int]:
        """Of each part, as it was told last."""
        told = [re.match(r"(\S+) .*\bpid (\d+)", line) for line in self.said]
        return {found[1]: int(found[2]) for found in told if found}

    @property
    def ports(self) -> set[int]:
        return {int(port) for line in self.said for port in re.findall(r"127\.0\.0\.1:(\d+)", line)}

    @property
    def tries(self) -> list[str]:
        return [line.strip() for line in self.said if line.startswith("  curl")]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(WITHIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(WITHIN_S)
        finally:
            self.process.kill()
            self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.said.extend(iter(lines.readline, ""))


def typed(command: str) -> Any:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=WITHIN_S)  # noqa: S607
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_closed(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def metrics(port: int) -> str:
    return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=WITHIN_S, trust_env=False).text


class Whole:
    """A running `capline up` with all its parts, and where to look."""

    def __init__(self, up: Up) -> None:
        self._up = up
        lines = [line for line in up.said if "(pid " in line]
        told = {line.split()[0]: [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", line)] for line in lines}
        (*_, self.admin), (*_, self.worker) = told["service-2"], told["worker"]
        (self.queue,), (self.s3,) = told["queue"], told["s3"]
        self.servers = {name: told[name][0] for name in told if name.startswith("cluster-")}

    def kill(self, name: str) -> None:
        """End it, and wait until that is said and it is there again."""
        first = self._up.pids[name]
        os.kill(first, signal.SIGKILL)
        assert soon(lambda: self._up.has(f"{name} was ended by SIGKILL"), WITHIN_S), name
        assert soon(lambda: self._up.pids[name] != first, WITHIN_S), self._up.said

    def replica(self) -> str:
        """One of the servers that is a replica now."""
        for name, port in self.servers.items():
            words = ["redis-cli", "-p", str(port), "ROLE"]
            if subprocess.run(words, capture_output=True, check=True, timeout=WITHIN_S).stdout.startswith(b"slave"):
                return name
        raise AssertionError("no replica")

    def is_whole(self) -> bool:
        """Three primaries with a replica each, as a service tells it."""
        found = re.findall(r'^capline_server_replicas\{.*store="main"\} (\S+)$', metrics(self.admin), re.MULTILINE)
        return found == ["1.0"] * 3

    def segments(self) -> Any:
        answer = httpx.get(f"http://127.0.0.1:{self.admin}/readyz", timeout=WITHIN_S, trust_env=False)
        return answer.json().get("segments", {})

    def kill_each(self) -> None:
        """One process of each kind, each when the cluster has recovered from the one before."""
        for name in ("service-1", "service-2", "nginx", "publisher", "prometheus", "traffic"):
            self.kill(name)
        version = self.segments()["version"]
        self.kill("s3")
        # It comes back empty: a service says so, until the publisher's next version.
        assert soon(lambda: self.segments()["error"] is not None or self.segments()["version"] != version, WITHIN_S)
        assert soon(self.is_whole, WITHIN_S)
        self.kill("cluster-1")
        assert soon(self.is_whole, WITHIN_S)
        self.kill(self.replica())
        assert soon(self.is_whole, WITHIN_S)
        before = self._up.pids["queue"]
        os.kill(before, signal.SIGKILL)
        assert soon(lambda: "capline_queue_up 0.0" in metrics(self.worker), WITHIN_S)
        assert soon(lambda: self._up.pids["queue"] != before, WITHIN_S), self._up.said
        for name in ("worker", "receiver"):
            self.kill(name)

    def send_again(self, folder: Path) -> None:
        """The campaign once more, under another name."""
        text = (folder / "campaign.yaml").read_text(encoding="utf-8")
        (folder / "again.yaml").write_text(text.replace("campaign: hello", "campaign: again"), encoding="utf-8")
        queue = f"redis://127.0.0.1:{self.queue}/0"
        words = [sys.executable, "-m", "capline.cli", "campaign", "enqueue", "again.yaml", "--queue", queue]
        own = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.s3}", "AWS_REGION": "us-east-1"}
        own |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nobody"}
        subprocess.run(words, cwd=folder, check=True, timeout=WITHIN_S, env={**os.environ, **own})


@pytest.mark.deep
@pytest.mark.skipif(not all(shutil.which(name, path=PATHS) for name in NEEDED), reason="a server is not installed")
def test_it_starts_whole_and_any_of_it_may_be_killed(tmp_path: Path) -> None:
    (tmp_path / "build").symlink_to(ROOT / "build")
    with Up(tmp_path, f"{PATHS}:/bin") as up, ThreadPoolExecutor(2) as callers:
        assert up.ready()
        assert up.process.poll() is None, up.said
        assert not up.has("is missing"), up.said
        assert len(up.tries) == 5
        for link in re.findall(
            r"http://127\.0\.0\.1:\d+/[^\s,]+", "\n".join(line for line in up.said if "(pid" in line)
        ):
            assert httpx.get(link, timeout=WITHIN_S, trust_env=False).status_code == 200, link

        api, override, promo, envoy, receiver = (typed(command) for command in up.tries)
        assert (api["allowed"], api["limit"], api["remaining"]) == (True, "20/minute", 15)
        assert override["version"] > 1
        assert (promo["allowed"], promo["segment"]) == (True, "active")
        assert envoy["overallCode"] == "OK"
        assert {"received", "last"} == receiver.keys()
        assert soon(lambda: typed(up.tries[4])["received"] == 300, WITHIN_S)
        assert soon(lambda: typed(up.tries[0])["limit"] == "40/minute", WITHIN_S)

        first, whole = dict(up.pids), Whole(up)
        url = re.findall(r"http://127\.0\.0\.1:\d+", up.tries[0])[0]
        stop = Event()
        asked = [callers.submit(ask_until, stop, url, "api", ["exact"], 0.02) for _ in range(2)]
        try:
            whole.kill_each()
        finally:
            stop.set()
        lines = [line for one in asked for line in one.result()]

        # Who was in the first campaign may get 1 a day as new, 5 as active: one a minute has become active.
        whole.send_again(tmp_path / ".capline" / "up")
        assert soon(lambda: received(up) >= 100 and "capline_queue_campaigns 0.0" in metrics(whole.worker), WITHIN_S)
        assert received(up) < 120

        pids, ports = {**first, **up.pids}, up.ports
        assert up.stop() == 0
        assert all(soon(lambda pid=pid: not lives(pid), WITHIN_S) for pid in {*pids.values(), *first.values()})
        assert all(is_closed(port) for port in ports)
        assert len(ports) > 10
        assert not (tmp_path / ".capline").exists()
    head = Recorder()
    head.policy("api", [(20, MINUTE_US)])
    report = check(read([*head.lines, *lines]))
    assert report, report.text()
    assert report.refused > 0


def received(up: Up) -> int:
    return typed(up.tries[4])["received"]


@pytest.mark.deep
def test_with_no_server_installed_it_says_so_and_starts_the_rest(tmp_path: Path) -> None:
    with Up(tmp_path, str(tmp_path)) as up:
        assert up.ready()
        missing = {line.split(" is missing")[0] for line in up.said if " is missing" in line}
        # nginx is found in the system's own folder, too, where there is one.
        assert missing - {"nginx"} == {"redis-server and redis-cli", "an S3 server (ministack)", "prometheus"}
        api, override, promo, envoy, count = (typed(command) for command in up.tries)
        assert (api["remaining"], override["version"], promo["segment"]) == (15, 2, "active")
        assert (envoy["overallCode"], count["count"]) == ("OK", 500)
        pids = up.pids
        assert pids.keys() - {"nginx"} == {"publisher", "service-1", "service-2", "traffic"}
        assert up.stop() == 0
        assert not any(lives(pid) for pid in pids.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
def test_where_it_is_killed_itself_nothing_of_it_goes_on(tmp_path: Path) -> None:
    for _ in range(2):  # what the first leaves on disk does not keep the second from starting
        with Up(tmp_path, str(tmp_path)) as up:
            assert up.ready()
            assert len(up.tries) == 5
            pids = up.pids.values()
            up.process.kill()
            assert all(soon(lambda pid=pid: not lives(pid), WITHIN_S) for pid in pids)
    assert (tmp_path / ".capline" / "up" / ".capline-up").exists()
