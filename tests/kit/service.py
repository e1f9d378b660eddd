"""The service, called in this process as a client would call it, without a socket."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Self

import httpx

from capline import AsyncLimiter, Policy
from capline.service.access.guard import Guard
from capline.service.access.new_subjects import POLICY, NewSubjects
from capline.service.gateways.check import check_route
from capline.service.http.app import App, Observer
from capline.service.http.openapi import described
from capline.service.probes import probes
from capline.service.settings.values import Bounds, Settings
from capline.service.verbs import segments
from capline.service.verbs.routes import routes


class Service:
    """A client of the application; `limiter` is the one that it asks."""

    def __init__(
        self,
        policies: Iterable[Policy],
        url: str = "memory://",
        *,
        guard: Guard | None = None,
        bounds: Bounds | None = None,
        observers: tuple[Observer, ...] = (),
        trusted_proxies: int = 0,
        new_subjects: int = 0,
        **options: Any,
    ) -> None:
        self._runner = asyncio.Runner()
        self.limiter = self.run(_limiter(url, policies, options))
        self.counting = self.run(_limiter("memory://", [Policy(POLICY, [f"{new_subjects or 1}/minute"])], options))
        subject_bound = NewSubjects(self.counting) if new_subjects else None
        served = routes(self.limiter, Settings(store=url, bounds=bounds or Bounds()), subject_bound)
        served |= check_route(self.limiter)
        served |= segments.routes(options.get("segments")) | probes(
            self.limiter, options.get("segments"), allows=options.get("on_store_error") == "allow"
        )
        self.app = App(described(served), bounds, observers, guard, trusted_proxies)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1")

    def run(self, answer: Coroutine[Any, Any, Any]) -> Any:
        """Await it on the service's own loop."""
        return self._runner.run(answer)

    def __call__(self, method: str, path: str, **body: Any) -> httpx.Response:
        return self.run(self.client.request(method, path, **body))

    def post(self, path: str, **form: Any) -> httpx.Response:
        """Send a form as JSON."""
        return self("POST", path, json=form)

    def send(self, path: str, body: bytes, kind: str = "application/json") -> httpx.Response:
        """Send these very bytes."""
        return self("POST", path, content=body, headers={"Content-Type": kind})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.client.aclose())
        self.run(self.counting.close())
        self.run(self.limiter.close())
        self._runner.close()


async def _limiter(url: str, policies: Iterable[Policy], options: dict[str, Any]) -> AsyncLimiter:
    return AsyncLimiter(url, policies, **options)
