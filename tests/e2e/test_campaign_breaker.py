import json
from pathlib import Path

from tests.kit.campaign import Site, capline, receiver


def test_a_dead_receiver_is_exit_1_and_the_same_command_goes_on(tmp_path: Path) -> None:
    site = Site(tmp_path)
    said = {"status": 401}
    with receiver(lambda _id, _tries: said["status"]) as far:
        site.write(sender=f"{{webhook: '{far.url}', concurrency: 4}}")
        stopped = capline("campaign", "run", site.file, "--json")
        said["status"] = 200
        done = capline("campaign", "run", site.file, "--json")
    assert stopped.returncode == 1
    assert "stopped early: 32 messages in a row were not sent by webhook (HTTP 401); fix that and run" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert json.loads(stopped.stdout)["state"] == "stopped"
    total = json.loads(stopped.stdout)["total"]
    assert (total["sent"], total["failed"], total["pending"], total["undecided"]) == (0, 32, 68, 300)
    assert json.loads(done.stdout)["total"]["sent"] == 368
    assert len(far.taken) == 368


def test_refused_for_good_is_exit_3_and_no_retry_is_advised(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience(range(12))
    with receiver(lambda subject, _tries: 410 if subject < 3 else 200) as far:
        site.write(sender=f"{{webhook: '{far.url}'}}")
        for _ in range(2):
            done = capline("campaign", "run", site.file)
            assert done.returncode == 3
            assert "--retry-failed" not in done.stderr


def test_what_is_not_known_is_said_and_asked_again_by_the_same_command(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.audience(range(12))
    said = {"status": 502}
    with receiver(lambda subject, _tries: said["status"] if subject < 3 else 200) as far:
        site.write(sender=f"{{webhook: '{far.url}'}}")
        first = capline("campaign", "run", site.file)
        said["status"] = 200
        second = capline("campaign", "run", site.file, "--json")
        third = capline("campaign", "run", site.file, "--json")
    assert "not known, and kept: HTTP 502 (3)" in first.stdout
    assert "not known" in first.stdout.splitlines()[1]
    assert "finished before; asking again about 3 messages that are not known" in second.stderr
    assert json.loads(second.stdout)["total"]["sent"] == 12
    assert "finished before; this is its report" in third.stderr
    assert {len(keys) for keys in far.keys.values()} == {1}
