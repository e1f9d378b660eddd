"""The service in this process: its parts, its listeners, its end. Several processes are `run.workers`' business.

The rule: SIGTERM and SIGINT end it within `bounds.stop_within`. It takes no new connection from then on, finishes
what it has begun, closes the store; a second signal ends it at once. SIGHUP reloads.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from msgspec.structs import replace

from capline.limiter.aio import AsyncLimiter
from capline.model.errors import NoStoreError
from capline.model.policy import Policy
from capline.service import configuration, segments
from capline.service.access.guard import Guard
from capline.service.access.log import AccessLog
from capline.service.access.newcomers import NAMESPACE, POLICY, Newcomers
from capline.service.access.tokens import TokenFile
from capline.service.access.traces import Traces
from capline.service.api import routes
from capline.service.check import check_route
from capline.service.envoy.files import load
from capline.service.envoy.messages import check_grpc_parts
from capline.service.envoy.settings import EnvoySettings
from capline.service.http import App, Observer, Route
from capline.service.metrics import Metrics
from capline.service.openapi import described
from capline.service.probes import probes
from capline.service.run.listen import Listener
from capline.service.run.reload import Followed, follow
from capline.service.run.settings import Settings
from capline.service.run.tls import renewed, tls_context
from capline.service.servers import watch_servers
from capline.service.spoe import spoe_server

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Coroutine, Mapping

    from capline.limiter.segments import SegmentSource
    from capline.service.run.settings import Tls

log = logging.getLogger("capline.service")

__all__ = ["ADMIN", "PUBLIC", "Parts", "Settings", "check", "open_parts", "serve_here"]

PUBLIC, ADMIN = "http", "admin"
"""The listeners, by their section in the settings. A process has one of them or both."""

_LOCAL = ("memory:", "lmdb:")
"""Stores of this machine, which answer at once."""


@dataclass(slots=True)
class Parts:
    """What is served: `public` and `admin` are routes, beside the probes and the metrics.

    `followed` is looked at every second and on SIGHUP; `beside` runs for as long as the listeners (another protocol's
    server, say) and is cancelled at the end; `stack` closes everything.
    """

    limiter: AsyncLimiter
    public: dict[str, Route]
    admin: dict[str, Route]
    segments: SegmentSource | None = None
    followed: list[Followed] = field(default_factory=list[Followed])
    beside: list[Callable[[], Coroutine[object, object, None]]] = field(
        default_factory=list["Callable[[], Coroutine[object, object, None]]"]
    )
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)


async def open_parts(
    settings: Settings, metrics: Metrics, *, create: bool = True, answers: bool = True, guard: Guard | None = None
) -> Parts:
    """Open all that the settings name; raises what is wrong. Where a new part of the service is joined to it.

    Only a process that `answers` decisions listens for Envoy, with the `guard` before it, and HAProxy.
    """
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(segments.opened(settings.segments))
        options: Any = {
            "on_store_error": settings.on_store_error,
            "observers": [metrics.observer],
            "segments": source,
            "create": create,
        }
        if settings.policies is not None:
            limiter = AsyncLimiter.from_file(Path(settings.policies), settings.store, config=settings.config, **options)
        else:
            limiter = AsyncLimiter.from_config(settings.config or "", settings.store, **options)
        stack.push_async_callback(limiter.close)
        newcomers = None
        if settings.bounds.new_subjects:
            bound = Policy(POLICY, [f"{settings.bounds.new_subjects}/minute"])
            counting = AsyncLimiter(settings.store, [bound], namespace=NAMESPACE, create=create)
            stack.push_async_callback(counting.close)
            newcomers = Newcomers(counting)
        public = routes(limiter, settings.bounds.batch_rows, newcomers) | segments.routes(source)
        public |= check_route(limiter)
        parts = Parts(limiter, public, {}, source)
        if answers:
            await _other_protocols(parts, settings, metrics, guard, stack)
        if settings.policies is not None:
            parts.followed.append(Followed("policies", limiter.reload))
        metrics.add(limiter, source)
        parts.stack = stack.pop_all()
    return parts


async def _other_protocols(
    parts: Parts, settings: Settings, metrics: Metrics, guard: Guard | None, stack: AsyncExitStack
) -> None:
    """Listen for Envoy and HAProxy where the settings say so, and join what comes with it."""
    limiter = parts.limiter
    if settings.spoe is not None:
        port = await stack.enter_async_context(spoe_server(limiter, *settings.spoe))
        log.info("HAProxy is answered by SPOE at port %d", port)
    grpc = settings.grpc
    if grpc is None:
        return
    check_grpc_parts()
    from capline.service.envoy.json import json_route  # noqa: PLC0415 - an extra of its own
    from capline.service.envoy.server import envoy_server  # noqa: PLC0415 - as above

    chosen = EnvoySettings(str(grpc.listen), tuple(map(Path, grpc.envoy)), grpc.merge_domains, tls=grpc.tls)
    envoy = await stack.enter_async_context(envoy_server(limiter, chosen, metrics.figures, guard))
    log.info("Envoy is answered by gRPC at port %d", envoy.port)
    if envoy.certificate is not None:
        parts.followed.append(Followed("grpc.tls", envoy.certificate.reload))
    parts.public |= json_route(envoy.ratelimit)


def check(settings: Settings) -> int:
    """Look whether it could start, and make no store; the number of policies. Raises what is wrong."""

    async def opened() -> int:
        metrics = Metrics()
        try:
            parts = await open_parts(settings, metrics, create=False, answers=False)
        except NoStoreError:
            in_memory = replace(settings, store="memory://")
            parts = await open_parts(in_memory, Metrics(), answers=False)
        async with parts.stack:
            return len(parts.limiter.policies)

    if settings.segments is not None:
        settings = replace(settings, segments=segments.check_address(settings.segments))
    if settings.config is not None:
        settings = replace(settings, config=configuration.check_address(settings.config))
    if settings.grpc is not None:
        check_grpc_parts()
        load(*map(Path, settings.grpc.envoy), merge_domains=settings.grpc.merge_domains)
    if settings.tokens is not None:
        TokenFile(settings.tokens)
    for tls in (settings.http.tls, settings.admin.tls, settings.grpc and settings.grpc.tls):
        if tls is not None:
            tls_context(tls)
    return asyncio.run(opened())


def serve_here(
    settings: Settings,
    sockets: Mapping[str, socket.socket],
    started: Callable[[], object],
    lifeline: int | None = None,
) -> None:
    """Serve on these sockets, by the name of their listener, until a signal; `started` is called once it listens.

    A `lifeline` is the end of a pipe: it ends too when the other end is closed, and SIGINT is not its own business.
    Raises `CaplineError` where it cannot start: bad policies, an embedded store that is damaged. A server that is
    away is no reason not to start: `/readyz` says so, and decisions are answered once it is back.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, sockets, started, lifeline))


async def _serve(
    settings: Settings, sockets: Mapping[str, socket.socket], started: Callable[[], object], lifeline: int | None
) -> None:
    metrics = Metrics("+".join(sockets))
    tokens = None if settings.tokens is None else TokenFile(settings.tokens)
    guard = None if tokens is None else Guard(tokens)
    parts = await open_parts(settings, metrics, answers=PUBLIC in sockets, guard=guard)
    async with parts.stack:
        known = probes(parts.limiter, parts.segments)
        of = {PUBLIC: described(parts.public | known), ADMIN: parts.admin | known | metrics.routes()}
        if tokens is not None:
            parts.followed.append(Followed("tokens", tokens.reload))
        observers: tuple[Observer, ...] = ()
        if settings.observers.access_log is not None:
            access_log = AccessLog(settings.observers)
            parts.followed.append(Followed("access_log", access_log.reopen))
            observers += (access_log,)
        if settings.observers.traces:
            observers += (Traces(),)
        tls = {PUBLIC: settings.http.tls, ADMIN: settings.admin.tls}
        listeners: dict[str, Listener] = {}
        for name in sockets:
            named = tls[name]
            context = None if named is None else tls_context(named)
            if named is not None and context is not None:
                parts.followed.append(Followed(f"{name}.tls", renewed(named, partial(_use, named, context))))
            public = name == PUBLIC
            app = App(
                of[name],
                settings.bounds,
                observers if public else (),
                guard,
                settings.http.trusted_proxies,
                metrics.answered if public else None,
            )
            listeners[name] = Listener(
                app, settings.bounds, context, waits=not settings.store.lower().startswith(_LOCAL)
            )
        reload_now = asyncio.Event()
        _on_signals(list(listeners.values()), reload_now, lifeline)
        async with asyncio.TaskGroup() as beside:
            tasks = [
                beside.create_task(follow(parts.followed, metrics, reload_now)),
                beside.create_task(metrics.watch(parts.limiter)),
                beside.create_task(watch_servers(parts.limiter, metrics.servers)),
            ]
            if PUBLIC in sockets:
                tasks += [beside.create_task(one()) for one in parts.beside]
            async with asyncio.TaskGroup() as group:
                for name, listener in listeners.items():
                    group.create_task(listener.serve([sockets[name]]))
                for listener in listeners.values():
                    await listener.listening.wait()
                started()
            for task in tasks:
                task.cancel()


def _use(tls: Tls, context: ssl.SSLContext) -> None:
    """New connections get the renewed certificate; a client_ca is trusted beside the one before it."""
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)


def _on_signals(listeners: list[Listener], reload_now: asyncio.Event, lifeline: int | None) -> None:
    def stop() -> None:
        for listener in listeners:
            listener.force_exit = listener.should_exit
            listener.should_exit = True

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGHUP, reload_now.set)
    if lifeline is None:
        loop.add_signal_handler(signal.SIGINT, stop)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ended() -> None:
        loop.remove_reader(lifeline)
        stop()

    loop.add_reader(lifeline, ended)
