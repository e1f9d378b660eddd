"""A real Chromium that a test drives, by the protocol of its own developer tools."""

import base64
import itertools
import json
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from tests.kit.server import soon
from websockets.sync.client import connect

WITHIN_S = 90
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-port=0"),
)


def browser() -> str:
    """Where it is; fails the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.fail("no browser for this test; as root `make test` installs it, else type: sudo apt-get install chromium")


class Chromium:
    """One page of it; `notes` are errors of scripts and what its content policy forbade."""

    def __init__(self, folder: Path, *, width: int = 1280, dark: bool = False, script: bool = True) -> None:
        words = [browser(), *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._stack = ExitStack()
        self._stack.callback(self._end)
        with ExitStack() as failed:  # to open it: then it does not stay
            failed.callback(self._stack.close)
            self._open(folder, width=width, dark=dark, script=script)
            failed.pop_all()

    def _open(self, folder: Path, *, width: int, dark: bool, script: bool) -> None:
        told = folder / "DevToolsActivePort"
        assert soon(lambda: told.exists() and told.read_text().count("\n") > 0, WITHIN_S)
        port = told.read_text().split("\n")[0]
        pages = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False, timeout=WITHIN_S).json()
        (page,) = (page for page in pages if page["type"] == "page")
        self._socket = self._stack.enter_context(connect(page["webSocketDebuggerUrl"], max_size=None, proxy=None))
        self._numbers = itertools.count(1)
        self.notes: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Emulation.setScriptExecutionDisabled", value=not script)

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            told = self._heard()
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]

    def _heard(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._socket.recv(WITHIN_S))
        if told.get("method") == "Runtime.exceptionThrown":
            self.notes.append(str(told["params"]))
        if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["source"] in ("security", "javascript"):
            self.notes.append(told["params"]["entry"]["text"])
        return told

    def go(self, url: str) -> None:
        """Open a page, and wait until it is there."""
        self.ask("Page.navigate", url=url)
        self._loaded()

    def _loaded(self) -> None:
        while self._heard().get("method") != "Page.loadEventFired":
            pass

    def told(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def text(self) -> str:
        """What is read on the page."""
        return self.told("document.body.innerText")

    def fill(self, selector: str, text: str) -> None:
        """Type into a field."""
        assert self.told(f"(document.querySelector({json.dumps(selector)})?.focus(), true)")
        self.ask("Input.insertText", text=text)

    def attach(self, selector: str, file: Path) -> None:
        """Choose a file in a field."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def press(self, selector: str) -> None:
        """Press a button that leads to another page."""
        assert self.told(f"!!document.querySelector({json.dumps(selector)})"), selector
        self.ask("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)}).click()")
        self._loaded()

    def picture(self) -> bytes:
        """The whole page as a PNG."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
