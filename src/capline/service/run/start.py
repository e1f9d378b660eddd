"""Starts the service: in this process, or with several workers in processes of their own."""

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack

from capline.service.run.listen import bound
from capline.service.run.workers import serve_by_workers
from capline.service.settings.values import Address, Settings


def serve(
    settings: Settings, started: Callable[[Address, Address], object], note: Callable[[str], object] = lambda _: None
) -> None:
    """Serve until a signal ends it; `started` is told where it listens, once it does, `note` of workers that died.

    Raises `CaplineError` where it cannot start: bad policies, a damaged embedded store, an address in use.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it follows its files, which it reads in any case
    with ExitStack() as stack:
        public = stack.enter_context(bound(settings.http.listen, "http.listen"))
        private = stack.enter_context(bound(settings.admin.listen, "admin.listen"))
        answering = {"http": public}
        if settings.spoe is not None:
            answering["spoe"] = stack.enter_context(bound(settings.spoe, "spoe.listen"))
        addresses = [Address(*listening.getsockname()[:2]) for listening in (public, private)]

        def listens() -> None:
            started(*addresses)

        if settings.http.workers > 1:
            serve_by_workers(settings, answering, {"admin": private}, listens, note)
            return
        from capline.service.run.server import serve_here  # noqa: PLC0415 - a parent of workers serves nothing itself

        log_to_stderr()
        serve_here(settings, {**answering, "admin": private}, listens)


def log_to_stderr() -> None:
    """Log the service's own messages to standard error, a line each."""
    logger = logging.getLogger("capline")
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
