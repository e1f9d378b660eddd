"""The service in one process: opens its parts, runs its listeners, shuts down. `run.workers` runs several processes.

The rule: from SIGTERM on it is not ready, and ends each connection with its answer, but goes on for `drain`, until its
balancers have seen that. Then, and on SIGINT at once, it takes no new connections, finishes the requests under way and
closes the store, within `bounds.stop_within`; a second signal ends it at once. SIGHUP reloads.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from msgspec.structs import replace

from capline.config.hours import open_hours
from capline.limiter.aio import AsyncLimiter
from capline.model.errors import NoStoreError
from capline.model.policy import Policy, check_no_replicas
from capline.policy.watch import PolicyWatch
from capline.service.access.guard import Guard
from capline.service.access.log import AccessLog
from capline.service.access.new_subjects import NAMESPACE, POLICY, NewSubjects
from capline.service.access.tokens import TokenFile
from capline.service.access.traces import Traces
from capline.service.envoy.files import Files, followed_files, load
from capline.service.gateways.check import check_route
from capline.service.gateways.spoe import spoe_server
from capline.service.http.app import App, Observer, Reply, Request, Route
from capline.service.http.openapi import described
from capline.service.http.problems import Problem
from capline.service.http.table import routes_of
from capline.service.metrics.registry import Metrics, watch_servers
from capline.service.parts import check_grpc_parts
from capline.service.probes import probes
from capline.service.record import instances
from capline.service.record.kept import Record
from capline.service.record.limiter import RecordingLimiter
from capline.service.run.listen import Listener, grace_s
from capline.service.run.reload import Followed, follow
from capline.service.run.workers import AT_ONCE
from capline.service.settings.last_good import LastGood, last_good_tls
from capline.service.settings.tls import contents, renewable, renewed, tls_context
from capline.service.verbs import configuration, segments
from capline.service.verbs.routes import routes

if TYPE_CHECKING:
    import socket
    import ssl

    from capline.limiter.policies.segments import SegmentSource
    from capline.service.settings.values import Grpc, Settings, Tls

log = logging.getLogger("capline.service")

PUBLIC, ADMIN, SPOE = "http", "admin", "spoe"
"""The sockets, by their section in the settings. A process has PUBLIC or ADMIN or both, and SPOE only with PUBLIC."""

_End = Callable[[float], Awaitable[object]]


@dataclass(slots=True)
class Parts:
    """What is served: `public` are routes, beside the probes and the metrics.

    `followed` is checked for changes every second and on SIGHUP; `draining` are called when the service is told to end,
    `ending` when that begins: each takes no new connections from then on, and ends what it has within these seconds;
    `beside` run as long as it serves; `stack` closes everything.
    """

    limiter: AsyncLimiter
    public: dict[str, Route]
    segments: SegmentSource | None = None
    policies: PolicyWatch | None = None
    followed: list[Followed] = field(default_factory=list[Followed])
    draining: list[Callable[[], Awaitable[object]]] = field(default_factory=list[Callable[[], Awaitable[object]]])
    ending: list[_End] = field(default_factory=list[_End])
    beside: list[Callable[[], Coroutine[Any, Any, None]]] = field(
        default_factory=list[Callable[[], Coroutine[Any, Any, None]]]
    )
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)


async def open_parts(
    settings: Settings, metrics: Metrics, *, create: bool = True, answers: bool = True, guard: Guard | None = None
) -> Parts:
    """Open everything that the settings name; raises what is wrong. A new part of the service is added here.

    Only a process that `answers` decisions listens for Envoy, whose calls pass the `guard`.
    """
    # Before the store, so that a fault of these leaves none behind.
    envoy = None
    if answers and settings.grpc is not None:
        check_grpc_parts()
        envoy = settings.grpc, followed_files(settings.grpc)
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(segments.opened(settings.segments))
        options: Any = {
            "on_store_error": settings.on_store_error,
            "observers": [metrics.observer],
            "segments": source,
            "create": create,
        }
        kind = AsyncLimiter if settings.record is None else RecordingLimiter
        followed: list[Followed] = []
        watch: PolicyWatch | None = None
        if settings.policies is not None:
            path = settings.policies

            def made(kept: Path | None) -> tuple[AsyncLimiter, PolicyWatch]:
                watch = PolicyWatch(path, start=kept and kept.read_bytes(), local=settings.is_local)
                return kind.from_file(watch, settings.store, config=settings.config, **options), watch

            good = LastGood("policies", made, lambda made: made[1].data)
            limiter, watch = good.used
            followed.append(Followed("policies", good.keeping(limiter.reload)))
        elif settings.config is not None:
            limiter = kind.from_config(settings.config, settings.store, **options)
        else:
            limiter = kind(settings.store, **options)
        stack.push_async_callback(limiter.close)
        subject_bound = None
        if settings.bounds.new_subjects:
            bound = Policy(POLICY, [f"{settings.bounds.new_subjects}/minute"])
            counting = AsyncLimiter(settings.store, [bound], namespace=NAMESPACE, create=create)
            stack.push_async_callback(counting.close)
            subject_bound = NewSubjects(counting)
        public = routes(limiter, settings, subject_bound) | segments.routes(source, settings.segments)
        public |= check_route(limiter)
        public |= _campaigns(settings, create=create)
        parts = Parts(limiter, public, source, watch, followed)
        if settings.record is not None and isinstance(limiter, RecordingLimiter):
            record = limiter.record = Record(settings.record)
            stack.callback(record.close)
            parts.beside.append(record.follow)
        if envoy is not None:
            await _envoy(parts, *envoy, metrics, guard, stack)
        metrics.add(limiter, source)
        parts.stack = stack.pop_all()
    return parts


def _campaigns(settings: Settings, *, create: bool) -> dict[str, Route]:
    """The routes of the campaign store, of uploads and of what comes back, as far as there are any."""
    if settings.queue is None:
        return {}
    from capline.service.verbs import campaigns  # noqa: PLC0415 - few services have campaigns

    for name, message in settings.messages.items():
        campaigns.check_message(name, message)
    found = campaigns.campaign_routes(settings.queue, settings.audiences, create=create)
    if settings.replies is not None:
        from capline.service.verbs.outcomes import OutcomeVerbs  # noqa: PLC0415 - as above

        found |= routes_of(OutcomeVerbs(settings.queue, settings.replies, create=create))
    return found


async def _envoy(
    parts: Parts, grpc: Grpc, good: LastGood[Files], metrics: Metrics, guard: Guard | None, stack: AsyncExitStack
) -> None:
    """Listen for Envoy, by these files; add its JSON route and its certificate to the parts."""
    from capline.service.envoy.server import envoy_server  # noqa: PLC0415 - an extra of its own
    from capline.service.envoy.service import json_route  # noqa: PLC0415 - as above

    envoy = await stack.enter_async_context(envoy_server(parts.limiter, grpc, good, metrics.figures, guard))
    log.info("Envoy is answered by gRPC at %s", grpc.listen if grpc.listen.is_unix else f"port {envoy.port}")
    if grpc.modes.shadow_mode:
        log.warning("shadow mode: no request of Envoy is refused")
    parts.followed.append(Followed("grpc.envoy", envoy.reload))
    if envoy.certificate is not None:
        parts.followed.append(Followed("grpc.tls", envoy.certificate.reload))
    parts.draining.append(envoy.drain)
    parts.ending.append(envoy.stop)
    parts.public |= json_route(envoy.ratelimit)


async def _haproxy(parts: Parts, listening: socket.socket) -> None:
    """Answer HAProxy on this socket."""
    log.info("HAProxy is answered by SPOE at port %d", listening.getsockname()[1])
    server = await parts.stack.enter_async_context(spoe_server(parts.limiter, listening))

    async def stop(_within_s: float) -> None:
        server.close()

    parts.ending.append(stop)


def _console(parts: Parts, metrics: Metrics, guard: Guard | None, settings: Settings) -> dict[str, Route]:
    """The console's pages over these parts; what they show is followed beside."""
    from capline.service.console.history import History  # noqa: PLC0415 - as below
    from capline.service.console.pages import Console  # noqa: PLC0415 - a worker has no pages

    hours = open_hours(settings.store, settings.history.keep)
    parts.stack.callback(hours.close)
    console = Console(
        parts.public,
        parts.limiter,
        parts.segments,
        metrics,
        guard,
        history=History(
            metrics, hours, versions=lambda: instances.served(parts.limiter, parts.segments, parts.policies)
        ),
        secure=settings.admin.tls is not None,
        messages=settings.messages,
    )
    parts.beside.append(console.follow)
    return console.routes()


def _page(request: Request, problem: Problem) -> Reply | None:
    """What went wrong as a page, for the console's reader."""
    from capline.service.console.render import problem_page  # noqa: PLC0415 - as above

    return problem_page(request, problem)


def _context(name: str, tls: Tls | None, followed: list[Followed]) -> ssl.SSLContext | None:
    """What this listener speaks TLS by, renewed as its files change; None where it speaks none."""
    if tls is None:
        return None
    files = last_good_tls(f"{name}.tls", tls)
    seen = contents(files.used)  # before it is used: a change meanwhile is one
    context = tls_context(files.used)
    use = renewable(context)
    followed.append(Followed(f"{name}.tls", files.keeping(renewed(tls, lambda newest, _: use(newest), seen))))
    return context


def check(settings: Settings) -> int:
    """Check whether it could start, without creating a store; returns the number of policies. Raises what is wrong."""

    async def opened() -> int:
        metrics = Metrics()
        try:
            parts = await open_parts(settings, metrics, create=False, answers=False)
        except NoStoreError:
            in_memory = replace(settings, store="memory://")
            parts = await open_parts(in_memory, Metrics(), answers=False)
        async with parts.stack:
            for policy in parts.limiter.policies.values() if settings.is_local else ():
                check_no_replicas(policy)
            _check_scopes(tokens, parts.limiter)
            return len(parts.limiter.policies)

    tokens = None if settings.tokens is None else TokenFile(settings.tokens)
    if settings.segments is not None:
        settings = replace(settings, segments=segments.check_address(settings.segments))
    if settings.config is not None:
        settings = replace(settings, config=configuration.check_address(settings.config))
    if settings.grpc is not None:
        check_grpc_parts()
        load(*map(Path, settings.grpc.envoy), merge_domains=settings.grpc.merge_domains)
    for tls in (settings.http.tls, settings.admin.tls, settings.grpc and settings.grpc.tls):
        if tls is not None:
            tls_context(tls)
    return asyncio.run(opened())


def _check_scopes(tokens: TokenFile | None, limiter: AsyncLimiter) -> None:
    """Raise for a token of a policy that is not there; with a configuration store it may come."""
    if tokens is not None and limiter.configuration is None:
        tokens.check_policies(limiter.policies)


def serve_here(
    settings: Settings, sockets: Mapping[str, socket.socket], started: Callable[[], object], lifeline: int | None = None
) -> None:
    """Serve on these sockets, by the name of their listener, until a signal; `started` is called once it listens.

    `lifeline` is the read end of a pipe: the service also stops when the other end is closed, and ignores SIGINT.
    Raises `CaplineError` where it cannot start: bad policies, a damaged embedded store. It does start while the store's
    server is away: `/readyz` says so, and decisions are answered once it is back.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, sockets, started, lifeline))


async def _serve(
    settings: Settings, sockets: Mapping[str, socket.socket], started: Callable[[], object], lifeline: int | None
) -> None:
    over_http = {name: listening for name, listening in sockets.items() if name != SPOE}
    metrics = Metrics("+".join(over_http))
    path, guard, tokens, followed = settings.tokens, None, None, list[Followed]()
    if path is not None:
        tokens = LastGood("tokens", lambda kept: TokenFile(path, start=kept), lambda tokens: tokens.data)
        guard = Guard(tokens.used)
        followed.append(Followed("tokens", tokens.keeping(tokens.used.reload)))
    parts = await open_parts(settings, metrics, answers=PUBLIC in sockets, guard=guard)
    async with parts.stack:
        _check_scopes(tokens and tokens.used, parts.limiter)
        if SPOE in sockets:
            await _haproxy(parts, sockets[SPOE])
        draining = asyncio.Event()
        health = probes(parts.limiter, parts.segments, allows=settings.on_store_error == "allow", draining=draining)
        of = {PUBLIC: described(parts.public | health), ADMIN: health | metrics.routes()}
        if ADMIN in sockets:
            of[ADMIN] |= _console(parts, metrics, guard, settings)
        parts.followed.extend(followed)
        observers: tuple[Observer, ...] = ()
        if settings.observers.access_log is not None:
            access_log = AccessLog(settings.observers)
            parts.followed.append(Followed("access_log", access_log.reopen))
            observers += (access_log,)
        if settings.observers.traces:
            observers += (Traces(),)
        tls = {PUBLIC: settings.http.tls, ADMIN: settings.admin.tls}
        listeners: dict[str, Listener] = {}
        for name in over_http:
            context = _context(name, tls[name], parts.followed)
            public = name == PUBLIC
            app = App(
                of[name],
                settings.bounds,
                observers if public else (),
                guard,
                settings.http.trusted_proxies,
                metrics.answered if public else None,
                settings.hosts,
                draining,
                None if public else _page,
            )
            listeners[name] = Listener(app, settings.bounds, context, waits=not settings.is_local)
        reload_now = asyncio.Event()
        stop = _Stop(listeners.values(), parts, grace_s(settings.bounds), draining)
        _on_signals(stop, settings.drain, reload_now, lifeline)
        async with asyncio.TaskGroup() as beside:
            tasks = [
                beside.create_task(follow(parts.followed, metrics, reload_now)),
                beside.create_task(metrics.watch(parts.limiter)),
                beside.create_task(watch_servers(parts.limiter, metrics.servers)),
                *(beside.create_task(follow()) for follow in parts.beside),
            ]
            async with asyncio.TaskGroup() as group:
                for name, listener in listeners.items():
                    group.create_task(listener.serve([sockets[name]]))
                for listener in listeners.values():
                    await listener.listening.wait()
                # A full collection stops every request: from here on it looks only at what came since.
                gc.freeze()
                started()
            await stop.ended()
            for task in tasks:
                task.cancel()


class _Stop:
    """Called at a signal: the first lets all listeners drain and ends them within some seconds, a second at once."""

    def __init__(self, listeners: Iterable[Listener], parts: Parts, within_s: float, draining: asyncio.Event) -> None:
        self._listeners, self._parts = [*listeners], parts
        self._within_s, self._draining = within_s, draining
        self._ending: list[asyncio.Future[object]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self, drain_s: float = 0) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._draining.is_set():
            self._end(0)
            return
        self._draining.set()
        self._ending += [asyncio.ensure_future(drain()) for drain in self._parts.draining]
        if drain_s:
            self._timer = asyncio.get_running_loop().call_later(drain_s, self._end, self._within_s)
        else:
            self._end(self._within_s)

    def begin(self, drain_s: float) -> None:
        """The first signal, however often it comes."""
        if not self._draining.is_set():
            self(drain_s)

    def _end(self, within_s: float) -> None:
        for listener in self._listeners:
            listener.force_exit = not within_s
            listener.should_exit = True
        self._ending += [asyncio.ensure_future(end(within_s)) for end in self._parts.ending]

    async def ended(self) -> None:
        """Wait until the others have ended."""
        while self._ending:
            await self._ending.pop(0)


def _on_signals(stop: _Stop, drain_s: float, reload_now: asyncio.Event, lifeline: int | None) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload_now.set)
    if lifeline is None:
        loop.add_signal_handler(signal.SIGTERM, stop, drain_s)
        loop.add_signal_handler(signal.SIGINT, stop)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A signal to the whole group comes twice, as the parent passes it on; at a second one of its own the parent kills.
    loop.add_signal_handler(signal.SIGTERM, stop.begin, drain_s)
    loop.add_signal_handler(AT_ONCE, stop.begin, 0)

    def ended() -> None:
        loop.remove_reader(lifeline)
        stop()

    loop.add_reader(lifeline, ended)
