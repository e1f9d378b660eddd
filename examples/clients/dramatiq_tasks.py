import os

import dramatiq
import requests
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

from capline import Limit, Limiter, Policy
from capline.middleware.dramatiq import limited_actor

dramatiq.set_broker(RedisBroker(url=os.environ["BROKER_URL"]))
dramatiq.get_broker().add_middleware(CurrentMessage())
limiter = Limiter(os.environ["STORE_URL"], [Policy("psp", Limit.margin("20/s", jitter="30ms"))])


@dramatiq.actor
@limited_actor(limiter, "psp", subject="adyen", late=0.02)
def pay(order: int) -> None:
    answer = requests.post(os.environ["PROVIDER_URL"] + "/pay", json={"order": order}, timeout=10)
    answer.raise_for_status()
