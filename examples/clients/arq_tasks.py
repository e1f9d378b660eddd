import os

import httpx
from arq.connections import RedisSettings

from capline import AsyncLimiter, Limit, Policy
from capline.middleware.decorator import limited

limiter = AsyncLimiter(os.environ["STORE_URL"], [Policy("psp", Limit.margin("20/s", jitter="30ms"))])


@limited(limiter, "psp", subject="adyen", timeout=60)
async def pay(_: object, order: int) -> None:
    async with httpx.AsyncClient(base_url=os.environ["PROVIDER_URL"]) as client:
        (await client.post("/pay", json={"order": order})).raise_for_status()


class WorkerSettings:
    job_completion_wait = 60  # without it, what is being paid when arq ends is cancelled, and paid again
    functions, redis_settings = (pay,), RedisSettings.from_dsn(os.environ["BROKER_URL"])
