"""`capline serve`: decisions over HTTP, for programs in any language, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, counted, note
from capline.service.parts import check_service_parts

if TYPE_CHECKING:
    from capline.service.settings.values import Address, Settings

app = Commands()


@app.verb(
    "capline serve --policies policies.yaml",
    "capline serve --segments s3://bucket/segments",
    "capline serve --config-store lmdb://.capline/configuration",
    "capline serve --config capline.yaml --workers 4",
    "capline serve --config capline.yaml --check",
    "capline serve --config capline.yaml --check --json",
)
def serve(
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "-c", envvar="CAPLINE_CONFIG_FILE", help="A file of settings, see docs/reference/service.md."
        ),
    ] = None,
    policies: Annotated[str | None, typer.Option("--policies", "-p", help="The policy file: policies.yaml.")] = None,
    store: Annotated[str | None, typer.Option("--store", "-s", help="The store's URL: lmdb://.capline/store.")] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address for decisions: 127.0.0.1:8080.")
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address for metrics: 127.0.0.1:8081.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes, all on one port.")] = None,
    tokens: Annotated[str | None, typer.Option(help="The tokens file, made by capline token create.")] = None,
    on_store_error: Annotated[str | None, typer.Option(help="In an outage: raise (answer 503), allow or deny.")] = None,
    segments: Annotated[
        str | None,
        typer.Option(metavar="DIR|URL", help="Look up each subject's segment here: a snapshot or a publication."),
    ] = None,
    envoy: Annotated[
        list[str] | None,
        typer.Option(help="A configuration of envoyproxy/ratelimit: a YAML file, or a folder of them."),
    ] = None,
    grpc: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The address for Envoy: 127.0.0.1:8082, unix:PATH.")
    ] = None,
    merge_domains: Annotated[bool, typer.Option("--merge-domains", help="Envoy's files may share a domain.")] = False,
    spoe: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The address for HAProxy.")] = None,
    config_store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Policies and overrides that may change meanwhile, see capline config."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", metavar="URL", help="Answer for the campaigns in this store, too.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check whether it could start, and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Answer --check in JSON, for machines.")] = False,
) -> None:
    """Serve decisions over HTTP on this machine; docs/reference/service.md has the paths and all settings.

    An option comes before the environment (CAPLINE_STORE and so on), and that before the file. Ctrl-C finishes the
    requests under way and ends within 10 seconds, SIGTERM too, 5 seconds later (`drain`); SIGHUP reloads what changed.
    """
    check_service_parts()
    from capline.service.run.file import read_settings  # noqa: PLC0415 - an extra, and `--help` stays instant

    typed = {
        "policies": ("--policies", policies),
        "store": ("--store", store),
        "http.listen": ("--listen", listen),
        "admin.listen": ("--admin", admin),
        "http.workers": ("--workers", None if workers is None else str(workers)),
        "tokens": ("--tokens", tokens),
        "on_store_error": ("--on-store-error", on_store_error),
        "segments": ("--segments", segments),
        "config": ("--config-store", config_store),
        "queue": ("--queue", queue),
        "grpc.envoy": ("--envoy", tuple(envoy) if envoy else None),
        "grpc.listen": ("--grpc", grpc),
        "grpc.merge_domains": ("--merge-domains", "true" if merge_domains else None),
        "spoe.listen": ("--spoe", spoe),
    }
    options = {key: (name, value) for key, (name, value) in typed.items() if value is not None}
    settings = read_settings(None if config is None else Path(config), os.environ, options)
    warnings = settings.warnings()
    for warning in warnings:
        note.print(f"warning: {warning}", markup=False, soft_wrap=True)
    if check:
        from capline.service.run.server import check as checked  # noqa: PLC0415 - as above

        count = checked(settings)
        found = f"{counted(count, 'policy', 'policies')} of {settings.policies}"
        if settings.policies is None:
            found = "the policies are in the configuration store, which is read at the start"
            if settings.config is None:
                found = "the limits are those for Envoy; there are no policies"
        facts = {"good": True, "policies": settings.policies, "count": count}
        Answer(facts | {"warnings": warnings} if warnings else facts, f"good: {found}").show(json=json)
        return
    from capline.service.run.start import serve as serve_settings  # noqa: PLC0415 - as above

    serve_settings(settings, partial(_say_started, settings), partial(note.print, markup=False))


def _say_started(settings: Settings, public: Address, private: Address) -> None:
    decisions, metrics = ("https" if listener.tls else "http" for listener in (settings.http, settings.admin))
    admin = f"{metrics}://{private}"
    note.print(
        f"decisions at {decisions}://{public}, metrics at {admin}/metrics, console at {admin}/console; Ctrl-C ends it",
        markup=False,
        soft_wrap=True,
    )
    if settings.tokens is None:
        note.print("no token is configured: it listens on loopback only", style="dim", markup=False)
