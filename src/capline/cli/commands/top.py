"""`capline top`: what a service decides and refuses now, in a terminal; the console's pages as its API gives them."""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from capline.cli.input.campaigns import TokenFileOption
from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, out

app = Commands()

ADMIN = "http://127.0.0.1:8081"
_LEAST_S, _LONGEST_S = 0.5, 3600.0


@app.answers("capline top", "capline top --subject 42 --once", "capline top https://admin.example.org --once --json")
def top(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="The admin address of a service.")] = ADMIN,
    subject: Annotated[str | None, typer.Option(metavar="ID", help="This subject too, under all policies.")] = None,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=_LEAST_S, max=_LONGEST_S, help="How often.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    token_file: TokenFileOption = None,
    *,
    json: bool,
) -> None:
    """Show what a service decides and refuses, by policy and limit, with its store and campaigns; Ctrl-C ends it."""
    from rich.live import Live

    from capline.cli.input.served import exchange_of
    from capline.cli.render.top import screen
    from capline.limiter.steps import run
    from capline.model.errors import StoreUnavailableError, StoreUnknownError
    from capline.store.redis.io.url import safe_url

    exchange = exchange_of(url, token_file)

    def ask(page: str, **query: str) -> Any:
        return run(exchange.ask("GET", f"/console{page}?{urlencode(query)}".rstrip("?"), again=True))

    def look() -> dict[str, Any]:
        seen = dict(ask("", over="5m"), campaigns=ask("/campaigns").get("campaigns"), away="")
        seen["limited"] = ask("/limited")["policies"]
        return seen if subject is None else seen | {"subject": ask("/subject", id=subject)}

    def show(seen: dict[str, Any]) -> None:
        if live is None:
            Answer(seen, lambda: out.print(screen(seen, where))).show(json=json)
        else:
            live.update(screen(seen, where), refresh=True)

    where = safe_url(url)
    with closing(exchange), ExitStack() as stack:
        seen, live = look(), None
        if not once and not json and out.is_terminal:
            live = stack.enter_context(Live(console=out, screen=True, auto_refresh=False))
        show(seen)
        while not once:
            time.sleep(every)
            try:
                seen = look()
            except (StoreUnavailableError, StoreUnknownError) as error:
                seen["away"] = str(error)  # what was seen last stays, with when that was
            show(seen)
