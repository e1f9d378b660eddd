"""`capline response`: what came back, with intervals that hold, and whoever opted out is not sent to."""

import gzip
import json
import random
import re
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.kit.campaign import AT_US, HOUR_US, Far, Site, ledger_of, with_sender
from tests.kit.cli import CommandLine
from tests.profiles import size, sized

from capline.campaign import Stop, run
from capline.campaign.response.intervals import Share, difference_of, share_of
from capline.campaign.response.measure import Response, measure
from capline.campaign.response.messages import gathered, messages_of_files
from capline.campaign.response.opt_outs import add_opt_outs
from capline.campaign.response.page import render
from capline.campaign.response.replies import EventColumns, Replies
from capline.model.errors import SegmentError

DAY_US = 24 * HOUR_US
WEEK_US = 7 * DAY_US
pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")
EFFECT = 0.08


class Row(NamedTuple):
    id: int | str
    campaign: str
    outcome: str
    at_us: int = AT_US
    segment: str | None = None
    limit: str | None = None
    until_us: int | None = None

    @property
    def key(self) -> str:
        return f"{self.campaign}/r1/{self.id}"


def write_outcomes(path: Path, rows: Iterable[Row]) -> None:
    rows = list(rows)
    instant: Any = pa.timestamp("us", "UTC")
    hits = [row.at_us if row.outcome in ("sent", "not known") else None for row in rows]
    columns: dict[str, Any] = {
        "id": [row.id for row in rows],
        "segment": pa.array([row.segment for row in rows], pa.string()),
        "outcome": [row.outcome for row in rows],
        "limit": pa.array([row.limit for row in rows], pa.string()),
        "until": pa.array([row.until_us for row in rows], instant),
        "given_back": [False for _ in rows],
        "decided": pa.array([row.at_us for row in rows], instant),
        "hit_us": pa.array(hits, pa.int64()),
        "key": [row.key for row in rows],
    }
    pq.write_table(pa.table(columns), path)


def write_events(path: Path, events: Iterable[tuple[int | str, int, str]]) -> None:
    ids, at_us, names = zip(*events, strict=True)
    times: Any = pa.array(at_us, pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"id": list(ids), "time": times, "event": list(names)}), path)


def response(
    folder: Path,
    rows: Iterable[Row],
    events: Iterable[tuple[int | str, int, str]],
    within_us: int = DAY_US,
    window_us: int = WEEK_US,
) -> Response:
    write_outcomes(folder / "o.parquet", rows)
    write_events(folder / "e.parquet", events)
    messages = gathered(messages_of_files([folder / "o.parquet"]))
    replies = Replies(messages, within_us)
    replies.read(folder / "e.parquet", EventColumns(), lambda _: None)
    return measure(messages, replies, window_us)


def test_the_intervals_are_those_of_the_books() -> None:
    """Wilson's of 10 in 100; Newcombe's own example of 56 in 70 and 48 in 80 (Statistics in Medicine 17, 1998)."""
    people = np.arange(100)
    assert share_of(people, people < 10)[2:] == pytest.approx((0.05523, 0.17437), abs=1e-5)
    one, other = (share_of(np.arange(of), np.arange(of) < some) for of, some in ((70, 56), (80, 48)))
    assert difference_of(one, other) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_messages_of_one_recipient_are_not_taken_for_independent() -> None:
    people, responded = np.repeat(np.arange(100), 4), np.repeat(np.arange(100) < 10, 4)
    assert share_of(people, responded)[2:] == pytest.approx(share_of(np.arange(100), np.arange(100) < 10)[2:], abs=2e-3)
    assert share_of(people, np.zeros(400, np.bool_)) == (400, 0, 0.0, share_of(people[::4], np.zeros(100, np.bool_))[3])


def groups_by_hand(
    rows: list[Row], events: Sequence[tuple[int | str, int, str]], within: int, window: int
) -> dict[Any, Any]:
    """The same counts, by looking at every message for every event."""
    could = ("sent", "not known", "failed", "held out")
    followed: set[tuple[Row, str]] = set()
    own: set[tuple[Row, str]] = set()
    for who, at_us, name in events:
        before = [row for row in rows if row.id == who and row.at_us <= at_us < row.at_us + within]
        followed |= {(row, name) for row in before if row.outcome in could}
        sent = [row for row in before if row.outcome == "sent"]
        own |= {(max(sent, key=lambda row: row.at_us), name)} if sent else set()

    def number_of(row: Row) -> int:
        return 1 + sum(
            other.id == row.id and other.outcome == "sent" and row.at_us - window < other.at_us < row.at_us
            for other in rows
        )

    found: dict[Any, Any] = {}
    for name in {name for _, _, name in events}:
        slices: dict[Any, list[Row]] = {}
        for row in rows:
            slices.setdefault((row.campaign, None, None), []).append(row)
            slices.setdefault((row.campaign, row.segment, None), []).append(row)
            slices.setdefault((None, None, min(10, number_of(row))), []).append(row)
        for key, some in slices.items():
            sent, held = ([row for row in some if row.outcome == word] for word in ("sent", "held out"))
            held = [row for row in held if row.limit is None]
            meant = [row for row in some if row.outcome in ("sent", "not known", "failed")]
            if sent or held:
                counts = [len(sent), sum((row, name) in own for row in sent)]
                for part in (meant, held) if held and meant else ():
                    counts += [len(part), sum((row, name) in followed for row in part)]
                found[name, *key] = counts
    return found


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_are_counted_as_by_hand(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    words = ("sent", "sent", "sent", "not known", "failed", "held out", "refused", "excluded")
    rows = [
        Row(
            who,
            f"c{number}",
            word := dice.choice(words),
            AT_US + number * dice.choice((11, 11, 30)) * HOUR_US,
            dice.choice(("vip", "new")),
            "1/day" if word == "refused" or (word == "held out" and dice.random() < 0.2) else None,
        )
        for number in range(14)
        for who in range(25)
        if dice.random() < 0.8
    ]
    names = ("bought", "unsubscribed")
    events = [
        (dice.randrange(28), AT_US + dice.randrange(-50, 500) * HOUR_US + dice.choice((0, 1)), dice.choice(names))
        for _ in range(200)
    ]
    found = response(tmp_path, rows, events, 20 * HOUR_US, 70 * HOUR_US)
    counted = {
        (group.kind, group.campaign, group.segment, group.number): [
            *group.sent[:2],
            *(group.against.sent_to[:2] + group.against.held_out[:2] if group.against else ()),
        ]
        for group in found.groups
    }
    assert counted == groups_by_hand(rows, events, 20 * HOUR_US, 70 * HOUR_US)
    reached = {row.id for row in rows if row.outcome in ("sent", "not known", "held out")}
    assert found.never_sent == sum(who not in reached for who, _, _ in events)
    taken: dict[str, Counter[str]] = {}
    for row in rows:
        if row.outcome == "refused":
            others = (each for each in rows if each.id == row.id and each.outcome in ("sent", "not known"))
            window = [each.campaign for each in others if row.at_us - DAY_US < each.at_us <= row.at_us]
            taken.setdefault(row.campaign, Counter()).update(window)
    assert {each.campaign: Counter(each.taken_by) for each in found.regret} == taken


def planted(folder: Path, seed: int) -> Response:
    """Two campaigns of 1,200 people, a quarter held out: it changes what they buy, not what they read."""
    dice = np.random.default_rng(seed)
    rows: list[Row] = []
    events: list[tuple[int | str, int, str]] = []
    for number in range(2):
        at_us = AT_US + number * 2 * DAY_US
        held = dice.random(1200) < 0.25
        rows += [Row(who, f"c{number}", "held out" if held[who] else "sent", at_us) for who in range(1200)]
        for name, effect in (("bought", EFFECT), ("read", 0.0)):
            did = np.flatnonzero(dice.random(1200) < 0.05 + effect * ~held).tolist()
            events += [(who, at_us + HOUR_US, name) for who in did]
    return response(folder, rows, events)


SEEDS = size(40, 100)


@sized
def test_a_planted_effect_is_covered_and_none_is_claimed_where_there_is_none(tmp_path: Path) -> None:
    """The interval of 95 % covers it for nine seeds of ten, and leaves out 0 for one of ten at most without one."""
    covered, apart, found = Counter[str](), Counter[str](), 0
    for seed in range(SEEDS):
        for group in planted(tmp_path, seed).groups:
            assert group.against is not None
            _, low, high = group.against.difference
            name = group.campaign or f"{group.number}"
            if group.kind == "read":
                apart[name] += group.against.difference.is_apart
            else:
                covered[name] += low is not None and high is not None and low <= EFFECT <= high
                found += group.against.difference.is_apart
    assert set(covered) == set(apart) == {"c0", "c1", "1", "2"}
    assert all(count >= 0.9 * SEEDS for count in covered.values()), covered
    assert found >= 3.9 * SEEDS, "it is found, too"
    assert all(count <= 0.1 * SEEDS for count in apart.values()), apart


@sized
def test_the_fourth_of_a_week_has_its_own_rate(tmp_path: Path) -> None:
    rates = (0.30, 0.20, 0.12, 0.05)
    inside = Counter[int]()
    for seed in range(SEEDS):
        dice = np.random.default_rng(seed)
        rows = [Row(who, f"c{k}", "sent", AT_US + k * DAY_US) for k in range(4) for who in range(400)]
        opened = [(row.id, row.at_us + 1, "opened") for row in rows if dice.random() < rates[int(row.campaign[1])]]
        for group in response(tmp_path, rows, opened).groups:
            if group.number is not None:
                low, high = group.sent.low, group.sent.high
                inside[group.number] += low is not None and high is not None and low <= rates[group.number - 1] <= high
    assert sorted(inside) == [1, 2, 3, 4]
    assert all(count >= 0.9 * SEEDS for count in inside.values()), inside


def test_a_holdout_of_three_claims_no_interval(tmp_path: Path) -> None:
    rows = [Row(who, "c", "held out" if who < 3 else "sent") for who in range(500)]
    found = response(tmp_path, rows, [(who, AT_US, "bought") for who in range(50, 500)])
    against = found.groups[0].against
    assert against is not None
    assert (against.held_out, against.difference[1:]) == (Share(3, 0, None, None), (None, None))
    assert not against.difference.is_apart
    assert found.compared == []
    page = render(found, "7 days", "week")
    assert "a holdout of 3 claims no interval" in page
    assert "that takes 30 recipients on both sides" in page


def test_events_by_key_know_their_message_and_nothing_of_the_held_out(capline: CommandLine, tmp_path: Path) -> None:
    rows = [Row("a", "c", "sent"), Row("a", "d", "sent", AT_US + 5), Row("b", "c", "held out"), Row("x", "c", "failed")]
    write_outcomes(tmp_path / "o.parquet", rows)
    keys = ("c/r1/a", "c/r1/a", "c/r1/b", "c/r1/x", "c/r1/zoë", "", "elsewhere")
    (tmp_path / "e.jsonl").write_text("".join(json.dumps({"key": key, "event": "opened"}) + "\n" for key in keys))
    found = capline.json("response", "o.parquet", "--events", "e.jsonl")
    assert (found["events"], found["never_sent"]) == (7, 5)
    assert [(each["campaign"], each["of"], each["responded"]) for each in found["campaigns"]] == [
        ("c", 1, 1),
        ("d", 1, 0),
    ]
    assert all("against_holdout" not in each for each in found["campaigns"])
    assert found["intervals"] == "95 %: Wilson for a share, Newcombe for a difference"
    assert "Who gets a 4th message is not who gets a 1st" in found["cannot_tell"]


def test_a_run_its_files_and_all_forms_of_events_say_the_same(capline: CommandLine, tmp_path: Path) -> None:
    site = Site(tmp_path, {"holdout": "30%"})
    site.seed()
    job = with_sender(site.job(), Far())
    stop = Stop()
    with job.open_limiter() as limiter, ledger_of(job, tmp_path / "run") as ledger:
        run(job, limiter, ledger, stop, pause=lambda _s: None, jitter=lambda: 0.0)
    stop.close()
    for suffix in ("parquet", "csv"):
        assert capline("campaign", "outcomes", "run", "--to", f"o.{suffix}").returncode == 0
    events: list[tuple[int | str, int, str]] = [(who, AT_US + who, "bought") for who in range(0, 400, 3)]
    write_events(tmp_path / "e.parquet", events)
    lines = [{"id": who, "time": at_us / 1e6, "event": name} for who, at_us, name in events]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = "id,time,event\n" + "".join(f"{line['id']},{line['time']:.6f},bought\n" for line in lines)
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(text.encode()))
    answers = [
        capline.json("response", campaign, "--events", name, "--report", "r.html")
        for campaign in ("run", "o.parquet", "o.csv")
        for name in ("e.parquet", "e.jsonl", "e.csv.gz")
    ]
    assert all(answer == answers[0] for answer in answers)
    whole = answers[0]["campaigns"][0]
    assert whole["of"] > 100
    assert whole["against_holdout"]["low"] < 0 < whole["against_holdout"]["high"]
    assert {each["segment"] for each in answers[0]["campaigns"][1:]} == {"", "active", "churned", "new"}
    page = (tmp_path / "r.html").read_text()
    assert len(page) < 1_000_000
    assert not re.search(r"<script|https?://|@import|url\(", page)


def test_who_took_the_place_that_another_lost(tmp_path: Path) -> None:
    """A calendar's day begins at its midnight: `until` less a day."""
    noon, midnight = AT_US - AT_US % DAY_US + DAY_US // 2, AT_US - AT_US % DAY_US
    rows = [
        Row(1, "late", "sent", midnight - 1),
        Row(1, "early", "sent", midnight),
        Row(1, "lost", "refused", noon, limit="1/calendar-day", until_us=midnight + DAY_US),
        Row(2, "early", "sent", noon - 5),
        Row(2, "late", "sent", noon - 4),
        Row(2, "lost", "refused", noon, limit="2/day", until_us=noon + DAY_US - 5),
        Row(3, "lost", "refused", noon, limit="2/day", until_us=noon + 1),
        Row(4, "early", "sent", noon - 5),
        Row(4, "lost", "refused", noon, limit="not between 22:00 and 08:00", until_us=noon + 9),
    ]
    (regret,) = response(tmp_path, rows, [(1, noon, "bought")]).regret
    assert regret == ("lost", 3, {"early": 2, "late": 1}, {"early": 2, "late": 1}, 1)


def test_a_message_that_waits_is_neither_sent_nor_refused_yet(tmp_path: Path) -> None:
    rows = [
        Row(1, "sale", "sent"),
        Row(2, "sale", "held", limit="1/day", until_us=AT_US + DAY_US),
        Row(3, "sale", "held out"),
    ]
    found = response(tmp_path, rows, [(who, AT_US + 1, "bought") for who in (1, 2, 3)])
    (group,) = (each for each in found.groups if each.campaign == "sale")
    assert group.against is not None
    assert [share[:2] for share in (group.sent, *group.against[:2])] == [(1, 1)] * 3
    assert (found.never_sent, found.regret) == (1, [])


def test_a_number_that_only_the_held_out_have_has_no_share(tmp_path: Path) -> None:
    rows = [
        Row(who, f"c{day}", "held out" if day == 2 else "sent", AT_US + day * DAY_US)
        for day in range(3)
        for who in range(40)
    ]
    found = response(tmp_path, rows, [(who, AT_US + who % 2 * DAY_US, "bought") for who in range(40)])
    assert [(group.number, group.sent.of, group.against) for group in found.groups[-3:]] == [
        (1, 40, None),
        (2, 40, None),
        (3, 0, None),
    ]
    page = render(found, "7 days", "week")
    assert "bought: 50.0% of the 1st in a week, 50.0% of the 2nd" in page
    assert "<td>3rd</td><td>0</td><td>0</td><td>-</td>" in page


@pytest.mark.parametrize("found", ["bought", "<script>alert(1)</script>&"])
def test_the_page_says_what_is_found_whatever_names_are(tmp_path: Path, found: str) -> None:
    rows = [
        Row(who, f"c{k}{found}", "held out" if (who + k) % 5 == 0 else "sent", AT_US + k * HOUR_US, found[:9])
        for k in range(3)
        for who in range(1000)
    ]
    rows += [Row(who, "lost", "refused", AT_US + DAY_US // 2, limit="2/day") for who in range(1000)]
    events: list[tuple[int | str, int, str]] = [(row.id, row.at_us + 9, found) for row in rows if row.outcome == "sent"]
    page = render(response(tmp_path, rows, events, HOUR_US), "1h", "week")
    assert "<script" not in page
    text = re.sub(r"<[^>]+>", " ", page.partition("</style>")[2])
    for said in (
        "Beside the holdout",
        "+100.00 points",
        "of the 1st in a week",
        "places that lost lost",
        "1,000 refusals",
    ):
        assert said in text, said
    assert page.count("<section>") == 5


GOOD = '{"id": 1, "time": 5, "event": "a"}\n'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "e.jsonl",
            GOOD + '{"id": "x", "time": 5, "event": "a"}\n',
            "row 2: id 'x' is of another type than those before",
        ),
        ("e.jsonl", GOOD + '{"id": 1, "time": "soon", "event": "a"}\n', "row 2: time 'soon' is of another type"),
        ("e.jsonl", GOOD + '{"id": 1, "ti', "row 2: not a JSON object"),
        ("e.jsonl", GOOD + "[1]\n", "row 2: not a JSON object"),
        ("e.jsonl", '{"id": 1.5, "time": 5, "event": "a"}\n', "column 'id' holds double; store text or whole numbers"),
        ("e.jsonl", '{"id": 1, "time": 5}\n', "no column 'event'; its columns are: id, time"),
        ("e.jsonl", GOOD + '{"id": 1, "event": "a"}\n', "row 2: time is null"),
        ("e.jsonl", "", "e.jsonl: no events"),
        ("e.jsonl.gz", gzip.compress(GOOD.encode() * 99, mtime=0)[:-9], "cut short"),
        ("e.csv", "id,time,event\n1,5,a\n1,5", "row 2: 2 values where the header has 3"),
        ("e.csv", "id,time,event\n1,soon,a\n", "row 1: time 'soon' is neither ISO 8601"),
        ("e.csv", "id,time,event\n" + "".join(f"1,5,k{n}\n" for n in range(21)), "21 kinds of events, at most 20"),
        ("e.parquet", b"PAR1 cut", "damaged, cut short or not what it is named"),
        ("e.txt", "", "its name does not say what it is"),
    ],
)
def test_what_is_wrong_with_events_is_said_in_a_line(
    capline: CommandLine, tmp_path: Path, name: str, content: str | bytes, said: str
) -> None:
    write_outcomes(tmp_path / "o.parquet", [Row(1, "c", "sent")])
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert said in capline.refused("response", "o.parquet", "--events", name)


def test_what_is_wrong_with_campaigns_is_said_in_a_line(capline: CommandLine, tmp_path: Path) -> None:
    write_outcomes(tmp_path / "o.parquet", [Row(1, "c", "sent"), Row(2, "c", "sent")])
    write_outcomes(tmp_path / "odd.parquet", [Row(1, "c", "eaten")])
    write_outcomes(tmp_path / "none.parquet", [])
    (tmp_path / "e.jsonl").write_text(GOOD)
    for campaigns, said in (
        (["o.parquet", "o.parquet"], "2 messages come twice, as c/r1/1; name each campaign once"),
        (["odd.parquet"], "'eaten' is not an outcome"),
        (["e.csv"], "e.csv: no such file"),
        (["nowhere.yaml"], "no such file"),
        (["none.parquet"], "no outcomes; name campaigns"),
    ):
        assert said in capline.refused("response", *campaigns, "--events", "e.jsonl")
    assert "there is no folder" in capline.refused(
        "response", "o.parquet", "--events", "e.jsonl", "--report", "no/r.html"
    )
    assert "--within: " in capline.refused("response", "o.parquet", "--events", "e.jsonl", "--within", "soon")


def test_who_unsubscribes_is_added_to_the_file_of_opt_outs(capline: CommandLine, tmp_path: Path) -> None:
    write_outcomes(tmp_path / "o.parquet", [Row(f"u{who},", "c", "sent") for who in range(5)])
    (tmp_path / "out.csv").write_text("why,id\r\nasked,u9")
    (tmp_path / "out.csv").chmod(0o640)
    write_events(tmp_path / "e.parquet", [("u1,", AT_US, "unsubscribed"), ("u2,", AT_US, "bought")])
    rows = [{"key": key, "event": "unsubscribed"} for key in ("c/r1/u3,", "c/r1/nobody")]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("response", "o.parquet", "--events", "e.parquet", "--events", "e.jsonl", "--opt-outs", "out.csv")
    told = capline.json(*words)["told"]
    assert told[0] == "1 events 'unsubscribed' have keys of no message: nobody is opted out by them"
    assert told[1] == "out.csv: 2 added of 2 who opted out"
    assert (tmp_path / "out.csv").read_bytes() == b'why,id\r\nasked,u9\n,"u1,"\r\n,"u3,"\r\n'
    assert (tmp_path / "out.csv").stat().st_mode & 0o777 == 0o640
    assert capline.json(*words)["told"][1] == "out.csv: 0 added of 2 who opted out"
    for content, said in ((b"name\n1\n", "no column 'id'"), (b"a,id\n1\n", "not like its header"), (b"\xff", "UTF-8")):
        (tmp_path / "out.csv").write_bytes(content)
        assert said in capline.refused(*words)
        assert (tmp_path / "out.csv").read_bytes() == content
    assert "ends in .csv" in capline.refused(*words[:-1], "out.txt")


def test_of_writers_at_once_none_loses_the_others_opt_outs(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"

    def add(writer: int) -> None:
        for number in range(10):
            add_opt_outs(path, [f"{writer}-{number}"])

    threads = [threading.Thread(target=add, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.read_text().split()[1:]) == sorted(f"{n}-{i}" for n in range(4) for i in range(10))
    with pytest.raises(SegmentError, match="cannot lock it"):
        add_opt_outs(tmp_path / "no" / "out.csv", ["1"])
