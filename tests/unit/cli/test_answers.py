"""What the commands say of zones, quiet hours, other algorithms and joint attempts: the real ones, in this process."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine

from capline.cli.render import console

NOW = datetime.now(UTC)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The console was made with the width of whatever ran before."""
    monkeypatch.setattr(console.out, "width", 200)


def hours(first: int, last: int) -> str:
    """Quiet hours so far from now, in UTC."""
    begin, end = (f"{NOW + timedelta(hours=number):%H:00}" for number in (first, last))
    return f"not between {begin} and {end}"


def policies_of(tmp_path: Path, **policies: str) -> None:
    text = "".join(f"  {name}: {{{what}}}\n" for name, what in policies.items())
    (tmp_path / "policies.yaml").write_text(f"namespace: shop\npolicies:\n{text}", encoding="utf-8")


def test_a_calendar_limit_is_reported_in_the_subjects_time(tmp_path: Path, capline: CommandLine) -> None:
    policies_of(tmp_path, promo="limits: [1/calendar-day, 9/week], zone: Asia/Tokyo")
    assert capline.json("decide", "promo", "42")["limit"] == "1/calendar-day"
    refused = capline("decide", "promo", "42").stdout
    assert refused.startswith("refused by 1/calendar-day: fits in ")
    assert refused.endswith("00:00:00 JST\n")
    assert capline("peek", "promo", "42", "--zone", "Asia/Kolkata").stdout.endswith("00:00:00 IST\n")
    why = capline("explain", "promo", "42").stdout
    assert "policy promo, subject 42, in Asia/Tokyo" in why
    assert why.count("JST") == 4
    explained = capline.json("explain", "promo", "42", "--zone", "UTC")
    assert explained["zone"] == "UTC"
    assert explained["limits"][0]["frees"][0]["at_us"] % 86_400_000_000 == 0


def test_quiet_hours_are_reported_as_such(tmp_path: Path, capline: CommandLine) -> None:
    policies_of(
        tmp_path,
        now=f"limits: [{hours(-1, 2)}, 3/day]",
        later=f"limits: [{hours(9, 11)}]",
        then=f"limits: [1/10h, {hours(9, 12)}]",
    )
    refused = capline("decide", "now", "42").stdout
    assert refused.startswith(f"refused, {hours(-1, 2)}: fits in ")
    assert f"{hours(-1, 2)} (binds)" in (why := capline("explain", "now", "42").stdout)
    assert "quiet until" in why
    explained = capline.json("explain", "now", "42")["limits"]
    assert set(explained[0]) == {"limit", "binds", "quiet_until_us"}
    assert capline("decide", "later", "42").stdout.startswith(f"allowed: no quiet hours now ({hours(9, 11)}), hit ")
    assert "not quiet now" in capline("explain", "later", "42").stdout
    assert capline.json("decide", "then", "42")["allowed"]
    told = capline("explain", "then", "42").stdout
    assert told.startswith("refused by 1/10h: fits in 1"), "when the hours end that it would free in"
    assert "not quiet now" in told


def test_what_keeps_no_hits_says_so_and_is_given_back_by_its_cost(tmp_path: Path, capline: CommandLine) -> None:
    policies_of(
        tmp_path,
        psp="limits: [5/h], algorithm: gcra",
        two="limits: [5/h], algorithm: sliding_counter",
        api="limits: [5/h], algorithm: bucketed",
        shut="limits: [1/h], count_denied: true",
    )
    for policy in ("psp", "two"):
        hit = capline.json("decide", policy, "a", "--cost", "3")["hit"]
        assert capline.json("decide", policy, "a", "--id", "x")["remaining"] == 1
        why = capline("explain", policy, "a", "--id", "x").stdout
        assert "little by little" in why
        assert why.count("  hit ") == 1
        assert "keeps numbers and not hits; only a hit with an id is listed" in why
        assert capline.json("refund", policy, "a", str(hit), "--cost", "3") == {"refunded": True}
        assert capline.json("peek", policy, "a", "--cost", "4")["allowed"]
    assert capline.json("decide", "api", "a")["allowed"]
    assert "bucketed keeps sums" in capline("explain", "api", "a").stdout
    assert [capline.json("decide", "shut", "a")["allowed"] for _ in range(2)] == [True, False]
    assert "refusals count here (count_denied)" in (why := capline("explain", "shut", "a").stdout)
    assert why.count("  hit ") == 2


def test_several_subjects_in_one_attempt(tmp_path: Path, capline: CommandLine) -> None:
    policies_of(tmp_path, user="limits: [2/day]", campaign="limits: [9/day]", tenant="limits: [3/h]")
    words = ["user", "user:42", "--and", "campaign=spring=sale", "--and", "tenant:2=acme:eu"]
    allowed = capline("decide", *words, "--id", "m1").stdout.splitlines()
    assert allowed[0] == "allowed: 1 left under 2/day of user user:42"
    hits = [line.split()[1] for line in allowed[1:]]
    assert [line.split(maxsplit=2)[2] for line in allowed[1:]] == [
        "user user:42",
        "campaign spring=sale",
        "tenant acme:eu",
    ]
    again = capline.json("decide", *words, "--id", "m1")
    assert [str(hit) for hit in again["hits"]] == hits
    refused = capline.json("decide", *words)
    assert (refused["allowed"], refused["limit"], refused["binds"], refused["hits"]) == (False, "3/hour", 2, [])
    assert capline.json("peek", "user", "user:42")["allowed"], "nothing was taken of the user"
    assert capline("peek", *words).stdout.startswith("refused by 3/hour of tenant acme:eu: fits in 1 h, at ")
    assert capline("peek", *words, "--exit-code").returncode == 1
    marked = capline("peek", "user", "[red]x", "--and", "campaign=y").stdout
    assert marked.startswith("allowed: 1 left under 2/day of user [red]x")
    assert capline.json("refund", "tenant", "acme:eu", hits[2])["refunded"]
    assert capline.json("peek", *words)["allowed"]


def test_a_replay_in_the_zones_of_a_column(tmp_path: Path, capline: CommandLine) -> None:
    policies_of(tmp_path, promo="limits: [1/calendar-day, not between 22:00 and 08:00]")
    rows = "1,2024-05-06T20:00:00Z,\n2,2024-05-06T20:00:00Z,Asia/Tokyo\n1,2024-05-06T21:00:00Z,\n"
    (tmp_path / "sends.csv").write_text(f"subject,time,tz\n{rows}2,2024-05-07T00:00:00Z,Asia/Tokyo\n")
    words = ["replay", "sends.csv", "--policy", "promo"]
    assert capline.json(*words)["policies"]["promo"]["refused"] == 2
    told = capline.json(*words, "--zone-column", "tz")
    assert told["segments"]["promo"][0]["refused"] == {"1/calendar-day": 1, "not between 22:00 and 08:00": 1}
    assert len(told["segments"]["promo"]) == 1
    assert "by not between 22:00 and 08:00" in capline(*words, "--zone-column", "tz").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["decide", "user", "1", "--zone", "Mars"], "no time zone 'Mars'; use a name of the IANA database"),
        (["explain", "user", "1", "--zone", "Mars"], "no time zone 'Mars'; use a name of the IANA database"),
        (["decide", "user", "1", "--and", "user"], "--and 'user': write policy=subject, or policy:cost=subject"),
        (["decide", "user", "1", "--and", "user:x=2"], "--and 'user:x=2': write policy=subject"),
        (["decide", "user", "1", "--and", "user:=2"], "--and 'user:=2': write policy=subject"),
        (["decide", "user", "1", "--and", "user:0=2"], "a cost is 1 to"),
        (["peek", "user", "1", "--and", "nope=2"], "no policy 'nope'; there are: user"),
        (["peek", "nope", "1", "--and", "user=2"], "no policy 'nope'; there are: user"),
        (["peek", "user", "1", "--and", "user=1"], "two parts of one attempt are on the same log"),
        (["peek", "user", "0", *(f"--and=user={number}" for number in range(1, 17))], "over 1 to 16 subjects"),
        (["refund", "user", "1", "7", "--cost", "0"], "a cost is 1 to"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, capline: CommandLine, words: list[str], said: str) -> None:
    policies_of(tmp_path, user="limits: [2/day]")
    assert capline("decide", "user", "somebody").returncode == 0  # there is a store
    told = capline.refused(*words)
    assert told.startswith("capline: ")
    assert said in told
