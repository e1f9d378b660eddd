"""What can be done with a campaign, done in three ways: in one process, by workers on a server, over HTTP.

The clock stands still (`as_of:`), so nothing may differ but the run's id, where it is and how long it took.
"""

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.kit.campaign import HOUR_US, Receiver, Site, answer, capline, comparable, environment, receiver
from tests.kit.program import Program
from tests.kit.server import soon
from tests.kit.servers import Server, single
from tests.kit.serving import Serving
from tests.profiles import first

from capline.service.access.tokens import TokenFile
from capline.support.system import who

_RUN = re.compile(r"""(?<=[.]test-)[0-9a-f]{8}|(?<="run": ")[0-9a-f]{16}|(?<=summer-sale/)[0-9a-f]{16}""")
_CHANGED = re.compile(r"""(?<="changed": )"[^"]+"|(?<="send_at": )"[^"]+[.]\d+Z"|(?<=, )[^ ]+(?= by )""")
_SPEED = re.compile(r"<b>[^<]*</b><span>(a second|of work)</span>")
parquet: Any = import_module("pyarrow.parquet")
ONE = "/v1/campaigns/summer-sale"
LATER = "2030-01-01T00:00:00Z"
ASKED_S = 0.3
"""How often a command is asked whether something has come: each is a process."""
FORM = ("campaign", "policies", "policy", "store", "segments", "as_of", "send_at", "rate", "rate_key")


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    with single("redis") as running:
        yield running


@dataclass
class Way:
    """A campaign's own directory, and how it is named: this one runs it in one process."""

    site: Site
    target: str | Path = ""
    where: tuple[str, ...] = ()
    running: Program | None = None

    def __post_init__(self) -> None:
        self.target = self.target or self.site.file

    def plan(self, *words: str) -> Any:
        return answer("campaign", "plan", self.site.file, *words, *self.place("plan"))

    def place(self, verb: str) -> tuple[str, ...]:
        return () if verb == "plan" and "--queue" in self.where else self.where

    def begin(self) -> None:
        self.running = Program(
            self.site.path, "-m", "capline.cli", "campaign", "run", "campaign.yaml", env=environment()
        )
        # The segments are told before it is known to wait.
        self.running.says(re.compile("waits until|finished" if "send_at" in self.site.settings else "finished|segment"))
        if "send_at" in self.site.settings:  # it says so before its batches are in the store
            assert soon(lambda: self.ask("status")["state"] != "preparing", 60, ASKED_S)

    def work(self) -> None:
        assert self.running is not None
        self.running.process.wait(60)
        self.running.end()

    def start(self) -> None:
        """Begin it, and leave it to a process of its own."""
        words = ("-m", "capline.cli", "campaign", "run", "campaign.yaml")
        self.running = Program(self.site.path, *words, env=environment())

    finish = work

    def test_send(self, only: str) -> Any:
        """The report of a test send, which is over."""
        return answer("campaign", "run", self.site.file, "--only", only)

    def retry(self) -> None:
        done = capline("campaign", "run", self.site.file, "--retry-failed")
        assert done.returncode in (0, 1, 3), done.stderr

    def ask(self, verb: str, *words: str) -> Any:
        return answer("campaign", verb, self.target, *words, *self.where)

    def say(self, verb: str, *words: str) -> str:
        """What a command prints, or refuses with."""
        of = self.site.file if verb in ("plan", "enqueue") else self.target
        done = capline("campaign", verb, of, *words, *self.place(verb))
        return f"{done.returncode} {done.stdout}{done.stderr}"

    def every(self) -> Any:
        return answer("campaign", "list", *(self.where or (self.site.path,)))

    def of(self, name: str) -> "Way":
        """The same place, but another campaign, which is not there."""
        return Way(self.site, self.site.path / f"{name}.yaml")


class Workers(Way):
    """On a server."""

    queue: str = ""

    def begin(self) -> None:
        answer("campaign", "enqueue", self.site.file, *self.where)

    def start(self) -> None:
        self.begin()
        words = ("-m", "capline.cli", "worker", "--queue", self.queue or self.where[1], "--quiet")
        self.running = Program(self.site.path, *words, env=environment())

    def finish(self) -> None:
        assert self.running is not None
        assert soon(lambda: self.ask("status")["state"] == "finished", 60, ASKED_S)
        self.running.end()

    def test_send(self, only: str) -> Any:
        name = answer("campaign", "enqueue", self.site.file, "--only", only, *self.where)["campaign"]
        self.work()
        return answer("campaign", "status", name, *self.where)

    def work(self) -> None:
        assert capline("worker", *self.where, "--until-idle", "--quiet").returncode in (0, 1)

    def retry(self) -> None:
        answer("campaign", "enqueue", self.site.file, *self.where, "--retry-failed")
        self.work()

    def of(self, name: str) -> Way:
        return Workers(self.site, name, self.where)


@dataclass
class Served(Workers):
    """The same, behind a service."""

    queue: str = ""
    serving: Serving | None = None
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    def post(self, path: str, role: str, key: str = "", **more: Any) -> Any:
        assert self.serving is not None
        headers = {"Authorization": f"Bearer {self.tokens[role]}"} | ({"Idempotency-Key": key} if key else {})
        said = self.serving.client.post(path, headers=headers, **more)
        assert said.status_code == 200, said.text
        return said.json()

    def status(self, method: str, path: str, role: str = "", **more: Any) -> int:
        assert self.serving is not None
        token = {"Authorization": f"Bearer {self.tokens[role]}"} if role else {}
        said = self.serving.client.request(method, path, headers={**token, **more.pop("headers", {})}, **more)
        if said.status_code >= 400:
            assert "\n" not in said.json()["detail"]
        return said.status_code

    def pages(self) -> list[str]:
        """The outcomes in CSV and in Parquet, by pages."""
        assert self.serving is not None
        lines: list[str] = []
        rows: list[Any] = []
        for kind in ("text/csv", "application/vnd.apache.parquet"):
            path = f"{ONE}/outcomes?limit=150"
            while path:
                headers = {"Authorization": f"Bearer {self.tokens['read']}", "Accept": kind}
                said = self.serving.client.get(path, headers=headers)
                path = said.links.get("next", {}).get("url", "")
                if kind == "text/csv":
                    head, *others = said.text.splitlines(keepends=True)
                    lines += others if lines else [head, *others]
                else:
                    rows += parquet.read_table(BytesIO(said.content)).to_pylist()
        return ["".join(lines), repr(rows)]

    def form(self) -> dict[str, Any]:
        said = {key: value for key, value in self.site.settings.items() if key in FORM}
        sender = self.site.settings["sender"].strip("{}").partition(": ")
        return said | {"batch": 100, "audience": {"csv": "users.csv"}, "sender": {sender[0]: sender[2]}}

    def work(self) -> None:
        assert capline("worker", "--queue", self.queue, "--until-idle", "--quiet").returncode in (0, 1)


Ways = Callable[..., list[Way]]


@pytest.fixture
def ways(tmp_path: Path, server: Server) -> Generator[Ways]:
    """The three, each with a directory and a database of its own."""
    opened: list[Serving] = []
    begun: list[Way] = []

    def made(**settings: Any) -> list[Way]:
        server.command("FLUSHALL")
        sites: list[Site] = []
        for name in ("one", "workers", "http"):
            (tmp_path / name).mkdir()
            sites.append(Site(tmp_path / name))
            sites[-1].settings = {k: v for k, v in (sites[-1].settings | settings).items() if v is not None}
            sites[-1].settings |= {"retry": "{attempts: 4, wait: 1, longest: 60}"}
            sites[-1].write()
            sites[-1].seed()
        first, second = (f"{server.url.removesuffix('/0').rstrip('/')}/{database}" for database in (0, 1))
        folder = sites[2].path
        file = TokenFile(folder / "tokens.json", create=True)
        tokens = {role: file.create(role, [role]) for role in ("decide", "read", "compose", "steer", "admin")}
        (folder / "token").write_text(file.create(who(), ["read", "compose", "steer"]))
        serving = Serving(folder, "--queue", second, "--tokens", "tokens.json")
        opened.append(serving)
        where = ("--server", serving.url, "--token-file", str(folder / "token"))
        begun.extend(
            (
                Way(sites[0]),
                Workers(sites[1], "summer-sale", ("--queue", first)),
                Served(sites[2], "summer-sale", where, queue=second, serving=serving, tokens=tokens),
            )
        )
        return begun

    yield made
    for serving in opened:
        serving.__exit__()
    for way in begun:
        if way.running is not None:
            way.running.end(signal.SIGKILL)


def told(value: Any, way: Way) -> Any:
    """The answer without the run's id, places and times."""
    text = json.dumps(value, sort_keys=True, default=str)
    for place in (*way.where, str(way.site.path)):
        text = text.replace(place, "HERE")
    return json.loads(_CHANGED.sub('"AT"', _RUN.sub("RUN", text)))


def report(way: Way) -> Any:
    said = way.ask("status")
    return {
        "state": said["state"],
        "steering": said["steering"],
        **{key: said for key, said in comparable(said).items() if key != "queue"},
    }


def outcomes(way: Way) -> Any:
    files: list[str] = []
    for suffix in ("csv", "parquet"):
        file = way.site.path / f"outcomes.{suffix}"
        assert f" 0 {file}: 400 recipients" in f" {way.say('outcomes', '--to', str(file))}"
        files.append(file.read_text() if suffix == "csv" else repr(_rows(file)))
    if isinstance(way, Served):
        assert way.pages() == files
    return files


def page(way: Way) -> str:
    """The report as HTML, without its speed; over HTTP as the service gives it, too."""
    file = way.site.path / "report.html"
    assert way.say("report", "--html", str(file)).startswith(f"0 {file}: ")
    text = _SPEED.sub("", file.read_text())
    if isinstance(way, Served):
        headers = {"Authorization": f"Bearer {way.tokens['read']}", "Accept": "text/html,*/*;q=0.8"}
        assert way.serving is not None
        served = way.serving.client.get(ONE, headers=headers)
        assert served.headers["content-type"] == "text/html; charset=utf-8"
        assert served.headers["content-security-policy"].startswith("default-src 'none'")
        assert _SPEED.sub("", served.text) == text
    return text


def _rows(file: Path) -> Any:
    return parquet.read_table(file).to_pylist()


def line(way: Way, verb: str, *words: str) -> str:
    """What a command refuses with, from where the place has been named."""
    code, _, said = way.say(verb, *words).partition(" ")
    return f"{code} {said.rpartition(': ')[2] if verb == 'outcome' else said}"


LOOKS: dict[str, Callable[[Way], Any]] = {
    "list": Way.every,
    "status": report,
    "status in words": lambda way: way.say("status").partition(" s, ")[0].rpartition("\n")[0],
    "outcome of one who was sent to": lambda way: way.ask("outcome", "1"),
    "outcome of one who was refused": lambda way: way.ask("outcome", "0"),
    "outcome in words": lambda way: way.say("outcome", "3"),
    "outcomes": outcomes,
    "report": page,
    "nobody": lambda way: line(way, "outcome", "4000"),
    "no id": lambda way: line(way, "outcome", "u:1"),
    "pause": lambda way: way.say("pause"),
    "resume": lambda way: way.say("resume"),
    "cancel": lambda way: way.say("cancel", "--yes"),
    "a campaign that is not there": lambda way: way.of("other").say("pause")[0],
}


@pytest.mark.parametrize(
    "settings",
    first(
        1,
        [
            {"holdout": "30%", "exclude": "{csv: optouts.csv, segments: churned}"},
            {},
            {"transactional": "true", "exclude": "{csv: optouts.csv}"},
        ],
    ),
)
def test_a_campaign_that_was_sent_is_the_same_in_each_way(ways: Ways, settings: dict[str, str]) -> None:
    there = ways(**settings)
    for way in there:
        (way.site.path / "optouts.csv").write_text("id\n1\n150\n")
    plans = [told(comparable(way.plan()), way) for way in there]
    assert plans[0] == plans[1] == plans[2]
    for way in there:
        way.begin()
        way.work()
    for name, look in LOOKS.items():
        said = [told(look(way), way) for way in there]
        assert said[0] == said[1] == said[2], name


def test_a_test_send_is_marked_and_hinders_nothing_in_each_way(ways: Ways) -> None:
    with receiver() as receiving:
        there = ways(sender=f"{{webhook: {receiving.url}}}", until=LATER, as_of=None, send_at="2029-01-01T00:00:00Z")
        said: list[list[Any]] = []
        for way in there:
            _forget(receiving)
            each = [comparable(way.plan("--only", "201,0")), way.test_send("201,0")]
            assert (each[1]["test"], each[1]["total"]["sent"], receiving.delivered()) == (True, 2, [0, 201])
            assert all(re.match("summer-sale.test-[0-9a-f]{8}/", key) for key in receiving.taken)
            again = way.test_send("201,0")
            assert (again["run"], len(receiving.bodies)) == (each[1]["run"], 2), "the same command is the same test"
            for only in ("400", "x", "3,3", "3,", ",".join(map(str, range(101)))):
                said_of = way.say("plan", "--only", only)
                assert said_of.startswith("2 capline: "), said_of
                assert "only: " in said_of
            way.site.write(send_at=None)
            way.begin()
            way.work()
            assert len(receiving.bodies) == 2 + report(way)["total"]["sent"]
            assert [receiving.delivered().count(each) for each in (0, 1, 201)] == [2, 1, 2]
            assert not way.ask("status")["test"]
            totals = [{**whole["total"], "delays": None} for whole in (each[1], report(way))]
            said.append(told([each[0], each[1]["campaign"], *totals], way))
    assert said[0] == said[1] == said[2]


def test_what_failed_is_tried_again_in_each_way(ways: Ways) -> None:
    with receiver(lambda subject, tries: 410 if subject % 10 == 3 and tries == 1 else 200) as receiving:
        there = ways(sender=f"{{webhook: {receiving.url}}}")
        said: list[list[Any]] = []
        for way in there:
            _forget(receiving)
            way.begin()
            way.work()
            failed = told([report(way), way.ask("outcome", "13")], way)
            way.retry()
            said.append([failed, told([report(way), way.ask("outcome", "13"), outcomes(way)], way)])
    assert said[0][0][0]["total"]["failed"] == 36
    assert said[0][1][0]["total"]["failed"] == 0
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (["042", "42", "=a@x.org", "Zoë %"], "text"),
        pytest.param([2**64 - 1, 2**32, 7, 9], "number", marks=pytest.mark.deep),
    ],
)
def test_ids_of_text_and_of_64_bits_are_the_same_in_each_way(ways: Ways, ids: list[Any], kind: str) -> None:
    there = ways(audience=f"{{csv: users.csv, ids: {kind}}}", segments=None, channel="push", batch="3")
    said: list[Any] = []
    for way in there:
        way.site.audience(ids)
        way.begin()
        way.work()
        each = [way.ask("outcome", str(subject)) for subject in ids]
        assert [one["subject"] for one in each] == ids
        file = way.site.path / "all.parquet"
        assert way.say("outcomes", "--to", str(file)).startswith("0 ")
        rows = {(row["id"], row["outcome"], row["key"]) for row in _rows(file)}
        assert rows == {(one["subject"], one["outcome"], one["key"]) for one in each}
        said.append(told([report(way), each, line(way, "outcome", "8"), repr(parquet.read_schema(file).types)], way))
    assert said[0] == said[1] == said[2]
    run, workers, http = there
    assert isinstance(http, Served)
    assert http.serving is not None
    word = f"{'s' if kind == 'text' else 'i'}:{ids[0]}"
    source = ("--policies", run.site.path / "policies.yaml", "--store", run.site.store)
    ledger = f"sqlite://{run.site.path}/campaign.run/ledger.sqlite"
    erased = [{"campaign": "summer-sale", "audience": 0, "outcomes": 1, "in_work": 0}]
    for queue in (ledger, workers.where[1]):
        found = answer("erase", word, *source, "--queue", queue)
        assert found["campaigns"] == erased
        again = capline("erase", word, *source, "--queue", queue)
        assert again.stdout.endswith("no campaign had it\n")
    header = {"Authorization": f"Bearer {http.tokens['admin']}"}
    for expected in (erased, []):
        found = http.serving.client.delete(f"/v1/subjects/{quote(word, safe='')}", headers=header).json()
        assert found.get("campaigns", []) == expected
    for way in there:
        assert way.say("outcome", str(ids[0])).startswith("2 ")
        total = report(way)["total"]
        assert (total["audience"], total["undecided"]) == (len(ids) - 1, 0)


SEVERAL = """\
namespace: marketing
policies:
  global: {limits: [2/day, 9/week]}
  promo-tag: {limits: [2/day], channels: {push: [1/hour]}}
  summer: {limits: [1/30 days], by_segment: {new: [2/30 days]}}
"""
PLACES = {"global: 2/day": 60, "promo-tag: 2/day": 60, "promo-tag/push: 1/hour": 10, "summer: 1/30 days": 10}


def test_several_policies_must_all_allow_a_message_in_each_way(ways: Ways) -> None:
    """A refusal names the policy and the limit, and takes nothing; what fails for good is given back in all logs."""
    now_us = time.time_ns() // 1000
    with receiver(lambda subject, _tries: 410 if subject % 100 == 77 else 200) as receiving:
        sender = f"{{webhook: {receiving.url}}}"
        there = ways(policy="[global, promo-tag, summer]", channel="push", sender=sender, as_of=None)
        said: list[Any] = []
        for way in there:
            _forget(receiving)
            (way.site.path / "policies.yaml").write_text(SEVERAL)
            with way.site.limiter(now_us - 60_000_000) as limiter:
                for policy, lowest, times in (("global", 0, 2), ("promo-tag", 100, 2), ("summer", 150, 1)):
                    for _ in range(times):
                        limiter.decide_many(policy, list(range(lowest, lowest + 60)))
                limiter.decide_many("promo-tag", list(range(300, 310)), channel="push")
            plan = way.plan()["total"]
            assert (plan["sent"], plan["refused"], plan["refused_by"]) == (260, 140, PLACES)
            way.begin()
            way.work()
            total = report(way)["total"]
            assert (total["sent"], total["refused"], total["failed"]) == (256, 140, 4)
            assert total["refused_by"] == PLACES
            assert len(receiving.delivered()) == 256
            with way.site.limiter(now_us) as limiter:
                hits = {
                    subject: [
                        sum(hit.units for hit in limiter.explain(policy, subject).hits)
                        for policy in ("global", "promo-tag", "summer")
                    ]
                    for subject in (0, 100, 155, 177, 199, 205, 250, 277, 305)
                }
            assert hits == {
                0: [2, 0, 0],
                100: [0, 2, 0],
                155: [0, 2, 1],
                177: [0, 0, 1],
                199: [1, 1, 2],
                205: [0, 0, 1],
                250: [1, 1, 1],
                277: [0, 0, 0],
                305: [0, 1, 0],
            }
            looks = [way.ask("outcome", subject)["limit"] for subject in ("0", "100", "205", "305", "250")]
            assert looks == ["global: 2/day", "promo-tag: 2/day", "summer: 1/30 days", "promo-tag/push: 1/hour", None]
            assert "under policy global+promo-tag+summer" in way.say("status")
            said.append({**report(way)["total"], "delays": None})
        assert said[0] == said[1] == said[2]


def _forget(receiving: Receiver) -> None:
    for kept in (receiving.tries, receiving.taken, receiving.keys, receiving.bodies):
        kept.clear()


SET = (
    *("set --until 2030-01-02T00:00:00+01:00 --send-at 2029-12-31T00:00:00Z", "set --until never"),
    *("status", "set --rate 2000/s", "status", "set --rate fast", "set --rate 10/100ms"),
)
STEPS = (
    *("status", "pause", "status", "pause", "resume", "status", *SET, "set", "set --until soon"),
    *("set --until 2029-01-01T00:00:00Z", "set --until 2020-01-01T00:00:00Z", "set --send-at 2029-12-31"),
    *("cancel", "status", "resume", SET[1], SET[3], "list"),
)


def test_a_campaign_is_paused_while_it_works_in_each_way(ways: Ways) -> None:
    go_on, sent = threading.Event(), threading.Event()

    def hold(count: int) -> None:
        if count >= 150 and not go_on.is_set():
            sent.set()
            go_on.wait(60)

    with receiver(on_request=hold) as receiving:
        there = ways(sender=f"{{webhook: {receiving.url}}}", as_of=None)
        said: list[Any] = []
        for way in there:
            _forget(receiving)
            receiving.requests = 0
            go_on.clear()
            sent.clear()
            way.start()
            assert sent.wait(60)
            under_way = report(way)
            assert (under_way["state"], 0 < under_way["total"]["sent"] < 360) == ("running", True)
            each: list[Any] = [page(way).count("<section>"), way.say("pause"), line(way, "outcome", "4000")]
            go_on.set()
            assert soon(lambda way=way: way.ask("status")["total"]["pending"] == 0, 60, ASKED_S)
            kept = report(way)
            each += [kept["state"], kept["total"]["failed"], way.say("resume")]
            way.finish()
            whole = report(way)
            each += [whole["state"], {**whole["total"], "delays": None}, sorted(receiving.delivered())]
            said.append(told(each, way))
    assert (said[0][3], said[0][6]) == ("paused", "finished")
    assert said[0] == said[1] == said[2]


def test_a_campaign_is_steered_in_each_way(ways: Ways) -> None:
    there = ways(as_of=None, send_at=LATER, rate="100/s", rate_key="push", sender="{webhook: http://127.0.0.1:1/}")
    said: list[list[Any]] = []
    for way in there:
        way.begin()
        if isinstance(way, Served):
            way.work()  # its audience is read; it is not due
        each: list[Any] = []
        for step in STEPS:
            look = {"status": report, "list": Way.every}.get(step)
            words = [*step.split(), *(["--yes"] if step == "cancel" else [])]
            each.append(told(look(way) if look else way.say(*words), way))
            if step == "cancel" and way.running is not None:
                way.work()
        said.append(each)
    states = [said[0][number]["state"] for number, step in enumerate(STEPS) if step == "status"]
    assert states == ["scheduled", "paused", *["scheduled"] * 3, "cancelled"]
    steering = [told(each["steering"], there[0]) for each in said[0] if isinstance(each, dict) and "steering" in each]
    assert [each["version"] for each in steering] == [1, 2, 4, 6, 7, 8]
    last = {"changed": "AT", "by": who()}
    assert [each["speed"] for each in steering[3:]] == [
        {"rate": "100/second", "changed": None, "by": None},
        *[{"rate": "2000/second", **last}] * 2,
    ]
    assert {**steering[4], "speed": None} == {
        "send_at": "2029-12-31T00:00:00Z",
        "until": None,
        "version": 7,
        "speed": None,
        **last,
    }
    assert said[0] == said[1] == said[2]


def test_each_role_may_do_its_own(ways: Ways) -> None:
    *_, way = ways()
    assert isinstance(way, Served)
    asked = [
        *(("GET", path, "read") for path in ("/v1/campaigns", ONE, f"{ONE}/outcomes", f"{ONE}/outcomes/1")),
        *(("POST", path, "compose") for path in ("/v1/campaigns", "/v1/campaigns/plan")),
        *(("POST", f"{ONE}/{verb}", "steer") for verb in ("pause", "resume", "cancel", "retry-failed")),
        ("PATCH", ONE, "steer"),
    ]
    for method, path, role in asked:
        assert way.status(method, path) == 401
        for other in {"decide", "read", "compose", "steer"} - {role}:
            assert way.status(method, path, other) == 403
        if "summer-sale" in path:
            body = {"json": {"until": LATER}} if method == "PATCH" else {}
            assert way.status(method, path, role, **body) == 404


def test_what_the_service_refuses(ways: Ways) -> None:
    *_, way = ways()
    assert isinstance(way, Served)
    form, status, one = way.form(), way.status, ONE
    wide = {**form, "channel": "x" * (1 << 20)}
    secret = {"webhook": {"url": "https://example.org", "headers": {"Key": "${HOME}"}}}
    wrong: list[dict[str, Any]] = [
        {"audience": {"csv": "../one/users.csv"}},
        *({"sender": sender} for sender in ({"file": "../out"}, {"file": {"path": "/tmp/out"}}, secret)),  # noqa: S108
        {"policy": "other"},
        {"sent_at": LATER},
    ]
    for path in ("/v1/campaigns", "/v1/campaigns/plan"):
        assert status("POST", path, "compose", json=wide) == 413
        assert {status("POST", path, "compose", json={**form, **change}) for change in wrong} == {422}
    first, again = (way.post("/v1/campaigns", "compose", json=form, key="one") for _ in range(2))
    assert first == again
    assert (again["state"], again["put"], again["batches"]) == ("new", 0, None)
    assert status("POST", "/v1/campaigns", "compose", json=form) == 409
    assert status("POST", "/v1/campaigns", "compose", json=form, headers={"Idempotency-Key": "two"}) == 409
    for changed in ({**form, "batch": 50}, {**form, "campaign": "another"}):
        assert status("POST", "/v1/campaigns", "compose", json=changed, headers={"Idempotency-Key": "one"}) == 422
    assert status("POST", f"{one}/retry-failed", "steer") == 409, "it is not finished"
    assert status("GET", f"{one}/outcomes?after=x", "read") == 422
    assert status("GET", "/v1/campaigns?limit=0", "read") == 422
    assert status("GET", "/v1/campaigns?after=", "read") == 422
    for bad in (
        {},
        {"until": "x" * 100},
        {"until": "2020-01-01T00:00:00Z"},
        {"speed": 1},
        {"rate": "fast"},
        {"until": 1},
    ):
        assert status("PATCH", one, "steer", json=bad) == 422
    assert status("PATCH", one, "steer", content=b"{" * (2 << 20), headers={"Content-Type": "application/json"}) == 413
    assert status("POST", f"{one}/cancel", "steer") == 200
    assert status("PATCH", one, "steer", json={"until": LATER}) == 409
    for verb in ("pause", "resume", "cancel", "retry-failed"):
        assert status("POST", f"{one}/{verb}", "steer") == 409


BAD = {
    "polices: policies.yaml": "unknown field `polices`",
    "cost: many": "$.cost",
    "batch: 0": "from 1 to 100000",
    "policy: other": "no policy 'other'",
    "policy: [a": "not YAML",
    "policy: a\npolicy: b": "is given twice, first on line 1",
    "audience: {csv: ../users.csv}": "is not below the directory",
    'policies: "a\\0b"': "has a NUL character",
}


def test_a_file_for_a_service_is_refused_in_one_line(ways: Ways) -> None:
    *_, way = ways()
    for bad, problem in BAD.items():
        way.site.file.write_text(bad + "\n" + way.site.write(**{bad.partition(":")[0]: None}).read_text())
        for verb in ("plan", "enqueue"):
            said = way.say(verb)
            assert said.startswith("2 capline: "), said
            assert problem in said
            assert said.count("\n") == 1
    way.site.write()
    first, again = (way.say("enqueue", "--json") for _ in range(2))
    assert first == again
    for change in ({"batch": "50"}, {"campaign": "summer-sale", "cost": "2"}):
        way.site.write(**change)
        assert "was begun before; a new one needs another name" in way.say("enqueue")
    way.site.file.unlink()
    assert "no such file" in way.say("plan").lower()


def test_a_queue_that_is_away_is_503_until_it_is_back(tmp_path: Path) -> None:
    with single("redis") as own:
        Site(tmp_path)
        with Serving(tmp_path, "--queue", own.url) as serving:
            asked = ("/v1/campaigns", "/v1/campaigns/sale", "/v1/campaigns/sale/outcomes/1")
            assert [serving.client.get(path).status_code for path in asked] == [200, 404, 404]
            own.kill()
            away = [serving.client.get(path) for path in asked]
            assert [(said.status_code, said.headers["retry-after"]) for said in away] == [(503, "1")] * 3
            assert serving.ask("/v1/decide", policy="promo", subject=1).status_code == 200, "decisions go on"
            own.start()
            assert serving.client.get("/v1/campaigns").json() == {"campaigns": [], "next": None}


def test_a_page_of_outcomes_ends_anywhere(ways: Ways) -> None:
    *_, way = ways()
    assert isinstance(way, Served)
    assert way.serving is not None
    way.begin()
    way.work()
    whole: list[int] = []
    lines: list[str] = []
    after: str | None = "0-0"
    while after is not None:
        path = f"/v1/campaigns/summer-sale/outcomes?limit=150&after={after}"
        head = {"Authorization": f"Bearer {way.tokens['read']}"}
        page = way.serving.client.get(path, headers=head).json()
        shown = way.serving.client.get(path, headers={**head, "Accept": "text/csv"})
        lines += shown.text.splitlines()[1:]
        assert ("link" in shown.headers) == (page["next"] is not None)
        whole += [row["subject"] for row in page["outcomes"]]
        assert len(page["outcomes"]) in (150, 100)
        after = page["next"]
    assert whole == list(range(400))
    outcomes(way)
    assert lines == (way.site.path / "outcomes.csv").read_text().splitlines()[1:]


def test_what_is_held_is_sent_when_it_fits_in_each_way(ways: Ways) -> None:
    """Of 400, 100 fit some seconds later, and 100 half a day later: these stay refused when it is cancelled."""
    now_us = time.time_ns() // 1000
    there = ways(over_cap="hold", yields="true", as_of=None, segments=None)
    for way in there:
        policies = way.site.path / "policies.yaml"
        policies.write_text("namespace: marketing\npolicies: {promo: {limits: [1/24h]}}")
        for at_us, lowest in ((now_us - 24 * HOUR_US + 6_000_000, 0), (now_us - 12 * HOUR_US, 100)):
            with way.site.limiter(at_us) as limiter:
                limiter.decide_many("promo", list(range(lowest, lowest + 100)))
        assert way.plan()["total"]["held"] in (100, 200)
        way.start()
    for way in there:
        assert soon(lambda way=way: way.say("status")[0] == "0", 60, ASKED_S)
        assert soon(lambda way=way: way.ask("status")["total"]["sent"] == 300, 60, ASKED_S)
        total = way.ask("status")["total"]
        assert (total["held"], total["refused"], total["pending"]) == (100, 0, 0)
        with way.site.limiter() as limiter:
            stamps = [[hit.stamp_us for hit in limiter.explain("promo", subject).hits] for subject in range(101)]
        assert all(max(each) >= now_us + 6_000_000 for each in stamps[:100])
        assert max(stamps[100]) < now_us
        held = way.ask("outcome", "150")
        whole_us = -(-(now_us + 12 * HOUR_US) // 1_000_000) * 1_000_000
        assert (held["outcome"], held["limit"], held["until_us"], held["hit_us"]) == ("held", "1/day", whole_us, None)
        assert way.say("cancel", "--yes")[0] == "0"
        assert soon(lambda way=way: way.ask("status")["state"] == "cancelled", 60, ASKED_S)
        assert way.ask("outcome", "150")["outcome"] == "refused"
        total = way.ask("status")["total"]
        assert (total["sent"], total["held"], total["refused"]) == (300, 0, 100)
