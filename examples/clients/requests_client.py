import os

import requests

from capline import Limit, Limiter, Policy
from capline.middleware.requests import LimitedAdapter

limiter = Limiter("lmdb://.capline/store", [Policy("psp", Limit.margin("20/s", jitter="30ms"))])
with limiter, requests.Session() as session:
    session.mount(os.environ["PROVIDER_URL"], LimitedAdapter(limiter, "psp", max_wait=30, retries=3))
    for order in range(25):
        session.post(os.environ["PROVIDER_URL"] + "/pay", json={"order": order}).raise_for_status()
