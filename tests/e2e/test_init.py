"""`capline init`: each project runs as it stands, with the commands that it prints, and nothing is overwritten."""

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.kit.cli import CommandLine
from tests.profiles import first

BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}:/usr/bin:/bin")


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_campaign_refuses_whom_its_policy_refuses(tmp_path: Path, capline: CommandLine) -> None:
    made = capline.json("init", "campaign", "spring")
    assert made["files"] == ["campaign.yaml", "policies.yaml", "users.csv"]
    cd, *steps = made["next"]
    assert cd == "cd spring"
    said = [run(step, tmp_path / "spring") for step in steps]
    assert "promo 42" in said[-1] or "3/day" in said[-1]
    assert list((tmp_path / "spring/out").iterdir())
    again = (tmp_path / "spring/campaign.yaml").read_text().replace("spring", "summer")
    again = again.replace("out/", "out2/")
    (tmp_path / "spring/summer.yaml").write_text(again)
    assert "refused" in run("capline campaign run summer.yaml", tmp_path / "spring")


def test_two_workers_share_a_provider_and_none_is_refused(tmp_path: Path, capline: CommandLine) -> None:
    assert capline.json("init", "provider")["next"] == ["python worker.py", "python worker.py --free"]
    ended: list[tuple[str, str, int]] = []
    for _ in range(5):  # a machine that stops for longer than the margin sends a call too late
        pipe, command = subprocess.PIPE, [sys.executable, "worker.py"]
        workers = [subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
        ended = [(*worker.communicate(timeout=120), worker.returncode) for worker in workers]
        assert [code for *_, code in ended] == [0, 0], ended
        if all(": 15 answered, 0 refused" in stdout for stdout, *_ in ended):
            break
    else:
        pytest.fail(str(ended))
    free = run(f"{sys.executable} worker.py --free", tmp_path)
    assert ", 0 refused" not in free


def test_an_api_refuses_the_fourth_request_and_says_when_the_next_fits(tmp_path: Path, capline: CommandLine) -> None:
    assert "python app.py" in capline("init", "api").stdout
    command = [sys.executable, "app.py", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[0]
            for _ in range(3):
                with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own server
                    assert answer.read() == b"hello\n"
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url, timeout=30)  # noqa: S310 - as above
            assert refused.value.code == 429
            assert 0 < int(refused.value.headers["Retry-After"]) <= 10
            refused.value.close()
        finally:
            server.terminate()


def test_nothing_is_overwritten(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for words, said in (
        (("api",), ".: not empty; name a new folder: capline init api NAME"),
        (("api", "notes.txt"), "notes.txt: cannot be written: file exists"),
        (("shop",), "'shop' is not one of 'campaign', 'provider', 'api'"),
    ):
        assert said in capline.refused("init", *words)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("shell", first(1, ["bash", "zsh", "fish"]))
def test_a_shell_completes_commands_and_the_names_of_a_policy_file(
    tmp_path: Path, capline: CommandLine, shell: str
) -> None:
    capline("init", "campaign")
    asks = {"_CAPLINE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}

    def said(*words: str, **env: str) -> str:
        env = {"HOME": str(tmp_path), **env}
        done = subprocess.run(
            [BIN / "capline", *words], env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (0, 1), done.stderr  # zsh and fish read the answer alone
        return done.stdout

    for words, found in (
        ("ini", "init"),
        ("decide pr", "promo"),
        ("decide promo 7 --segment ne", "new"),
        ("config get pr", "promo"),
    ):
        count = str(words.count(" ") + 1)
        typed = {"_TYPER_COMPLETE_ARGS": f"capline {words}", "COMP_WORDS": f"capline {words}", "COMP_CWORD": count}
        assert found in said(**asks, **typed)
    said("--install-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert any(file.name in ("capline.sh", "_capline", "capline.fish") for file in tmp_path.rglob("*"))


def completed(shell: str, typed: str, home: Path, needle: str) -> str:
    """What this shell makes of a line and one Tab."""
    environment = {"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "TERM": "xterm"}
    if shell == "fish":
        command = ["fish", "-c", f"complete -C '{typed}'"]
        done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=True)
        return done.stdout
    with (home / f".{shell}rc").open("a") as file:
        file.write("PS1='READY> '\n")
    terminal, its_end = pty.openpty()
    with subprocess.Popen(
        [shell, "-i"], stdin=its_end, stdout=its_end, stderr=its_end, env=environment, cwd=home, start_new_session=True
    ) as running:
        os.close(its_end)
        try:
            until(terminal, "READY> ")
            os.write(terminal, f"{typed}\t".encode())
            return until(terminal, needle)
        finally:
            running.kill()
            os.close(terminal)


def until(terminal: int, needle: str) -> str:
    """What the terminal shows up to this, without colours and the like."""
    shown = ""
    while needle not in shown and select.select([terminal], [], [], 20)[0]:
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown + os.read(terminal, 4096).decode())
    return shown


@pytest.mark.deep
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_one_tab_in_a_real_shell_completes_the_names_that_files_say(
    tmp_path: Path, capline: CommandLine, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    capline("init", "campaign")
    capline("segments", "build", "users.csv", "--out", "today")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    run(f"capline --install-completion {shell}", tmp_path)
    for words, name in (
        ("ini", "init"),
        ("config history pr", "promo"),
        ("segments members today act", "active"),
        ("campaign plan cam", "campaign.yaml"),
    ):
        assert name in completed(shell, f"capline {words}", tmp_path, f"{name} ")
