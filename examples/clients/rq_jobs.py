import os

import requests

from capline import Limit, Limiter, Policy
from capline.middleware.decorator import limited

limiter = Limiter(os.environ["STORE_URL"], [Policy("psp", Limit.margin("20/s", jitter="30ms"))])


@limited(limiter, "psp", subject="adyen", timeout=60)
def pay(order: int) -> None:
    answer = requests.post(os.environ["PROVIDER_URL"] + "/pay", json={"order": order}, timeout=10)
    answer.raise_for_status()
