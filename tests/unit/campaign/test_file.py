from pathlib import Path

import pytest
from tests.kit.campaign import AT_US, Site

from capline.campaign import load_campaign
from capline.model.errors import CampaignError, CaplineError

GOOD = """\
campaign: summer-sale
policies: policies.yaml
policy: promo
channel: push
store: lmdb:///var/lib/capline
segments: segments/2026-11-21
audience: {parquet: [a.parquet, 'b-*.pq'], column: user, columns: [email], duplicates: drop}
cost: 2
as_of: 2026-11-21T17:00:00.25+01:00
batch: 5_000
retry: {attempts: 7, wait: 0.5}
sender: {webhook: {url: 'https://push.example.org/send', headers: {X-Shop: 'seven'}}}
"""


def test_everything_is_read_and_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "campaign.yaml").write_text(GOOD)
    campaign = load_campaign(tmp_path / "campaign.yaml")
    assert campaign.campaign == "summer-sale"
    assert campaign.policies == tmp_path / "policies.yaml"
    assert campaign.segments == tmp_path / "segments/2026-11-21"
    assert (campaign.policy, campaign.channel, campaign.cost, campaign.batch) == ("promo", "push", 2, 5000)
    assert campaign.as_of_us == AT_US + 250_000
    assert campaign.audience.paths == (str(tmp_path / "a.parquet"), str(tmp_path / "b-*.pq"))
    assert campaign.audience.column == "user"
    assert campaign.audience.columns == ("email",)
    assert campaign.audience.drop_duplicates
    assert (campaign.retry.attempts, campaign.retry.wait_s, campaign.retry.longest_s) == (7, 0.5, 60.0)
    assert campaign.sender.name == "webhook"


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "campaign: c\npolicies: p.yaml\npolicy: p\naudience: {bitmap: a.roaring}\nsender: {file: out}\n"
    )
    campaign = load_campaign(tmp_path / "c.yaml")
    assert campaign.store == f"lmdb://{tmp_path}/.capline/store"
    assert (campaign.channel, campaign.segments, campaign.as_of_us) == (None, None, None)
    assert (campaign.cost, campaign.batch, campaign.send_at_us, campaign.priority) == (1, 10_000, 0, 50)


@pytest.mark.parametrize(
    ("written", "names"),
    [("promo", ["promo"]), ("[promo]", ["promo"]), ("[global, 'GET:/a', summer]", ["global", "GET:/a", "summer"])],
)
def test_a_policy_is_one_or_several(tmp_path: Path, written: str, names: list[str]) -> None:
    (tmp_path / "c.yaml").write_text(GOOD.replace("policy: promo", f"policy: {written}"))
    assert load_campaign(tmp_path / "c.yaml").policy_names == names


SEVERAL = """\
namespace: marketing
policies:
  a: {limits: [3/day]}
  b: {limits: [2/day], channels: {push: [1/hour]}}
  same: {limits: [9/day], log: a}
  met: {limits: [1/day], algorithm: gcra}
  barred: {limits: [1/day], count_denied: true}
  shy: {limits: [1/day], shadow: true}
  pending: {limits: [1/day], reservations: true}
  bucket: {limits: [1/day], layout: bucket}
  few: {limits: [1/day], population: 9}
"""


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[a, met]", "policy 'met' is gcra; beside others all must be sliding_log"),
        ("[a, barred]", "policy 'barred' has count_denied"),
        ("[a, shy]", "policy 'shy' is in shadow and refuses nobody"),
        ("[shy]", "policy 'shy' is in shadow and refuses nobody"),
        ("[a, pending]", "policy 'pending' has reservations"),
        ("[a, same]", "log 'a' would count a message twice"),
        ("[a, a]", "log 'a' would count a message twice"),
        ("[a, bucket]", "several layouts or populations"),
        ("[a, few]", "several layouts or populations"),
        ("[a, other]", "no policy 'other'; there are: a, b"),
        ("a+b", r"write several policies as a list: \[a, b\]"),
        ("[]", r"expected a list of texts, like \[promo\]"),
    ],
)
def test_what_cannot_be_beside_others_is_refused_in_one_line(tmp_path: Path, written: str, said: str) -> None:
    site = Site(tmp_path)
    (tmp_path / "policies.yaml").write_text(SEVERAL)
    with pytest.raises(CaplineError, match=said) as refused:
        site.job(policy=written)
    assert "\n" not in str(refused.value)
    site.job(policy="[a, b]", channel="push")
    with pytest.raises(CaplineError, match="policy 'a\\+b' has no channel 'mail'; it has: push"):
        site.job(policy="[a, b]", channel="mail")


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        (1, "campaign: 'a b'", "name 'a b' is not 1 to 64 letters"),
        (1, "campaign:", "campaign: expected a text, found nothing"),
        (1, "campain: c", "unknown key 'campain'; did you mean campaign?"),
        (2, "policies: [a.yaml]", "policies: expected a text"),
        (6, "segments: {a: b}", "segments: expected a text, found a mapping"),
        (7, "audience: users.csv", "audience: expected a mapping, like {csv: users.csv, column: id}"),
        (7, "audience: {column: id}", "name one of csv, parquet, bitmap, segments"),
        (7, "audience: {csv: a.csv, bitmap: b.roaring}", "and only one; here are csv, bitmap"),
        (7, "audience: {csv: a.parquet}", "the name of a csv file ends in .csv or .csv.gz"),
        (7, "audience: {csv: a.csv, duplicates: maybe}", "'maybe' is not known; use error or drop"),
        (7, "audience: {csv: a.csv, colum: id}", "unknown key 'colum'; did you mean column?"),
        (7, "audience: {csv: a.csv, columns: [id]}", "name each column once"),
        (7, "audience: {bitmap: a.roaring, column: id}", "unknown key 'column'"),
        (8, "cost: 0", "a cost is 1 to"),
        (8, "cost: -1", "cost: expected a whole number"),
        (8, "cost: 1.5", "cost: expected a whole number"),
        (9, "send_at: 16:00", "'16:00' is not an instant"),
        (9, "send_at_local: 16:00", "send_at_local: it needs 'send_at:'"),
        (9, "rate: 5000", "rate: limit '5000'"),
        (9, "rate: 1/calendar-day", "rate: '1/calendar-day' is not a number of messages in a second or more"),
        (9, "rate: 10/100ms", "rate: '10/100ms' is not a number of messages in a second or more"),
        (9, "rate_key: push", "rate_key: it needs a 'rate:', like 5000/s"),
        (9, "as_of: 2026-11-21T16:00:00Z\nrate: 10/s", "rate: a rehearsal waits for nothing"),
        (9, "send_at_local: 24:00", "'24:00' is not a time of the day; write it like 16:00"),
        (9, "send_at: 2026-11-21T17:00:00Z\nuntil: 2026-11-21T16:00:00Z", "until: it is over before it is due"),
        (9, "as_of: 2026-11-21T16:00:00Z\nuntil: 2026-11-22T16:00:00Z", "until: a rehearsal waits for nothing"),
        (9, "as_of: 2026-11-21T16:00:00Z\nsend_at: 2026-11-21T16:00:00Z", "send_at: a rehearsal waits for nothing"),
        (9, "priority: 101", "priority: expected a whole number from 0 to 100"),
        (9, "as_of: yesterday", "'yesterday' is not an instant; write it like 2026-11-21T16:00:00Z"),
        (9, "as_of: 2026-11-21T16:00:00", "does not say in which time zone"),
        (9, "as_of: 1969-01-01T00:00:00Z", "not between 1970 and 2255"),
        (10, "batch: 0", "batch: expected a whole number from 1 to 100000"),
        (10, "batch: 1000000", "batch: expected a whole number from 1 to 100000"),
        (11, "retry: {attempts: 0}", "attempts: expected a whole number from 1"),
        (11, "retry: {wait: 0}", "wait: expected a number of seconds above 0"),
        (11, "retry: {wait: nan}", "wait: expected a number of seconds"),
        (12, "sender: {pigeon: {}}", "no such sender; there are: file, kafka"),
        (12, "sender: out/", "sender: expected a mapping"),
        (12, "sender: {file: out, format: xml}", "'xml' is not known; use parquet or csv"),
        (12, "sender: {file: out, formt: csv}", "sender file: unknown key 'formt'; did you mean format?"),
        (12, "sender: {file: {path: out}, format: csv}", "unknown key 'format'"),
        (12, "sender: {webhook: {}}", "no 'url:' here; add it"),
        (12, "sender: {webhook: {url: 'ftp://x/'}}", "is not a URL like https://"),
        (12, "sender: {webhook: {url: 'http://x/', concurrency: 0}}", "concurrency: expected a whole number from 1"),
        (12, "sender: {webhook: {url: 'http://x/', timeout: -3}}", "timeout: expected a number of seconds"),
        (12, "sender: {webhook: {url: 'http://x/', headers: {Host: x}}}", "Host is set for each message"),
        (12, "sender: {webhook: {url: 'http://x/', headers: {'A B': x}}}", "a header is a name and one line"),
        (12, "sender: {webhook: {url: 'http://x/', headers: {A: '${NO_SUCH_VAR}'}}}", "NO_SUCH_VAR is not set"),
        (
            12,
            "sender: {smtp: {server: 'a:x', from: a@b.c, to: t@b.c, subject: s, text: t}}",
            "is not host or host:port",
        ),
        (12, "sender: {smtp: {server: a, from: nobody, to: t@b.c, subject: s, text: t}}", "is not an address"),
        (12, "sender: {smtp: {server: a, from: a@b.c, to: '{0.x}', subject: s, text: t}}", "is a plain name"),
        (12, "sender: {smtp: {server: a, from: a@b.c, to: '{id', subject: s, text: t}}", "placeholders like {id}"),
        (12, "sender: {smtp: {server: a, from: a@b.c, to: t, subject: s, text: t, username: u}}", "give username and"),
        (9, "as_of: 2026-11-21T16:00:00Z\nx: 1", "unknown key 'x'; use campaign,"),
    ],
)
def test_a_bad_line_is_named_with_its_fix(tmp_path: Path, line: int, instead: str, said: str) -> None:
    lines = [*map(str, GOOD.splitlines())]
    lines[line - 1] = instead
    line += instead.count("\n")
    file = tmp_path / "campaign.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(CampaignError) as raised:
        load_campaign(file)
    told = str(raised.value)
    assert said in told
    assert "\n" not in told
    assert f"{file}:{line}: " in told


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_text(GOOD.replace("cost: 2", "cost: no").replace("batch: 5_000", "batch: many"))
    with pytest.raises(CampaignError, match=r":8: cost.*\(and 1 more: line 10\)"):
        load_campaign(file)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"campaign: [", "not YAML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"- a\n- b\n", "expected a mapping"),
        (GOOD.encode() + b"cost: 3\n", "'cost' is given twice, first on line 8"),
        (b"# " + b"x" * (1 << 20), "at most"),
    ],
)
def test_a_file_that_is_no_campaign_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "campaign.yaml"
    file.write_bytes(data)
    with pytest.raises(CampaignError, match=said):
        load_campaign(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match=r"none\.yaml: cannot read it: No such file"):
        load_campaign(tmp_path / "none.yaml")


def test_an_expression_needs_a_snapshot(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with pytest.raises(CampaignError, match="needs a snapshot; add 'segments: DIR'"):
        load_campaign(site.write(segments=None, audience="{segments: active - churned}"))


@pytest.mark.parametrize(
    ("store", "seen"),
    [
        ("lmdb://store", "lmdb://{}/store"),
        ("lmdb://a%20b/../caps?durability=full", "lmdb://{}/caps?durability=full"),
        ("lmdb://../caps", "lmdb://{}/caps"),
        ("lmdb://${CAPS}", "lmdb://{}/from-environment"),
        ("lmdb:///var/lib/capline", "lmdb:///var/lib/capline"),
        ("lmdb://~/caps", "lmdb://~/caps"),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("memory://", "memory://"),
    ],
)
def test_a_relative_store_starts_at_the_file_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, seen: str
) -> None:
    monkeypatch.setenv("CAPS", "from-environment")
    directory = tmp_path / "campaigns"
    directory.mkdir()
    (directory / "c.yaml").write_text(
        f"campaign: c\npolicies: p.yaml\npolicy: p\nstore: {store}\n"
        "audience: {bitmap: a.roaring}\nsender: {file: out}\n"
    )
    found: set[str] = set()
    for where, name in ((tmp_path, "campaigns/c.yaml"), (directory, "c.yaml"), (directory, directory / "c.yaml")):
        monkeypatch.chdir(where)
        found.add(load_campaign(name).store)
    assert found == {seen.format(tmp_path if store == "lmdb://../caps" else directory)}
