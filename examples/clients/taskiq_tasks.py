import os

import httpx
from taskiq_redis import ListQueueBroker

from capline import AsyncLimiter, Limit, Policy
from capline.middleware.decorator import limited

broker = ListQueueBroker(os.environ["BROKER_URL"])
limiter = AsyncLimiter(os.environ["STORE_URL"], [Policy("psp", Limit.margin("20/s", jitter="30ms"))])


@broker.task
@limited(limiter, "psp", subject="adyen", timeout=60)
async def pay(order: int) -> None:
    async with httpx.AsyncClient(base_url=os.environ["PROVIDER_URL"]) as client:
        (await client.post("/pay", json={"order": order})).raise_for_status()
