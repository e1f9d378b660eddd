"""The command line as a process of its own, forked from one that has imported it: a quarter of the cost of a start.

    done = run("decide", "promo", "42", cwd=folder, env=environment)    as `subprocess.run` of `python -m capline.cli`
    worker = start("worker", "--queue", url, env=environment)           as `subprocess.Popen` of it

A server, one for each process that tests, imports the command line and what its commands import, and does nothing else.
For each call it forks twice: the child tells the process id, waits and tells the status, the grandchild is the command.
Folder, environment and the three files are the caller's; the command ends as any program does, by `sys.exit`, an
exception or a signal.

What imports cost or may not do is not seen this way: tests of that start the real program.
"""

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import capline

__all__ = ["Command", "run", "start"]

ROOT = Path(__file__).parents[2]
SOURCE = Path(capline.__file__).parents[1]  # what is tested, be it a copy
LONGEST_S = 1800
"""A command that takes longer is ended by SIGALRM."""
LARGEST_REQUEST_BYTES = 1 << 20
WARM = (
    "capline.cli.start",
    "capline.cli.main",
    "capline.campaign",
    "capline.campaign.erase",
    "capline.campaign.outcomes",
    "capline.campaign.page",
    "capline.campaign.queue.status",
    "capline.campaign.queue.watch",
    "capline.campaign.senders.webhook",
    "capline.cli.input.served",
    "capline.policy.watch",
    "capline.replay",
    "capline.segment",
    "capline.segment.build.build",
    "capline.service.console.pages",
    "capline.service.run.file",
    "capline.service.run.server",
    "capline.service.run.start",
    "capline.service.verbs.campaigns",
    "capline.store.local.lmdb.store",
    "capline.store.redis.store",
    "encodings.idna",
    "httpx",
    "numpy.ma",
    "obstore",
    "pyarrow.csv",
    "pyarrow.parquet",
    "rich.progress",
    "rich.table",
    "typer.rich_utils",
)


class Command:
    """A command that was started: what tests use of `subprocess.Popen`, and in the same words."""

    def __init__(
        self, words: Sequence[str | Path], cwd: Path | None, env: Mapping[str, str] | None, *files: int
    ) -> None:
        self.args = [*map(str, words)]
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        environment = dict(os.environ if env is None else env)
        request = {"words": self.args, "cwd": str(cwd or Path.cwd()), "env": environment}
        reader, writer = os.pipe()
        self._status = os.fdopen(reader, encoding="ascii")
        try:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*files, writer])
        finally:
            os.close(writer)
        told = self._status.readline()
        if not told:
            raise RuntimeError(f"capline {' '.join(self.args)}: not started; is the server of commands alive?")
        self.pid = int(told)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, which it has to by then."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._status:
                self.returncode = int(self._status.read())
        return self.returncode

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it says from here on, when it has ended; one that does not in time is killed."""
        with ThreadPoolExecutor(2) as readers:
            said = [readers.submit(_rest, file) for file in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return said[0].result(), said[1].result()

    def send_signal(self, signum: int) -> None:
        """Send it, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        """Nothing in it gets to run any more."""
        self.send_signal(signal.SIGKILL)


def _rest(file: IO[str] | None) -> str:
    if file is None or file.closed:
        return ""
    with file:
        return file.read()


def start(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, together: bool = False
) -> Command:
    """Type `capline` and these words, and read `stdout` and `stderr` as it goes on; or both `together` from the one."""
    readers, writers = zip(*(os.pipe() for _ in range(1 if together else 2)), strict=True)
    given = os.open(os.devnull, os.O_RDONLY)
    try:
        made = Command(words, cwd, env, given, writers[0], writers[-1])
    finally:
        for file in (given, *writers):
            os.close(file)
    made.stdout = os.fdopen(readers[0])
    made.stderr = None if together else os.fdopen(readers[1])
    return made


def run(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Type `capline` and these words; what it printed, and how it ended."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((stdin or "").encode())
        given.seek(0)
        status = Command(words, cwd, env, given.fileno(), out.fileno(), err.fileno()).wait()
        said = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
    return subprocess.CompletedProcess(["capline", *map(str, words)], status, *said)


@cache
def _server() -> socket.socket:
    """Our end of a pair of sockets; the server ends when it is closed, which our own end does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.forked", str(its.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # no terminal: what it writes is buffered as in a pipe
            start_new_session=True,  # Ctrl-C is for the tests
        )

    def end() -> None:
        ours.close()
        process.wait(60)

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> None:
    """Fork for each request; returns in the command's own process, where that is to be run."""
    for name in WARM:
        import_module(name)
    import_module("capline.cli.main").command()
    gc.freeze()  # what is imported is never collected: the command neither copies nor frees it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        data, files, _, _ = socket.recv_fds(requests, LARGEST_REQUEST_BYTES, 4)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            break
        for file in files:
            os.close(file)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, status = files
    command = os.fork()
    if command:
        for file in standard:
            os.close(file)
        os.write(status, f"{command}\n".encode())
        _, ended = os.waitpid(command, 0)
        os.write(status, str(os.waitstatus_to_exitcode(ended)).encode())
        os._exit(0)
    os.close(status)
    _become(json.loads(data), standard)


def _become(request: Mapping[str, Any], standard: list[int]) -> None:
    """Take the caller's folder, environment, words and files."""
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    signal.alarm(LONGEST_S)
    sys.argv = [str(SOURCE / "capline/cli/__main__.py"), *request["words"]]
    sys.modules["__main__"].__package__ = "capline.cli"  # as the help says it was called


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from capline.cli.start import main

    main()
