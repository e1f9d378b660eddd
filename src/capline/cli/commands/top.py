"""`capline top`: what is decided and refused now, in a terminal.

It shows a service's pages as its API gives them; or, without a service, what a store tells, and what services
counted there.
"""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from capline.cli.input.campaigns import TokenFileOption
from capline.cli.input.declare import Commands
from capline.cli.input.options import DEFAULT_POLICIES, ConfigOption, PoliciesOption, Source, check_store
from capline.cli.render.console import Answer, out
from capline.model.subject import parse_subject, subject_text

app = Commands()

ADMIN = "http://127.0.0.1:8081"
_LEAST_S, _LONGEST_S = 0.5, 3600.0


@app.answers(
    "capline top",
    "capline top --subject 42 --once",
    "capline top https://admin.example.org --once --json",
    "capline top --store redis://127.0.0.1:6379/0 --subject 42",
)
def top(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="The admin address of a service.")] = ADMIN,
    subject: Annotated[str | None, typer.Option(metavar="ID", help="This subject too, under all policies.")] = None,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=_LEAST_S, max=_LONGEST_S, help="How often.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    token_file: TokenFileOption = None,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Ask this store itself, without a service; --subject by --policies."),
    ] = None,
    policies: PoliciesOption = DEFAULT_POLICIES,
    config: ConfigOption = None,
    *,
    json: bool,
) -> None:
    """Show what is decided and refused, by policy and limit, with store and campaigns; Ctrl-C ends it."""
    from rich.live import Live

    from capline.cli.render.top import screen
    from capline.model.errors import InvalidValueError, StoreError
    from capline.store.redis.io.url import safe_url

    if store is not None and url != ADMIN:
        raise InvalidValueError("give the address of a service, or --store, not both")

    def show(seen: dict[str, Any]) -> None:
        if live is None:
            Answer(seen, lambda: out.print(screen(seen, where))).show(json=json)
        else:
            live.update(screen(seen, where), refresh=True)

    where = safe_url(url if store is None else store)
    with ExitStack() as stack:
        if store is None:
            look = _service(url, subject, token_file, stack)
        else:
            look = _store(Source(policies=policies, store=store, config=config), subject, stack)
        seen, live = look(), None
        if not once and not json and out.is_terminal:
            live = stack.enter_context(Live(console=out, screen=True, auto_refresh=False))
        show(seen)
        while not once:
            time.sleep(every)
            try:
                seen = look()
            except StoreError as error:
                seen["away"] = str(error)  # what was seen last stays, with when that was
            show(seen)


def _service(url: str, subject: str | None, token_file: Path | None, stack: ExitStack) -> Callable[[], dict[str, Any]]:
    from capline.cli.input.served import exchange_of
    from capline.limiter.steps import run

    exchange = stack.enter_context(closing(exchange_of(url, token_file)))

    def ask(page: str, **query: str) -> Any:
        return run(exchange.ask("GET", f"/console{page}?{urlencode(query)}".rstrip("?"), again=True))

    def look() -> dict[str, Any]:
        seen = dict(ask("", over="5m"), campaigns=ask("/campaigns").get("campaigns"), away="")
        seen["limited"] = ask("/limited")["policies"]
        return seen if subject is None else seen | {"subject": ask("/subject", id=subject)}

    return look


def _store(source: Source, word: str | None, stack: ExitStack) -> Callable[[], dict[str, Any]]:
    """What a store tells: figures, what services counted in the last hour, one subject under the policies."""
    from capline.config.hours import open_hours
    from capline.limiter.limiter import Limiter
    from capline.model.errors import NoStoreError
    from capline.observe.servers import ServerReports
    from capline.service.record.counted import HOUR, SPANS, joined

    subject = None if word is None else parse_subject(word)
    check_store(source.store)
    opened = Limiter(source.store, (), create=False) if subject is None else source.limiter()
    limiter = stack.enter_context(opened)
    try:
        hours = open_hours(source.store, 0, create=False)
    except NoStoreError:
        hours = open_hours("memory://", 0)  # no service counted anything there
    stack.callback(hours.close)
    servers = ServerReports()

    def look() -> dict[str, Any]:
        at = time.time()
        minute = int(at // 60)
        of = [minute // HOUR - 1, minute // HOUR]
        rows = [(hour, row) for hour, written in zip(of, hours.get(of), strict=True) for row in written.values()]
        counted = joined(rows, SPANS["hour"], minute)
        seen: dict[str, Any] = {
            "at": at,
            "away": "",
            "figures": limiter.stats(),
            "servers": servers.reports(limiter.servers()),
            "policies": counted.by_policy(),
            "policies_over_s": max(60.0, at - 60.0 * (counted.begin if counted.first is None else counted.first)),
        }
        if subject is None:
            return seen
        found: list[dict[str, Any]] = []
        for policy in limiter.policies:
            why = limiter.explain(policy, subject)
            if why.hits:
                found.append(why.as_dict() | {"refuses": not why.decision.allowed})
        return seen | {"subject": {"id": subject_text(subject), "policies": found}}

    return look
