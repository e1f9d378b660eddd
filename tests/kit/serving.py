"""`capline serve` as its own process, on free ports of loopback."""

import re
import signal
from pathlib import Path
from typing import Self

import httpx
from tests.kit.program import WITHIN_S, Program

_STARTED = re.compile(r"decisions at (https?://\S+), metrics at (https?://\S+)/metrics")


class Serving(Program):
    """A running service; `url` is where decisions are asked, `admin` where metrics are read."""

    def __init__(self, folder: Path, *words: str) -> None:
        listen = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        super().__init__(folder, "-m", "capline.cli", "serve", *listen, *words)
        self.url, self.admin = self.says(_STARTED).groups()
        self.client = httpx.Client(base_url=self.url, timeout=WITHIN_S, trust_env=False)

    def ask(self, path: str, **form: object) -> httpx.Response:
        """Send a form."""
        return self.client.post(path, json=form)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.end(signal.SIGKILL)
