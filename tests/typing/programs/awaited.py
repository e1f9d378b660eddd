"""The same verbs, awaited."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import asyncio
from typing import assert_type

from capline import AsyncLimiter, Attempt, CaplineError, Decision, Decisions, Joint, Policy


async def main() -> None:
    """Ask once for each."""
    limiter = AsyncLimiter("memory://", [Policy("psp", ["9/s"])])
    assert_type(await limiter.decide("psp", "adyen"), Decision)
    assert_type(await limiter.decide_batch([Attempt("psp", "adyen")]), list[Decision | CaplineError])
    assert_type(await limiter.decide_all([Attempt("psp", "adyen")]), Joint)
    assert_type(await limiter.decide_many("psp", ["adyen"]), Decisions)
    async with limiter.acquire("psp", "adyen", timeout=30) as slot:
        assert_type(slot, Decision)
    await limiter.close()


asyncio.run(main())
