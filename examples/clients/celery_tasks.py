import os

import requests
from celery import Celery, Task

from capline import Limit, Limiter, Policy
from capline.middleware.celery import limited_task

app = Celery("payments", broker=os.environ["BROKER_URL"])
limiter = Limiter(os.environ["STORE_URL"], [Policy("psp", Limit.margin("20/s", jitter="30ms"))])


@app.task(bind=True)
@limited_task(limiter, "psp", subject="adyen", late=0.02)
def pay(self: Task, order: int) -> None:
    answer = requests.post(os.environ["PROVIDER_URL"] + "/pay", json={"order": order}, timeout=10)
    answer.raise_for_status()
