"""What docs/reference/campaigns.md and examples/campaign say, done."""

import re
import shlex
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.campaign import AT_US, Site, answer, capline, command, environment, receiver
from tests.kit.serving import Serving

from capline.campaign import load_campaign
from capline.service.access.tokens import TokenFile

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/reference/campaigns.md").read_text()


def test_the_campaign_file_of_the_docs_is_one(tmp_path: Path) -> None:
    (tmp_path / "campaign.yaml").write_text(re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)[0])
    campaign = load_campaign(tmp_path / "campaign.yaml")
    assert (campaign.campaign, campaign.channel, campaign.batch, campaign.cost) == ("summer-sale", "push", 10_000, 1)


@pytest.mark.parametrize("kind", ["file", "webhook", "smtp", "redis_streams", "kafka", "sqs"])
def test_the_senders_of_the_docs_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("PUSH_KEY", "k")
    monkeypatch.setenv("SMTP_PASSWORD", "p")
    monkeypatch.setenv("KAFKA_PASSWORD", "p")
    section = DOC.split(f"### {kind}\n", 1)[1].split("###", 1)[0]
    settings = "".join(line[4:] + "\n" for line in section.splitlines() if line.startswith("    "))
    site = Site(tmp_path)
    site.write(sender=None, **({"audience": None} if "audience:" in settings else {}))
    site.file.write_text(site.file.read_text() + settings)
    assert load_campaign(site.file).sender.name == kind


def test_the_two_more_keys_of_the_docs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    as_of, retry = (re.findall(rf"`{key}: (.*?)`", DOC)[0] for key in ("as_of", "retry"))
    campaign = load_campaign(site.write(as_of=as_of, retry=retry))
    assert campaign.as_of_us == AT_US
    assert campaign.retry.attempts == 4


def test_the_sender_of_the_examples_is_found_by_its_entry_point_and_fills_its_table(tmp_path: Path) -> None:
    package = tmp_path / "site" / "loft-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: loft\nVersion: 1.0\n")
    module = ROOT / "examples/campaign/outbox.py"
    (point,) = re.findall(r"outbox = \".*?\"", module.read_text())
    (package / "entry_points.txt").write_text("[capline.senders]\n" + point.replace('"', "") + "\n")
    shutil.copy(module, package.parent)
    site = Site(tmp_path)

    def run(sender: str, *more: str | Path, **settings: str) -> subprocess.CompletedProcess[str]:
        path = environment(PYTHONPATH=f"{ROOT / 'src'}:{package.parent}")
        words = command("campaign", "run", site.write(sender=sender, **settings), *more)
        return subprocess.run(words, env=path, capture_output=True, text=True, check=False)

    done = run("{outbox: outbox.sqlite}")
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "outbox.sqlite")) as outbox:
        rows = outbox.execute("SELECT key, id FROM outbox").fetchall()
    assert sorted(int(subject) for _, subject in rows) == list(range(400))
    assert {key.rpartition("/")[2] for key, _ in rows} == set(map(str, range(400)))
    gone = run("{outbox: nowhere/outbox.sqlite}", "--ledger", tmp_path / "second", campaign="second")
    assert (gone.returncode, "nothing of second was sent" in gone.stderr) == (2, True)


def test_a_campaign_is_composed_as_its_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/composing.md").read_text()
    queue = f"sqlite://{tmp_path}/queue.sqlite"
    Site(tmp_path)
    (tmp_path / "summer.yaml").write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    (tmp_path / "capline.yaml").write_text(f"queue: {queue}\naudiences: kept\ntokens: tokens.json\n")
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    token = tokens.create("ann", ["compose", "read", "steer"])
    commands = re.findall(r"^    capline (.*)", page, re.MULTILINE)
    assert len(commands) == 12
    with Serving(tmp_path, "--config", "capline.yaml") as serving:
        for command in commands:
            done = capline(*shlex.split(command), cwd=tmp_path, CAPLINE_SERVER=serving.url.replace("//", f"//{token}@"))
            assert done.returncode == 0, (command, done.stderr)
            if " resume " in command:
                assert capline("worker", "--queue", queue, "--until-idle", "--quiet", cwd=tmp_path).returncode == 0
    assert "400 of 400 are sent" in (tmp_path / "report.html").read_text()
    assert len((tmp_path / "outcomes.csv").read_text().splitlines()) == 401


def test_campaigns_are_run_as_their_page_says(tmp_path: Path) -> None:
    page = (ROOT / "docs/howto/campaigns.md").read_text().replace("/var/lib", str(tmp_path))
    queue = re.findall(r"^    export CAPLINE_QUEUE=(.*)", page, re.MULTILINE)[0]
    commands = re.findall(r"^    capline (.*)", page, re.MULTILINE)
    assert len(commands) == 10
    work = commands.pop(1)
    commands.insert(6, f"{work[:-4]}0 --until-idle")  # else it ends what is steered
    with receiver(lambda subject, tries: 410 if subject == 13 and tries == 1 else 200) as far:
        site = Site(tmp_path, {"sender": f"{{webhook: {far.url}}}", "rate": "5000/s"})
        site.write(as_of=None).rename(tmp_path / "summer.yaml")
        said = ""
        for command in commands:
            done = capline(*shlex.split(command), cwd=tmp_path, CAPLINE_QUEUE=queue, CAPLINE_STORE=site.store)
            assert (done.returncode, "worker" in command) in {(0, False), (0, True), (3, True)}, done.stderr
            said = done.stdout
    assert len((tmp_path / "outcomes.csv").read_text().splitlines()) == 400, "one is to be sent again"
    assert "summer-sale: " in said


def test_the_example_runs_as_its_readme_says(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples/campaign", tmp_path / "campaign")
    here = tmp_path / "campaign"
    lines = [line.strip() for line in (here / "README.md").read_text().splitlines() if line.startswith("    capline")]
    assert len(lines) == 6
    for number, line in enumerate(lines[:5]):
        done = capline(*shlex.split(line)[1:], cwd=here)
        assert done.returncode == 0, line
        # Its store is new until the run has counted somebody.
        assert ("is new: nobody is counted in it yet" in done.stderr) == (number in (1, 2)), line
    report = answer("campaign", "status", "campaign.yaml", cwd=here)
    assert (report["state"], report["total"]["sent"]) == ("finished", 24)
    after = answer("campaign", "plan", "campaign.yaml", cwd=here)
    assert {part["segment"]: part["sent"] for part in after["segments"]}["active"] == 8
    assert after["total"]["sent"] == 8
    assert "ada@example.org" in (here / "out/part-000000.csv").read_text()
