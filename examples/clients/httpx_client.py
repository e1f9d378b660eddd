import os

import httpx

from capline import Limit, Limiter, Policy
from capline.middleware.httpx import LimitedTransport

limiter = Limiter("lmdb://.capline/store", [Policy("psp", Limit.margin("20/s", jitter="30ms"))])
transport = LimitedTransport(limiter, "psp", max_wait=30, retries=3)
with limiter, httpx.Client(base_url=os.environ["PROVIDER_URL"], transport=transport) as client:
    for order in range(25):
        client.post("/pay", json={"order": order}).raise_for_status()
