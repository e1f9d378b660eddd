"""`capline serve`: decisions over HTTP, for programs in any language; it runs until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.common import examples, note, out
from capline.limiter.limiter import DEFAULT_URL
from capline.service.parts import check_service_parts

if TYPE_CHECKING:
    from capline.service.server import Address

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "serve",
        epilog=examples(
            "capline serve --policies policies.yaml",
            "capline serve --store redis://127.0.0.1:6379/0 --listen 127.0.0.1:9000 --admin 127.0.0.1:9001",
            "capline serve --config-store lmdb://.capline/store",
            "capline serve --check",
        ),
    )(serve)


def serve(
    policies: Annotated[
        Path | None,
        typer.Option(
            "--policies",
            "-p",
            envvar="CAPLINE_POLICIES",
            help="The policy file; policies.yaml unless said, or the policies of --config-store.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[str, typer.Option("--store", "-s", envvar="CAPLINE_STORE", help="The store's URL.")] = DEFAULT_URL,
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", envvar="CAPLINE_HTTP_LISTEN", help="Where decisions are asked."),
    ] = "127.0.0.1:8080",
    admin: Annotated[
        str,
        typer.Option("--admin", metavar="HOST:PORT", envvar="CAPLINE_ADMIN_LISTEN", help="Where metrics are read."),
    ] = "127.0.0.1:8081",
    on_store_error: Annotated[
        str, typer.Option("--on-store-error", help="In an outage: raise (answer 503), allow or deny.")
    ] = "raise",
    config_store: Annotated[
        str | None,
        typer.Option(
            "--config-store",
            metavar="URL",
            envvar="CAPLINE_CONFIG_STORE",
            help="A configuration store: policies and overrides that change while it runs.",
            show_default=False,
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Look whether it could start, and exit.")] = False,
) -> None:
    """Serve decisions over HTTP on this machine; docs/service.md has the paths.

    Ctrl-C or SIGTERM ends it within 10 seconds, with what is under way finished.
    """
    check_service_parts()
    from capline.service import server  # noqa: PLC0415 - an extra, and `--help` stays instant

    settings = server.Settings(
        policies,
        store,
        server.parse_address(listen, "--listen"),
        server.parse_address(admin, "--admin"),
        on_store_error,
        config_store,
    )
    if check:
        count = server.check(settings)
        out.print(
            f"good: {count} {'policy' if count == 1 else 'policies'} of {policies or config_store or 'policies.yaml'}",
            markup=False,
        )
        return
    server.serve(settings, _say_started)


def _say_started(public: Address, private: Address) -> None:
    note.print(f"decisions at http://{public}, metrics at http://{private}/metrics; Ctrl-C ends it", markup=False)
    note.print("no token is configured: it listens on loopback only", style="dim", markup=False)
