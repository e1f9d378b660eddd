"""A real gateway from a configuration of docs/howto/gateways, on free ports before a provider and a running service."""

import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx
import pytest
from tests.kit.program import WITHIN_S, ended
from tests.kit.server import soon

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "gateways"


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def program(name: str) -> str:
    """The path of a program; skips the test where it is missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed; tools/system-packages.txt names its package")
    return found


class Gateway:
    """`command` with the file `name` of the docs, or this `text`, its addresses replaced; `url` is where clients ask.

    `listen` is how the file writes where it listens, at port 8000.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        command: list[str],
        addresses: Mapping[str, str],
        listen: str = "127.0.0.1:8000",
        text: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        text = (DOCS / name).read_text(encoding="utf-8") if text is None else text
        for shown, real in {listen: listen.replace("8000", str(port)), **addresses}.items():
            assert shown in text, f"{name} does not say {shown}"
            text = text.replace(shown, urlsplit(real).netloc or real)
        (folder / name).write_text(text, encoding="utf-8")
        with (folder / "gateway.log").open("wb") as said:
            own = {"HOME": str(folder), **(environment or {})}
            self._process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=own)
        self.client = httpx.Client(base_url=self.url, timeout=WITHIN_S, trust_env=False)
        try:
            assert soon(lambda: self._process.poll() is not None or _listens(port), WITHIN_S)
            assert self._process.poll() is None, (folder / "gateway.log").read_text(encoding="utf-8")
        except BaseException:
            self.__exit__()
            raise

    def get(self, path: str = "/", **headers: str) -> httpx.Response:
        """Ask as a client."""
        return self.client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def tell(self, signum: int) -> None:
        """Send it a signal."""
        self._process.send_signal(signum)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        ended(self._process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), WITHIN_S).close()
    except OSError:
        return False
    return True
