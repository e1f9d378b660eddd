"""The gRPC server: `RateLimitService`, health and reflection, beside the HTTP listeners in their event loop.

    UNAVAILABLE        the store cannot answer: Envoy's own `failure_mode_deny` decides
    INVALID_ARGUMENT   a request that can have no answer, such as one without a domain
    INTERNAL           the store is damaged, or the service has a fault, which its log tells

The rule: it checks its files once a second and takes a change whole or not at all. To stop, it finishes what it has.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from capline.model.errors import CaplineError, StoreDamagedError, StoreError, StoreVersionError
from capline.service.envoy.access import Certificate, checked_by
from capline.service.envoy.files import Files
from capline.service.envoy.messages import SERVICE, part
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.envoy.ratelimit import RateLimit
from capline.service.envoy.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from capline.limiter.aio import AsyncLimiter
    from capline.service.access.guard import Guard
    from capline.service.envoy.settings import EnvoySettings
    from capline.service.figures import Figures

__all__ = ["EnvoyServer", "envoy_server"]

LARGEST_MESSAGE_BYTES = 1 << 20
MOST_CALLS = 10_000
"""Calls under way at once; past it a call gets RESOURCE_EXHAUSTED. Counted here: grpc's own bound slows each call."""

STOP_WITHIN_S = 8.0
"""At the end of the block, for calls that `stop` has not ended."""

log = logging.getLogger("capline.service")


class EnvoyServer(NamedTuple):
    """A running server: the port that it listens on, and what it decides with, for `POST /json`.

    `certificate` is what it shows, which may be renewed; None without TLS. `stop` takes no new calls from then on, and
    returns once those under way have ended, which it cancels after these seconds.
    """

    port: int
    ratelimit: RateLimit
    files: Files
    stop: Callable[[float], Awaitable[None]]
    certificate: Certificate | None = None


@asynccontextmanager
async def envoy_server(
    limiter: AsyncLimiter, settings: EnvoySettings, figures: Figures, guard: Guard | None = None
) -> AsyncGenerator[EnvoyServer]:
    """Serve Envoy on the limiter's store for as long as the block lasts; with a `guard`, those whose token may ask.

    Raises `CaplineError` where it cannot start: files with a fault, an address in use, an extra that is missing.
    """
    files = Files(*settings.files, merge_domains=settings.merge_domains)
    metrics = EnvoyMetrics(figures)
    ratelimit = RateLimit(limiter, files.current, metrics)
    certificate = None if settings.tls is None else Certificate(settings.tls)
    server, port = await _started(
        ratelimit, settings.listen, certificate, [] if guard is None else [checked_by(guard, metrics)]
    )
    following = asyncio.create_task(_follow(files, ratelimit, metrics, settings.look_every_s))
    try:
        yield EnvoyServer(port, ratelimit, files, server.stop, certificate)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await server.stop(STOP_WITHIN_S)


async def _started(
    ratelimit: RateLimit, listen: str, certificate: Certificate | None, interceptors: list[Any]
) -> tuple[Any, int]:
    grpc, aio = part("grpc"), part("grpc.aio")
    server = aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
            ("grpc.so_reuseport", 1),
        ],
    )
    method = grpc.unary_unary_rpc_method_handler(_handler(grpc, ratelimit))  # bytes in, bytes out
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": method})])
    await _add_health(server)
    try:
        port: int = (
            server.add_insecure_port(listen)
            if certificate is None
            else server.add_secure_port(listen, certificate.credentials())
        )
    except RuntimeError:
        raise CaplineError(
            f"--grpc {listen}: the address is in use or not of this host; name another port, or 0 for any that is free"
        ) from None
    await server.start()
    return server, port


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


async def _add_health(server: Any) -> None:
    """Health of the process (`""`) and of the service, and the names of all services."""
    health, pb2 = part("grpc_health.v1.health"), part("grpc_health.v1.health_pb2")
    servicer = health.aio.HealthServicer()
    part("grpc_health.v1.health_pb2_grpc").add_HealthServicer_to_server(servicer, server)
    for name in ("", SERVICE):
        await servicer.set(name, pb2.HealthCheckResponse.SERVING)
    reflection = part("grpc_reflection.v1alpha.reflection")
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


async def _follow(files: Files, ratelimit: RateLimit, metrics: EnvoyMetrics, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        if not await asyncio.to_thread(files.poll):
            continue
        metrics.reload(taken=files.error is None)
        if files.error is None:
            ratelimit.use(files.current)
            log.info("rate limit files taken over")
        else:
            log.error("rate limit files refused, the last good ones serve: %s", files.error)
