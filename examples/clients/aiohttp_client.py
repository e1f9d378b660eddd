import asyncio
import os

from aiohttp import ClientSession

from capline import AsyncLimiter, Limit, Policy
from capline.middleware.aiohttp import LimitedMiddleware


async def main() -> None:
    async with AsyncLimiter("lmdb://.capline/store", [Policy("psp", Limit.margin("20/s", jitter="30ms"))]) as limiter:
        limited = LimitedMiddleware(limiter, "psp", max_wait=30, slack=0.02, retries=3)
        async with ClientSession(os.environ["PROVIDER_URL"], middlewares=[limited], raise_for_status=True) as session:
            for answer in await asyncio.gather(*(session.post("/pay", json={"order": order}) for order in range(25))):
                await answer.read()


asyncio.run(main())
