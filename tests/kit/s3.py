"""A real S3 server on loopback: ministack, from the venv that tools/setup.sh makes of tools/ministack.lock."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.kit.server_process import freeze
from tests.kit.servers import HOST, ServerError, free_port

PROGRAM = Path(__file__).parents[2] / "build" / "ministack" / "bin" / "python"
START_SECONDS = 30


class S3:
    """The server; buckets are made with it. `restart(auth=True)` takes its place with one that denies everybody."""

    def __init__(self, services: str = "s3") -> None:
        self.port = 0
        self._services = services
        self._directory = Path(tempfile.mkdtemp(prefix="capline-s3-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process use it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.port}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    @property
    def options(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.environment.items()}

    def start(self, *, auth: bool = False) -> Self:
        if not PROGRAM.exists():
            raise ServerError("build/ministack is missing; type: bash tools/setup.sh test")
        if not self.port:
            self.port = free_port()
        # Only loopback (it would bind every interface), nothing kept, nothing of ours in its environment.
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._directory),
            "TMPDIR": str(self._directory),
            "BIND_HOST": HOST,
            "MINISTACK_HOST": HOST,
            "GATEWAY_PORT": str(self.port),
            "SERVICES": self._services,
            "LOG_LEVEL": "WARNING",
            "AUTH": str(auth).lower(),
            "S3_DATA_DIR": str(self._directory / "s3"),
        }
        with_parent = shutil.which("setpriv")
        log = (self._directory / "log").open("wb")
        with log:
            self._process = subprocess.Popen(
                [*([with_parent, "--pdeathsig", "KILL", "--"] if with_parent else []), str(PROGRAM), "-m", "ministack"],
                env=environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop_serving()
                tail = (self._directory / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
                raise ServerError(f"ministack did not start; its log ends:\n{tail}")
            time.sleep(0.02)
        return self

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self.port), 0.5):
            return True
        return False

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"http://{HOST}:{self.port}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - as above
            pass

    def pause(self) -> None:
        assert self._process is not None
        freeze(self._process)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop_serving(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *, auth: bool = False) -> None:
        """End it and start one without anything in it, on the same port."""
        self.stop_serving()
        self.start(auth=auth)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop_serving()
        shutil.rmtree(self._directory, ignore_errors=True)
