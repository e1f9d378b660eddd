"""Envoy's rate limit service in this process: a real gRPC server and channel on loopback."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import uvloop
from prometheus_client import CollectorRegistry

from capline import AsyncLimiter
from capline.model.clock import Clock
from capline.service.access.guard import Guard
from capline.service.envoy.files import followed_files
from capline.service.envoy.messages import SERVICE, part, rls
from capline.service.envoy.server import envoy_server
from capline.service.envoy.service import json_route
from capline.service.http.app import App
from capline.service.metrics.figures import Figures
from capline.service.settings.values import Address, Grpc, parse_address

grpc, aio = part("grpc"), part("grpc.aio")
OK, OVER = rls.RateLimitResponse.OK, rls.RateLimitResponse.OVER_LIMIT


class EnvoyService:
    """Ask it by gRPC or as JSON; `limiter` is the one of the service, `registry` has its metrics."""

    def __init__(
        self,
        files: Path,
        url: str = "memory://",
        clock: Clock | None = None,
        guard: Guard | None = None,
        listen: str = "127.0.0.1:0",
        **settings: Any,
    ) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._stack = AsyncExitStack()
        self.registry = CollectorRegistry()
        self._figures = Figures()
        self.registry.register(self._figures)
        address = Address(listen, 0) if listen.startswith("unix:") else parse_address(listen)
        try:
            self.run(self._start(Grpc(address, (str(files),), **settings), url, clock, guard))
        except BaseException:
            self.__exit__()
            raise

    async def _start(self, chosen: Grpc, url: str, clock: Clock | None, guard: Guard | None) -> None:
        self.limiter = await self._stack.enter_async_context(AsyncLimiter(url, clock=clock))
        self.server = await self._stack.enter_async_context(
            envoy_server(self.limiter, chosen, followed_files(chosen), self._figures, guard)
        )
        address = str(chosen.listen) if chosen.listen.is_unix else f"127.0.0.1:{self.server.port}"
        self.channel = await self._stack.enter_async_context(aio.insecure_channel(address))
        self._method = self.channel.unary_unary(
            f"/{SERVICE}/ShouldRateLimit",
            request_serializer=rls.RateLimitRequest.SerializeToString,
            response_deserializer=rls.RateLimitResponse.FromString,
        )
        transport = httpx.ASGITransport(App(json_route(self.server.ratelimit)))
        self.http = await self._stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        )

    def run(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Await it on the service's own loop."""
        return self._runner.run(answer)

    def ask(self, *descriptors: Any, domain: str = "edge", hits_addend: int = 0) -> Any:
        """`ShouldRateLimit`; see `descriptor` for the form of one."""
        request = rls.RateLimitRequest(
            domain=domain, descriptors=[descriptor(one) for one in descriptors], hits_addend=hits_addend
        )
        return self.run(self._call(request))

    async def _call(self, request: Any) -> Any:
        return await self._method(request, timeout=60)

    def codes(self, *descriptors: Any, **request: Any) -> str:
        """The overall code and then that of each descriptor: `+` OK, `-` over."""
        answer = self.ask(*descriptors, **request)
        return "".join("-" if code == OVER else "+" for code in (answer.overall_code, *codes_of(answer)))

    def json(self, body: bytes | str, **headers: str) -> httpx.Response:
        """`POST /json` with this very body."""
        return self.run(self.http.post("/json", content=body, headers=headers))

    def counted(self, rule: str, outcome: str, domain: str = "edge") -> float:
        """The counter of descriptors with these labels."""
        labels = {"domain": domain, "rule": rule, "outcome": outcome}
        return self.registry.get_sample_value("capline_envoy_descriptors_total", labels) or 0.0

    def near(self, rule: str, domain: str = "edge") -> float:
        """The counter of hits near a limit with these labels."""
        labels = {"domain": domain, "rule": rule}
        return self.registry.get_sample_value("capline_envoy_near_limit_total", labels) or 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stack.aclose())
        self._runner.close()


def descriptor(form: str | dict[str, Any]) -> dict[str, Any]:
    """`"path=/a user=7"`, or a mapping with `entries` in that form and other fields beside it."""
    fields = {"entries": form} if isinstance(form, str) else dict(form)
    pairs = [entry.partition("=") for entry in fields["entries"].split()]
    return {**fields, "entries": [{"key": key, "value": value} for key, _, value in pairs]}


def codes_of(answer: Any) -> list[int]:
    """The code of each descriptor, in order."""
    return [status.code for status in answer.statuses]
