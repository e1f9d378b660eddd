"""Which campaign that waits takes whose place: the worked example, by the command and over HTTP, on both stores."""

import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import POLICIES, Site, answer, capline
from tests.kit.servers import Server, single
from tests.kit.serving import Serving

from capline.service.access.tokens import TokenFile
from capline.support.instant import instant_text

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with single("redis") as running:
        yield running


@pytest.fixture(params=["sqlite", "redis"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/queue.sqlite"
    server: Server = request.getfixturevalue("server")
    server.command("FLUSHALL")
    return server.url


def waiting(site: Site, queue: str, name: str, ids: range, in_hours: int, **settings: str) -> None:
    """Enqueue a campaign that is due later."""
    site.audience(ids)
    now_us = time.time_ns() // HOUR_US // 1000 * HOUR_US
    send_at = instant_text(now_us + in_hours * HOUR_US)
    site.write(campaign=name, as_of=None, send_at=send_at, **settings)
    answer("campaign", "enqueue", site.file, "--queue", queue)


def three(site: Site, queue: str) -> None:
    """News at 9 for all, an offer and a sale at 10 for some; of these the offer goes first, and waits."""
    waiting(site, queue, "news", range(400), 9)
    waiting(site, queue, "sale", range(100, 300), 10)
    waiting(site, queue, "offer", range(150, 350), 10, priority="90", over_cap="hold")


def places(found: dict[str, Any]) -> list[tuple[object, ...]]:
    return [tuple(each.values()) for each in found["conflicts"]]


def counts(found: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    names = ("audience", "sent", "later", "refused", "losing")
    return {each["campaign"]: tuple(each[name] for name in names) for each in found["campaigns"]}


def test_the_worked_example_by_the_command_and_over_http(tmp_path: Path, queue: str) -> None:
    site = Site(tmp_path)
    three(site, queue)
    found = answer("campaign", "conflicts", "--queue", queue)
    assert [each["campaign"] for each in found["campaigns"]] == ["news", "offer", "sale"]
    assert counts(found) == {
        "news": (400, 400, 0, 0, 0),
        "offer": (200, 200, 200, 0, 200),
        "sale": (200, 0, 0, 200, 200),
    }
    assert places(found) == [
        ("offer", "news", "1/day", None, 50, 50),
        ("offer", "news", "1/day", "churned", 100, 100),
        ("offer", "news", "1/day", "new", 50, 50),
        ("sale", "news", "1/day", "churned", 100, 0),
        ("sale", "news", "1/day", "new", 100, 0),
    ]
    shown = capline("campaign", "conflicts", "--queue", queue).stdout
    assert "3 wait, in this order, on empty logs" in shown
    assert " ".join(shown.splitlines()[-1].split()) == "sale new news 1/day 100 0"

    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    (tmp_path / "token").write_text(tokens.create("ann", ["read"]))
    with Serving(tmp_path, "--queue", queue, "--tokens", "tokens.json") as serving:
        far = ("--server", serving.url, "--token-file", tmp_path / "token")
        assert answer("campaign", "conflicts", *far) == found
        assert serving.client.get("/v1/campaign-conflicts").status_code == 401
        named = {"Authorization": f"Bearer {(tmp_path / 'token').read_text()}"}
        assert serving.client.get("/v1/campaign-conflicts?history=maybe", headers=named).status_code == 422


def test_a_plan_says_what_it_loses_to_those_before_it_and_takes_from_those_after(tmp_path: Path, queue: str) -> None:
    site = Site(tmp_path)
    waiting(site, queue, "news", range(50, 150), 9)
    waiting(site, queue, "sale", range(100, 250), 11)
    site.audience(range(400))
    now_us = time.time_ns() // HOUR_US // 1000 * HOUR_US
    own = site.write(campaign="offer", as_of=None, send_at=instant_text(now_us + 10 * HOUR_US))
    found = answer("campaign", "plan", own, "--queue", queue)
    assert (found["state"], found["total"]["sent"], found["unread"]) == ("planned", 400, {})
    assert places(found) == [
        ("offer", "news", "1/day", "new", 50, 0),
        ("sale", "offer", "1/day", "churned", 50, 0),
        ("sale", "offer", "1/day", "new", 50, 0),
    ]
    assert "beside the campaigns that wait" in capline("campaign", "plan", own, "--queue", queue).stdout
    assert answer("campaign", "plan", own)["conflicts"] == []
    answer("campaign", "enqueue", own, "--queue", queue)
    again = answer("campaign", "plan", own, "--queue", queue)
    assert places(again) == places(found), "the one in the queue is not another"
    with Serving(tmp_path, "--queue", queue) as serving:
        assert answer("campaign", "plan", own.name, "--server", serving.url, cwd=tmp_path) == found


def test_a_plan_is_on_the_logs_as_they_are(tmp_path: Path, queue: str) -> None:
    site = Site(tmp_path)
    waiting(site, queue, "news", range(50, 150), 9)
    site.audience(range(100, 400))
    now_us = time.time_ns() // HOUR_US // 1000 * HOUR_US
    own = site.write(campaign="offer", as_of=None, send_at=instant_text(now_us + 10 * HOUR_US))
    with site.limiter(time.time_ns() // 1000) as limiter:
        limiter.decide_many("promo", list(range(110)))
    assert places(answer("campaign", "plan", own, "--queue", queue)) == [("offer", "news", "1/day", "new", 40, 0)]


def test_several_policies_take_and_lose_a_place_in_each_of_their_logs(tmp_path: Path, queue: str) -> None:
    site = Site(tmp_path)
    (tmp_path / "policies.yaml").write_text(POLICIES + "  brand: {limits: [1/2 days]}\n")
    waiting(site, queue, "news", range(100, 200), 9)
    waiting(site, queue, "launch", range(200, 300), 9, policy="brand")
    waiting(site, queue, "offer", range(100, 350), 10, policy="[brand, promo]")
    offer = site.file.read_text()
    waiting(site, queue, "sale", range(250, 400), 11)
    waiting(site, queue, "thanks", range(300, 400), 12, policy="brand")
    expected = [
        ("offer", "news", "promo: 1/day", "new", 100, 0),
        ("offer", "launch", "brand: 1/2 days", "churned", 100, 0),
        ("sale", "offer", "1/day", None, 50, 0),
        ("thanks", "offer", "1/2 days", None, 50, 0),
    ]
    for more in ((), ("--history",)):
        found = answer("campaign", "conflicts", "--queue", queue, *more)
        assert found["unread"] == {}
        assert counts(found)["offer"] == (250, 50, 0, 200, 200)
        assert sorted(places(found), key=str) == sorted(expected, key=str)
    site.audience(range(100, 350))
    site.file.write_text(offer)
    planned = answer("campaign", "plan", site.file, "--queue", queue)
    assert sorted(places(planned), key=str) == sorted(expected, key=str)
    with site.limiter(time.time_ns() // 1000) as limiter:
        limiter.decide_many("brand", list(range(300, 320)))
    found = answer("campaign", "conflicts", "--queue", queue, "--history")
    assert counts(found)["offer"] == (250, 30, 0, 220, 200)
    assert ("thanks", "offer", "1/2 days", None, 30, 0) in places(found)


def test_what_is_held_already_waits_too_and_takes_places(tmp_path: Path, queue: str) -> None:
    site = Site(tmp_path)
    waiting(site, queue, "news", range(100, 200), 0)
    assert capline("worker", "--queue", queue, "--until-idle", "--quiet").returncode == 0
    waiting(site, queue, "offer", range(90, 200), 0, over_cap="hold", sender="{file: offer}")
    assert capline("worker", "--queue", queue, "--until-idle", "--quiet").returncode == 0
    waiting(site, queue, "sale", range(200), 30)
    found = answer("campaign", "conflicts", "--queue", queue, "--history")
    assert counts(found) == {"offer": (100, 100, 100, 0, 0), "sale": (200, 100, 0, 100, 100)}
    assert places(found) == [("sale", "offer", "1/day", "new", 100, 0)]
    assert counts(answer("campaign", "conflicts", "--queue", queue)) == counts(found)


def test_the_logs_as_they_are_now(tmp_path: Path, queue: str) -> None:
    site = Site(tmp_path)
    three(site, queue)
    with site.limiter(time.time_ns() // 1000) as limiter:
        limiter.decide_many("promo", list(range(300, 350)))
        limiter.decide_many("promo", list(range(1000, 1010)))
    found = answer("campaign", "conflicts", "--queue", queue, "--history")
    assert found["history"]
    assert counts(found)["news"] == (400, 350, 0, 50, 0)
    assert counts(found)["offer"] == (200, 200, 200, 0, 150)
    assert ("offer", "news", "1/day", None) not in [place[:4] for place in places(found)]
    assert "on the logs as they are now" in capline("campaign", "conflicts", "--queue", queue, "--history").stdout


def test_one_that_cannot_be_read_is_named_and_the_others_are_told(tmp_path: Path, queue: str) -> None:
    (tmp_path / "out.csv").write_text("id\n399\n")
    site = Site(tmp_path)
    waiting(site, queue, "news", range(400), 9, exclude="{csv: out.csv}")
    waiting(site, queue, "sale", range(400), 10)
    waiting(site, queue, "paused", range(400), 10)
    waiting(site, queue, "held-out", range(200), 40, holdout="50%")
    assert capline("campaign", "pause", "paused", "--queue", queue).returncode == 0
    found = answer("campaign", "conflicts", "--queue", queue)
    assert counts(found)["sale"] == (400, 101, 0, 299, 299)
    assert found["campaigns"][2]["held_out"] + found["campaigns"][2]["sent"] == 200
    (tmp_path / "out.csv").unlink()
    done = capline("campaign", "conflicts", "--queue", queue)
    assert done.returncode == 1
    assert f"news is not among them: {tmp_path}/out.csv: no such file" in done.stdout
    assert "2 wait" in done.stdout
    assert "none of them takes the place of another" in done.stdout


def test_nothing_waits(tmp_path: Path) -> None:
    assert capline("campaign", "conflicts").returncode == 2
    queue = f"sqlite://{tmp_path}/queue.sqlite"
    assert "no such file" in capline("campaign", "conflicts", "--queue", queue).stderr
    site = Site(tmp_path)
    answer("campaign", "enqueue", site.file, "--queue", queue)
    done = capline("campaign", "conflicts", "--queue", queue)
    assert (done.returncode, done.stdout) == (0, "no campaign waits here: nothing to compare\n")
