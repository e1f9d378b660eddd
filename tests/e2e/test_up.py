"""`capline up` as somebody types it: it starts whole, its link signs in, and any process of it may be killed."""

import json
import re
import shutil
import socket
import sqlite3
from pathlib import Path

import httpx
import pytest
from proof.up import Up, main, messages, over, payments
from tests.kit.forked import run
from tests.kit.program import lives
from tests.kit.server import soon

ROOT = Path(__file__).parents[2]
WITHIN_S = 60
PATHS = "/usr/bin:/usr/sbin:/usr/local/bin"
NEEDED = ("redis-server", "redis-cli", "nginx", "prometheus", "curl")
whole = pytest.mark.skipif(not all(shutil.which(name, path=PATHS) for name in NEEDED), reason="a server is missing")


def is_closed(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) != 0


def signed_in(link: str) -> str:
    """Follow a link as a browser does; the title of the page that it ends at."""
    with httpx.Client(timeout=WITHIN_S, trust_env=False, follow_redirects=True) as browser:
        return re.findall("<title>(.*?)</title>", browser.get(link, headers={"Accept": "text/html"}).text)[0]


@pytest.mark.deep
@whole
def test_it_starts_whole_its_link_signs_in_once_and_what_is_killed_comes_back(tmp_path: Path) -> None:
    with Up(ROOT, tmp_path / "up", path=f"{PATHS}:/bin") as up:
        assert up.ready(), up.said
        assert not up.has("is missing"), up.said
        # On a machine that is busy a part may come back from its first start by now.
        assert soon(lambda: all(part.memory_bytes for part in up.parts().values()), WITHIN_S), up.parts()
        parts = up.parts()
        for link in re.findall(r"http://127\.0\.0\.1:\d+/[^\s,]+", "\n".join(part.where for part in parts.values())):
            assert httpx.get(link, timeout=WITHIN_S, trust_env=False).status_code in (200, 303), link
        with up.client(up.url("prometheus")) as client:
            targets = "/api/v1/targets"
            assert soon(lambda: client.get(targets).text.count('"health":"up"') == 4, WITHIN_S), client.get(
                targets
            ).text
        console = up.facts["console"]
        assert [signed_in(console), signed_in(console)] == ["Overview · capline", "Sign in · capline"]
        for name in ("worker-1", "service-1"):
            up.kill(name)
        assert soon(lambda: up.parts()["service-1"].pid is not None)
        with up.client(up.url("nginx")) as client:
            assert soon(lambda: client.get("/v1/campaigns").json()["campaigns"], WITHIN_S)
        pids = {part.pid for parts in (parts, up.parts()) for part in parts.values() if part.pid}
        assert up.stop() == 0
        assert not any(lives(pid) for pid in pids)
        assert all(is_closed(port) for part in parts.values() for port in re.findall(r"127\.0\.0\.1:(\d+)", part.where))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
@whole
def test_with_parts_killed_nobody_is_over_a_cap_and_nothing_is_lost() -> None:
    names = ["cluster-1", "worker-1", "receiver", "payments-1", "minipay", "service-1", "campaigns", "s3"]
    assert main(["--seconds", "64", "--every", "8", "--only", *names]) == 0


@pytest.mark.deep
def test_with_no_server_installed_it_says_so_and_starts_the_rest(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with Up(here, tmp_path / "up", path=str(here)) as up:
        assert up.ready(), up.said
        missing = {line.split(" is missing")[0] for line in up.said if " is missing" in line}
        # nginx is found in the system's own folder, too, where there is one.
        kinds = {"redis-server and redis-cli", "an S3 server (ministack)", "prometheus", "examples/ of the repository"}
        assert missing - {"nginx"} == kinds
        parts = up.parts()
        names = {"receiver", "publisher", "service-1", "service-2", "worker-1", "worker-2", "traffic"}
        assert parts.keys() - {"nginx"} == names
        with up.client(up.url("service-1")) as client:
            asked = client.post("/v1/decide", json={"policy": "promo", "subject": 250}).json()
            assert asked["segment"] == "active"
        shown = run("up", "--status", "--dir", str(tmp_path / "up"))
        assert "service-1" in shown.stdout
        assert httpx.get(up.url("receiver"), timeout=WITHIN_S, trust_env=False).json().keys() == {"received", "last"}
        assert soon(lambda: httpx.get(up.url("receiver"), trust_env=False).json()["received"] > 0, WITHIN_S)
        assert up.stop() == 0
        assert not any(part.pid and lives(part.pid) for part in parts.values())
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


@pytest.mark.deep
def test_where_it_is_killed_itself_nothing_of_it_goes_on(tmp_path: Path) -> None:
    for _ in range(2):  # what the first leaves on disk does not keep the second from starting
        with Up(tmp_path, tmp_path / "up", path=str(tmp_path)) as up:
            assert up.ready(), up.said
            pids = [part.pid for part in up.parts().values()]
            up.process.kill()
            assert all(soon(lambda pid=pid: not lives(pid), WITHIN_S) for pid in pids if pid)
    assert (tmp_path / "up" / ".capline-up").exists()


def test_more_than_the_quota_within_a_window_is_found() -> None:
    spans = [(0.0, 0.1), (0.5, 0.6), (1.05, 1.06)]
    assert [over(spans, 2, window) for window in (1.06, 1.07)] == [0, 1]
    assert over(spans[:2], 2, 60) == 0


def test_a_message_over_a_cap_and_one_that_was_lost_are_found(tmp_path: Path) -> None:
    log, report = tmp_path / "receiver.log", {"total": {"sent": 3, "not_known": 0, "failed": 0}}
    rows = [{"campaign": "hello", "key": key, "id": 1, "segment": "new"} for key in ("a", "a", "b")]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert messages(log, {"hello": report}, 600) == (2, ["user 1: 2 as new", "hello: 3 sent, 2 arrived"])
    assert messages(log, {"hello": {"total": report["total"] | {"sent": 2}}}, 601) == (2, [])


def test_a_call_over_a_limit_and_an_order_that_nobody_charged_are_found(tmp_path: Path) -> None:
    rows = [f"{number * 300_000_000} 200 order-{number} 999\n" for number in range(7)]
    (tmp_path / "minipay.calls").write_text("".join(rows), encoding="ascii")
    (tmp_path / "acme-pay.calls").write_text("0 429 order-8 999\n", encoding="ascii")
    with sqlite3.connect(tmp_path / "orders.sqlite") as table:
        table.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
        table.executemany(
            "INSERT INTO orders VALUES (?, ?)", [(1, "charged"), (8, "charged"), (9, "failed"), (10, "new")]
        )
    calls, wrong = payments(tmp_path)
    assert (calls, [line.split(":")[0].split(",")[0] for line in wrong]) == (
        8,
        ["acme-pay", "minipay", "order-8 is charged", "order-9 is failed"],
    )
