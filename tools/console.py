"""Takes pictures of the console's pages:  python -m tools.console FOLDER  (or --site, for docs/howto/console.md)

Each page of a real service on a real Redis: with data, with none, and with the store away; as wide as a phone and as a
desk, light and dark; and as it is printed. To be looked at whenever a template or the CSS changes. `--site` takes
those few that the site shows, into docs/_static. Needs redis-server and chromium, as the tests do.
"""

from __future__ import annotations

import argparse
import base64
import math
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.kit import servers
from tests.kit.chromium import Chromium
from tests.kit.program import Program
from tests.kit.segments import make
from tests.kit.server import Server, soon
from tests.kit.serving import WITHIN_S, Serving

from capline import Configuration, Policy
from capline.config.hours import open_hours
from capline.service.access.tokens import TokenFile
from capline.service.record.counted import packed

STATIC = Path(__file__).parents[1] / "docs" / "_static"
PHONE, DESK = 390, 1280
PAGES = {
    "overview": "",
    "week": "?over=week",
    "subject": "/subject?id=42",
    "nobody": "/subject?id=nobody",
    "find": "/subject",
    "campaigns": "/campaigns",
    "campaign": "/campaign?name=summer-sale",
    "scheduled": "/campaign?name=newsletter",
    "response": "/response?name=summer-sale",
    "compose": "/campaigns/new",
    "forecast": "/campaigns/new?message=push&campaign=autumn&audience=users.csv&holdout=5%25&priority=60",
    "faults": "/campaigns/new?message=push&campaign=a+b&audience=users.csv&holdout=x&rate=fast",
    "policies": "/policies",
    "policy": "/policy?name=promo",
    "suggest": "/suggest?name=promo&windows=minute,+hour&refuse_at_most=20%25&of=events",
    "try": "/try?name=promo&limits=1/day&by_segment=vip:+5/day,+20/week&channels=push:+1/hour",
    "limited": "/limited",
    "segments": "/segments?left=active&right=vip",
    "audit": "/audit",
    "missing": "/policy?name=none",
    "unknown": "/none",
    "mistyped": "/try?name=promo&limits=2/moon&by_segment=vip",
    "waiting": "/campaigns/waiting",
}
SITE = {"console-subject": "subject", "console-campaign": "campaign", "console-try": "try"}
"""Files of docs/_static, and the pages that they show."""
SETTINGS = """\
store: {store}
config: lmdb://configuration
segments: {segments}
tokens: tokens.json
queue: sqlite://queue.sqlite
audiences: uploads
replies: replies
record: {{keep: 3600}}
messages:
  push: {{policies: policies.yaml, policy: promo, store: "{store}", segments: {segments}, sender: {{file: out/}}}}
"""
FILE = "policies:\n  promo: {limits: [3/day, 10/week], by_segment: {vip: [5/day, 20/week]}}\n"
VIP = {"vip": ["5/day", "20/week"]}
HOURS = 30


def prepare(folder: Path, store: str) -> dict[str, str]:
    """What a service begins with; its tokens."""
    segments = make(folder, "2026-11-21", active=range(1_000, 40_000), vip=range(0, 1_000, 2))
    (folder / "capline.yaml").write_text(SETTINGS.format(store=store, segments=segments.name), encoding="utf-8")
    (folder / "policies.yaml").write_text(FILE, encoding="utf-8")
    (folder / "users.csv").write_text("\n".join(["id", *map(str, range(2_000))]), encoding="utf-8")
    with Configuration(f"lmdb://{folder}/configuration") as configuration:
        configuration.set_policies([Policy("promo", ["5/day"], by_segment={"vip": ["9/day"]})], who="ann")
        policies = [
            Policy(
                "promo", ["3/day", "10/week"], by_segment={"vip": ["5/day", "20/week"]}, channels={"push": ["1/hour"]}
            ),
            Policy("employees-api", ["100/minute", "2000/day"]),
            Policy("payments", ["50/second"], algorithm="gcra"),
            Policy("password-reset-mails-to-external-partners", ["1/10 minutes", "5/day"]),
        ]
        configuration.set_policies(policies, who="ann")
        configuration.override("promo", 42, ["4/day", "10/week"], who="support")
        configuration.override("promo", "partner:7", ["50/day"], who="ann")
    file = TokenFile(folder / "tokens.json", create=True)
    return {name: file.create(name, (name,)) for name in ("admin", "read")}


def play(folder: Path, service: Serving, store: str) -> None:
    """Traffic of some seconds, campaigns in several states, and what was counted in the hours before."""
    for subject in range(60):
        for _ in range(1 + subject % 6):
            service.ask("/v1/decide", policy="promo", subject=42 if subject % 9 == 0 else subject)
    for place in range(160):
        service.ask("/v1/decide", policy="employees-api", subject=f"employee:{place % 3 and 7}")
        service.ask("/v1/decide", policy="payments", subject="adyen")
    for _ in range(3):
        service.ask("/v1/decide", policy="password-reset-mails-to-external-partners", subject="partner:7")
    file = folder / "users.csv"
    ran(Program(folder, "-m", "capline.cli", "campaign", "upload", file.name, "--server", with_token(service)))
    common = {
        "audience": {"csv": file.name},
        "policies": "policies.yaml",
        "policy": "promo",
        "holdout": "5%",
        "store": store,
    }
    segments = next(folder.glob("snapshot-*")).name
    for name, more in (
        ("summer-sale", {"batch": 500, "segments": segments}),
        ("winter-sale", {"batch": 20}),
        ("newsletter", {"send_at": "2099-07-01T16:00:00Z", "until": "2099-07-01T20:00:00Z", "priority": 70}),
    ):
        form = {"campaign": name, "sender": {"file": f"out-{name}"}, **common, **more}
        answer = service.ask("/v1/campaigns", **form)
        if answer.is_error:
            raise RuntimeError(answer.text)
        if name == "summer-sale":
            ran(Program(folder, *WORKER, "--until-idle"))
    worker = Program(folder, *WORKER)
    soon(lambda: service.client.get("/v1/campaigns/winter-sale").json()["total"]["sent"] > 0, WITHIN_S)
    service.client.post("/v1/campaigns/winter-sale/pause")
    worker.end()
    events = [{"id": user, "event": "bought"} for user in range(1_000, 1_400, 5)]
    told = service.ask("/v1/outcomes", outcomes=events)
    if told.is_error:
        raise RuntimeError(told.text)


def ran(program: Program) -> None:
    """Wait until it has ended; raises where it failed."""
    status = program.process.wait(WITHIN_S)
    program.end()
    if status:
        raise RuntimeError("".join(program.said))


WORKER = ("-m", "capline.cli", "worker", "--queue", "sqlite://queue.sqlite", "--quiet")


def with_token(service: Serving) -> str:
    """The service's address with the admin's token in it."""
    token = service.client.headers["Authorization"].removeprefix("Bearer ")
    return service.url.replace("://", f"://{token}@")


def count_hours(store: str) -> None:
    """Write what a service would have counted in the hours before: more by day than by night."""
    hours = open_hours(store, 7 * 86_400)
    this = int(time.time() // 3600)
    for hour in range(this - HOURS, this + 1):
        until = 60 if hour < this else int(time.time() // 60) % 60
        wave = [0.55 + 0.45 * math.sin((60 * hour + minute) / 230) for minute in range(until)] + [0.0] * (60 - until)
        counts: dict[tuple[str, str, str], list[int]] = {
            ("promo", "", "allowed"): [int(900 * part) for part in wave],
            ("promo", "3/day", "refused"): [int(300 * part * part) for part in wave],
            ("promo", "10/week", "refused"): [int(60 * part) for part in wave],
            ("employees-api", "", "allowed"): [int(500 * part) for part in wave],
            ("employees-api", "100/minute", "refused"): [int(40 * part**3) for part in wave],
            ("payments", "", "allowed"): [int(200 * part) for part in wave],
        }
        hours.put(hour, b"tools.console", packed(counts))
    hours.close()


@contextmanager
def played(folder: Path, *, empty: bool = False) -> Generator[tuple[Serving, Server, str]]:
    """A service with data, or on its own with none; its store, and the token of who looks."""
    with ExitStack() as stack:
        server = stack.enter_context(servers.single("redis"))
        tokens = {"admin": ""}
        if empty:
            (folder / "policies.yaml").write_text("policies:\n  promo: {limits: [3/day]}\n", encoding="utf-8")
            service = stack.enter_context(Serving(folder, "--store", server.url))
        else:
            tokens = prepare(folder, server.url)
            count_hours(server.url)
            service = stack.enter_context(Serving(folder, "--config", "capline.yaml"))
            service.client.headers["Authorization"] = f"Bearer {tokens['admin']}"
            play(folder, service, server.url)
        yield service, server, tokens["admin"]


def look(browser: Chromium, service: Serving, token: str) -> None:
    """Sign in, where there are tokens."""
    browser.go(f"{service.admin}/console")
    if token:
        browser.fill("input[name=secret]", token)
        browser.press("main button")


def take(browser: Chromium, file: Path, width: int) -> None:
    """The whole page, as WebP."""
    size: dict[str, Any] = {"width": width, "deviceScaleFactor": 1, "mobile": False}
    browser.ask("Emulation.setDeviceMetricsOverride", height=400, **size)
    height = browser.told("document.documentElement.scrollHeight")
    browser.ask("Emulation.setDeviceMetricsOverride", height=min(height, 3000), **size)
    kind = file.suffix[1:]
    options = {"quality": 80} if kind == "webp" else {}
    file.write_bytes(base64.b64decode(browser.ask("Page.captureScreenshot", format=kind, **options)["data"]))
    over = browser.told("document.documentElement.scrollWidth")
    if over > width:
        print(f"{file.name}: {over} px wide")


def all_of(folder: Path, service: Serving, token: str, state: str, pages: dict[str, str]) -> None:
    """Each page in each form, into this folder."""
    for dark in (False, True):
        for width in (PHONE, DESK):
            with (
                tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
                Chromium(Path(profile), width=width, dark=dark) as browser,
            ):
                look(browser, service, token)
                for name, path in pages.items():
                    browser.go(f"{service.admin}/console{path}")
                    form = f"{state}-{name}-{'phone' if width == PHONE else 'desk'}-{'dark' if dark else 'light'}"
                    take(browser, folder / f"{form}.png", width)
                if browser.notes:
                    print(state, browser.notes)


def printed(folder: Path, service: Serving, token: str) -> None:
    """Each page as it is printed from a dark screen, without backgrounds, as browsers leave them out."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Chromium(Path(profile), dark=True) as browser,
    ):
        look(browser, service, token)
        for name, path in PAGES.items():
            browser.go(f"{service.admin}/console{path}")
            pdf = browser.ask("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)["data"]
            (folder / f"print-{name}.pdf").write_bytes(base64.b64decode(pdf))


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(prog="python -m tools.console", description="Takes pictures of the console.")
    parser.add_argument("folder", type=Path, nargs="?", help="where all of them go, as PNG")
    parser.add_argument("--site", action="store_true", help="take those that the site shows, into docs/_static")
    options = parser.parse_args()
    if (options.folder is None) is not options.site:
        parser.error("give a folder, or --site")
    with tempfile.TemporaryDirectory() as here, played(Path(here)) as (service, server, token):
        if options.site:
            with Chromium(Path(here) / "profile", width=1000) as browser:
                look(browser, service, token)
                for name, page in SITE.items():
                    browser.go(f"{service.admin}/console{PAGES[page]}")
                    take(browser, STATIC / f"{name}.webp", 1000)
            return
        options.folder.mkdir(parents=True, exist_ok=True)
        all_of(options.folder, service, token, "data", PAGES)
        printed(options.folder, service, token)
        server.kill()
        admin = httpx.Client(base_url=service.admin, trust_env=False, timeout=WITHIN_S)
        json = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        soon(lambda: not admin.get("/console", headers=json).json()["store"]["up"], WITHIN_S)
        all_of(options.folder, service, token, "away", PAGES)
    with tempfile.TemporaryDirectory() as here, played(Path(here), empty=True) as (service, _, token):
        all_of(options.folder, service, token, "empty", {**PAGES, "sign-in": "/sign-in"})


if __name__ == "__main__":
    main()
