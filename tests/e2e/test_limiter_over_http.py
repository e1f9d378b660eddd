"""`Limiter("http://…", token=…)` and `AsyncLimiter` at a real `capline serve`."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from tests.kit.serving import Serving

from capline import AccessError, AsyncLimiter, Attempt, Limiter, StoreUnavailableError, UnknownNameError
from capline.service.access.tokens import TokenFile


def test_it_decides_by_the_service_until_that_is_gone(tmp_path: Path) -> None:
    policies = {"promo": {"limits": ["3/day"]}, "psp": {"limits": ["1/second"]}}
    (tmp_path / "policies.yaml").write_text(json.dumps({"policies": policies}), encoding="utf-8")
    file = TokenFile(tmp_path / "tokens.json", create=True)
    tokens = {role: file.create(f"a-{role}", [role]) for role in ("decide", "read", "admin")}
    with Serving(tmp_path, "--tokens", "tokens.json") as service:
        limiter = Limiter(service.url, token=tokens["decide"])
        decided = [limiter.decide("promo", "user:42") for _ in range(4)]
        assert [bool(one) for one in decided] == [True, True, True, False]
        assert limiter.refund_many("promo", ["user:42"] * 2, [decided[0].hit or 0] * 2).tolist() == [True, False]
        assert limiter.usage("promo", "user:42")[0].used == 2
        many = limiter.decide_many("promo", [1, 2, -1, 2], cost=2, receipt="r1")
        assert many.allowed.tolist() == [True, True, False, False]
        assert limiter.decide_many("promo", [1, 2, -1, 2], cost=2, receipt="r1").hit.tolist() == many.hit.tolist()
        assert limiter.decide_all([Attempt("promo", "a"), Attempt("psp", "b")])
        with limiter.acquire("psp", "provider", timeout=30), limiter.acquire("psp", "provider", timeout=30) as slot:
            assert slot.allowed
        with pytest.raises(UnknownNameError, match="there are: promo, psp"):
            limiter.decide("other", "s")
        with pytest.raises(AccessError, match="admin"):
            limiter.erase("user:42")
        with Limiter(service.url, token=tokens["admin"]) as admin:
            assert admin.erase("user:42") == 1
        with Limiter(service.url) as nobody, pytest.raises(AccessError):
            nobody.decide("promo", "s")
        with Limiter(service.url, token=tokens["read"]) as reader:
            assert reader.peek("promo", "user:42").remaining == 2
            assert reader.explain("promo", 1).limits[0].used == 2

        async def main() -> None:
            async with AsyncLimiter(service.url, token=tokens["decide"]) as awaited:
                answers = await asyncio.gather(*(awaited.decide("promo", "at once") for _ in range(20)))
                assert sum(map(bool, answers)) == 3
                async with awaited.acquire("psp", "another", timeout=30):
                    pass

        asyncio.run(main())
        service.stop(signal.SIGKILL)
        with pytest.raises(StoreUnavailableError, match="cannot be reached"):
            limiter.decide("promo", "s")
        limiter.close()
