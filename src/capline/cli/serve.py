"""`capline serve`: decisions over HTTP, for programs in any language; it runs until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path
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
            "capline serve --check",
        ),
    )(serve)


def serve(
    policies: Annotated[
        Path, typer.Option("--policies", "-p", envvar="CAPLINE_POLICIES", help="The policy file.")
    ] = Path("policies.yaml"),
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
    grpc: Annotated[
        str, typer.Option("--grpc", metavar="HOST:PORT", envvar="CAPLINE_GRPC_LISTEN", help="Where Envoy asks.")
    ] = "127.0.0.1:8082",
    envoy: Annotated[
        list[Path] | None,
        typer.Option("--envoy", envvar="CAPLINE_GRPC_ENVOY", help="YAML of envoyproxy/ratelimit: a file or a folder."),
    ] = None,
    spoe: Annotated[
        str | None, typer.Option("--spoe", metavar="HOST:PORT", envvar="CAPLINE_SPOE", help="Where HAProxy asks.")
    ] = None,
    merge_domains: Annotated[
        bool,
        typer.Option("--merge-domains", envvar="MERGE_DOMAIN_CONFIG", help="Several of these files may have a domain."),
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Look whether it could start, and exit.")] = False,
) -> None:
    """Serve decisions over HTTP on this machine; docs/service.md has the paths.

    Ctrl-C or SIGTERM ends it within 10 seconds, with what is under way finished.
    """
    check_service_parts()
    from capline.service import server  # noqa: PLC0415 - an extra, and `--help` stays instant
    from capline.service.envoy.settings import EnvoySettings  # noqa: PLC0415 - as above

    if envoy:
        from capline.service.envoy.messages import check_grpc_parts  # noqa: PLC0415 - an extra of its own

        check_grpc_parts()
    at = None if not envoy else str(server.parse_address(grpc, "--grpc"))
    settings = server.Settings(
        policies,
        store,
        server.parse_address(listen, "--listen"),
        server.parse_address(admin, "--admin"),
        on_store_error,
        None if at is None else EnvoySettings(at, tuple(envoy or ()), merge_domains),
        None if spoe is None else server.parse_address(spoe, "--spoe"),
    )
    if check:
        count = server.check(settings)
        out.print(f"good: {count} {'policy' if count == 1 else 'policies'} of {policies}", markup=False)
        return
    server.serve(settings, _say_started)


def _say_started(public: Address, private: Address, grpc_port: int) -> None:
    note.print(f"decisions at http://{public}, metrics at http://{private}/metrics; Ctrl-C ends it", markup=False)
    if grpc_port:
        note.print(f"Envoy is answered by gRPC at port {grpc_port}", markup=False)
    note.print("no token is configured: it listens on loopback only", style="dim", markup=False)
