"""Requests that are kept by their bytes: answered as new ones, dropped when what they lead to may have changed."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.kit.envoy import EnvoyService, descriptor, grpc

from capline import AsyncLimiter, ManualClock, Policy
from capline.service.envoy import ratelimit
from capline.service.envoy import service as messages
from capline.service.envoy.files import load
from capline.service.envoy.messages import SERVICE, rls
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.envoy.plan import Descriptor, Plan
from capline.service.envoy.ratelimit import RateLimit
from capline.service.envoy.rules import Configuration, policies_of
from capline.service.envoy.service import Service
from capline.service.metrics.figures import Figures
from capline.service.metrics.registry import Metrics

FILE = """
domain: edge
descriptors:
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 4, name: path}}
  - {key: vip, rate_limit: {unit: second, requests_per_unit: 2, replaces: [{name: path}]}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
"""
DESCRIPTORS: list[Any] = ["path=/a", "path=/b", "vip=1", "shadow=1", "free=1", "quota=1", "nothing=1"]
LOOK = {"entries": "path=/a", "hits_addend": {"value": 0}}
DEBIT = {"entries": "quota=1", "hits_addend": {"value": 2}}
OWN = {"entries": "path=/c", "limit": {"requests_per_unit": 2, "unit": 4}}


def configuration(folder: Path, text: str = FILE) -> Configuration:
    (folder / "edge.yaml").write_text(text, encoding="utf-8")
    return load(folder / "edge.yaml")


def request(*descriptors: Any, **fields: Any) -> bytes:
    whole = rls.RateLimitRequest(domain="edge", descriptors=[descriptor(one) for one in descriptors], **fields)
    return whole.SerializeToString()


async def quota(service: Service, data: bytes) -> int:
    """Of the limit that the first status names."""
    response: Any = rls.RateLimitResponse.FromString(await service.answer(data))
    return response.statuses[0].current_limit.requests_per_unit


def metrics() -> EnvoyMetrics:
    return EnvoyMetrics(Figures())


async def test_a_kept_request_is_answered_as_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, draw = ManualClock(1_763_700_000_000_000), random.Random(7)
    async with AsyncLimiter("memory://", clock=clock) as one, AsyncLimiter("memory://", clock=clock) as other:
        known = configuration(tmp_path)
        keeps, keeps_none = (Service(RateLimit(limiter, known, metrics())) for limiter in (one, other))
        answers: set[bytes] = set()
        for _ in range(400):
            asked = draw.choices([*DESCRIPTORS, LOOK, DEBIT, OWN], k=draw.choice((1, 1, 2, 3)))
            data = request(*asked, hits_addend=draw.choice((0, 0, 1, 2)))
            kept = await keeps.answer(data)
            with monkeypatch.context() as patched:
                patched.setattr(messages, "LONGEST_KEPT_BYTES", -1)
                assert kept == await keeps_none.answer(data)
            answers.add(kept)
            clock.advance_us(draw.choice((1, 300_000, 20_000_000)))
        assert len(answers) > 100


async def test_a_change_is_seen_by_requests_that_are_kept(tmp_path: Path) -> None:
    async with AsyncLimiter("memory://") as limiter:
        decides = RateLimit(limiter, configuration(tmp_path), metrics())
        service, data = Service(decides), request("path=/a")
        assert [await quota(service, data) for _ in range(2)] == [4, 4]
        under_way = decides.plan("edge", [Descriptor((("path", "/a"),), 3)])
        decides.use(configuration(tmp_path, FILE.replace("4, name", "9, name")))
        assert [await quota(service, data) for _ in range(2)] == [9, 9]
        over, statuses = await decides.decide(under_way)
        assert (over, statuses[0].over) == (True, True)  # it ends by the limit of before


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_KEPT", 2)
    read: list[str] = []

    async def counted() -> None:
        async with AsyncLimiter("memory://") as limiter:
            decides = RateLimit(limiter, configuration(tmp_path), metrics())
            plan = decides.plan

            def told(domain: str, asks: Sequence[Descriptor]) -> Plan:
                read.append(asks[0].entries[0][1][0])
                return plan(domain, asks)

            monkeypatch.setattr(decides, "plan", told)
            service = Service(decides)
            one, two, three, long = (request(f"path={name}") for name in ("1", "2", "3", "x" * 600))
            for data in (one, two, one, two, long, long, three, one):
                await service.answer(data)

    asyncio.run(counted())
    assert "".join(read) == "12xx31"


async def test_responses_that_are_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_KEPT", 3)

    async with AsyncLimiter("memory://") as limiter:
        service = Service(RateLimit(limiter, configuration(tmp_path), metrics()))
        for most in range(1, 20):
            own = {"entries": "path=/c", "limit": {"requests_per_unit": most, "unit": 4}}
            assert await quota(service, request(own)) == most
            assert await quota(service, request("path=/a")) == 4
            assert len(service._responses) <= 3  # pyright: ignore[reportPrivateUsage] - nothing else tells


def test_limits_that_requests_bring_go_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "MOST_OVERRIDES", 2)

    def own(quota: int) -> dict[str, Any]:
        return {"entries": "path=/c", "limit": {"requests_per_unit": quota, "unit": 4}}

    async def answered() -> list[int]:
        async with AsyncLimiter("memory://") as limiter:
            service = Service(RateLimit(limiter, configuration(tmp_path), metrics()))
            few, more, most = (request(own(quota)) for quota in (30, 40, 50))
            both = request(own(30), own(50))
            return [await quota(service, data) for data in (few, more, few, most, few, both, more, both)]

    assert asyncio.run(answered()) == [30, 40, 30, 50, 30, 30, 40, 30]


def test_limits_that_requests_bring_cost_the_same_however_many_and_are_few_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(limits: Iterable[tuple[int, str]]) -> list[Policy]:
        policies = policies_of(limits)
        made.append(len(policies))
        return policies

    async def answered() -> int:
        shown = Metrics()
        async with AsyncLimiter("memory://", observers=[shown.observer]) as limiter:
            decides = RateLimit(limiter, configuration(tmp_path), EnvoyMetrics(shown.figures))
            service, kept = Service(decides), request("path=/a")
            await service.answer(kept)
            monkeypatch.setattr(ratelimit, "policies_of", counted)
            series = 0
            for most in range(1, 61):
                own = {"entries": f"path=/{most}", "limit": {"requests_per_unit": most, "unit": 4}}
                assert await quota(service, request(own)) == most
                assert await quota(service, request(own, "path=/b")) == most
                if most == 10:  # by now each kind of answer was given
                    series = len(generate_latest(shown.registry).splitlines())
            assert decides.changes == 1, "what was kept before still is"
            assert len(generate_latest(shown.registry).splitlines()) == series
            return int(await quota(service, kept))

    assert asyncio.run(answered()) == 4
    assert max(made) == 2
    assert sum(made) <= 60 * 3


def test_what_is_no_request_is_an_error_and_the_next_is_answered(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with EnvoyService(tmp_path) as service:
        raw = service.channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")

        async def send(data: bytes) -> bytes:
            return await raw(data, timeout=60)

        for data in (b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xff"):
            with pytest.raises(grpc.RpcError) as refused:
                service.run(send(data))
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "not a RateLimitRequest" in refused.value.details()
        with pytest.raises(grpc.RpcError, match="domain must not be empty"):
            service.run(send(b""))
        assert service.codes("path=/a") == "++"


def test_a_call_under_way_ends_with_the_time_to_stop(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def never(_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with EnvoyService(tmp_path / "edge.yaml") as service:
        service.server.ratelimit.decide = never  # pyright: ignore[reportAttributeAccessIssue] - a store that hangs

        async def stopped() -> None:
            whole = rls.RateLimitRequest(domain="edge", descriptors=[descriptor("path=/a")])
            call = service.channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")(whole.SerializeToString())
            async with asyncio.timeout(60):
                await asked.wait()
                await service.server.stop(0)
            with pytest.raises(grpc.RpcError):
                await call

        service.run(stopped())
