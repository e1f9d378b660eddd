"""The gRPC server: `RateLimitService`, health and reflection, beside the HTTP listeners in their event loop.

    UNAVAILABLE        the store cannot answer: Envoy's own `failure_mode_deny` decides
    INVALID_ARGUMENT   a request that can have no answer, such as one without a domain
    INTERNAL           the store is damaged, or the service has a fault, which its log tells

The rule: it takes a change of its files whole or not at all. To stop, it finishes what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from capline.model.errors import CaplineError, StoreDamagedError, StoreError, StoreVersionError
from capline.service.envoy.access import Certificate, checked_by
from capline.service.envoy.messages import SERVICE
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.envoy.ratelimit import RateLimit
from capline.service.envoy.service import Service
from capline.service.parts import part

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.service.access.guard import Guard
    from capline.service.envoy.files import Files
    from capline.service.metrics.figures import Figures
    from capline.service.settings.last_good import LastGood
    from capline.service.settings.values import Grpc

LARGEST_MESSAGE_BYTES = 1 << 20
MOST_CALLS = 10_000
"""Calls under way at once; past it a call gets RESOURCE_EXHAUSTED. Counted here: grpc's own bound slows each call."""

STOP_WITHIN_S = 8.0
"""At the end of the block, for calls that `stop` has not ended."""

log = logging.getLogger("capline.service")


class EnvoyServer(NamedTuple):
    """A running server: the port that it listens on (1 for a Unix socket), and what it decides with, for `POST /json`.

    `certificate` is what it shows, which may be renewed; None without TLS. `drain` makes its health NOT_SERVING. `stop`
    takes no new calls from then on, and returns once those under way have ended, which it cancels after these seconds.
    `reload` takes over changed files and returns whether any did; it raises the `CaplineError` of those that are
    refused. Any thread may call it.
    """

    port: int
    ratelimit: RateLimit
    reload: Callable[[], bool]
    drain: Callable[[], Awaitable[None]]
    stop: Callable[[float], Awaitable[None]]
    certificate: Certificate | None = None


@asynccontextmanager
async def envoy_server(
    limiter: AsyncLimiter, settings: Grpc, good: LastGood[Files], figures: Figures, guard: Guard | None = None
) -> AsyncGenerator[EnvoyServer]:
    """Serve Envoy on the limiter's store for as long as the block lasts; with a `guard`, those whose token may ask.

    Raises `CaplineError` where it cannot start: an address in use, an extra that is missing.
    """
    files = good.used
    metrics = EnvoyMetrics(figures)
    ratelimit = RateLimit(limiter, files.current, metrics, settings.modes)
    certificate = None if settings.tls is None else Certificate(settings.tls)
    server, health, port = await _started(
        ratelimit, settings, certificate, [] if guard is None else [checked_by(guard, metrics)]
    )
    reload = good.keeping(_reload_of(files, ratelimit, metrics))
    try:
        yield EnvoyServer(port, ratelimit, reload, health.enter_graceful_shutdown, server.stop, certificate)
    finally:
        await server.stop(STOP_WITHIN_S)


async def _started(
    ratelimit: RateLimit, settings: Grpc, certificate: Certificate | None, interceptors: list[Any]
) -> tuple[Any, Any, int]:
    grpc, aio = part("grpc"), part("grpc.aio")
    listen = str(settings.listen)
    ages = {"": settings.max_connection_age, "_grace": settings.max_connection_age_grace}
    server = aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
            ("grpc.so_reuseport", 1),
            *((f"grpc.max_connection_age{of}_ms", round(age * 1000)) for of, age in ages.items() if age is not None),
        ],
    )
    method = grpc.unary_unary_rpc_method_handler(_handler(grpc, ratelimit))  # bytes in, bytes out
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method})])
    health = await _add_health(server)
    try:
        port: int = (
            server.add_insecure_port(listen)
            if certificate is None
            else server.add_secure_port(listen, certificate.credentials())
        )
    except RuntimeError:
        raise CaplineError(
            f"--grpc {listen}: "
            + (
                "no socket can be made there; name a path in a folder that exists and may be written"
                if settings.listen.is_unix
                else "the address is in use or not of this host; name another port, or 0 for any that is free"
            )
        ) from None
    await server.start()
    return server, health, port


def _handler(grpc: Any, ratelimit: RateLimit) -> Any:
    under_way = 0
    answer = Service(ratelimit).answer

    async def should_rate_limit(request: bytes, context: Any) -> Any:
        nonlocal under_way
        if under_way >= MOST_CALLS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MOST_CALLS} calls under way")
        under_way += 1
        try:
            return await answer(request)
        except CaplineError as error:
            await context.abort(getattr(grpc.StatusCode, _code(error)), " ".join(str(error).split("\n")))
        except Exception:
            log.exception("a fault of the service")
            await context.abort(grpc.StatusCode.INTERNAL, "a fault of the service; its log says more")
        finally:
            under_way -= 1

    return should_rate_limit


def _code(error: CaplineError) -> str:
    if isinstance(error, (StoreDamagedError, StoreVersionError)):
        return "INTERNAL"
    return "UNAVAILABLE" if isinstance(error, StoreError) else "INVALID_ARGUMENT"


async def _add_health(server: Any) -> Any:
    """Health of the process (`""`) and of the service, and the names of all services."""
    health, pb2 = part("grpc_health.v1.health"), part("grpc_health.v1.health_pb2")
    servicer = health.aio.HealthServicer()
    part("grpc_health.v1.health_pb2_grpc").add_HealthServicer_to_server(servicer, server)
    for name in ("", SERVICE):
        await servicer.set(name, pb2.HealthCheckResponse.SERVING)
    reflection = part("grpc_reflection.v1alpha.reflection")
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return servicer


def _reload_of(files: Files, ratelimit: RateLimit, metrics: EnvoyMetrics) -> Callable[[], bool]:
    on_loop = asyncio.get_running_loop().call_soon_threadsafe

    def reload() -> bool:
        changed = files.poll()
        if changed:
            on_loop(partial(metrics.reload, taken=files.error is None))
        if files.error is not None:
            raise files.error
        if changed:
            on_loop(ratelimit.use, files.current)
        return changed

    return reload
