"""One worker process: `workers` starts this module, and sends its job on standard input."""

import os
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from capline.model.errors import CaplineError
from capline.service.run.workers import READY, Job

STDIN, STDOUT = 0, 1


def main() -> None:
    """Serve until it is told to end, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it serves: it reads what is to be reloaded
    # `workers` blocked these until two of them are ignored.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
    with os.fdopen(STDIN, "rb", buffering=0, closefd=False) as told:
        job = msgspec.json.decode(told.readline(), type=Job)
    from capline.service.run.server import serve_here  # noqa: PLC0415 - as above
    from capline.service.run.start import log_to_stderr  # noqa: PLC0415 - metrics are set up by what is loaded here

    log_to_stderr()
    sockets = {name: socket.socket(fileno=number) for name, number in job.sockets.items()}
    try:
        serve_here(job.settings, sockets, _say_ready, STDIN)
    except CaplineError as error:
        os.write(STDOUT, f"{' '.join(str(error).split())}\n".encode())
        sys.exit(2)


def _say_ready() -> None:
    with suppress(BrokenPipeError):  # the parent is gone: STDIN ends this, too
        os.write(STDOUT, READY)


if __name__ == "__main__":
    main()
