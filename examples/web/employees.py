"""Employees by number: 10 a minute for each API key. Refused attempts count too, so who hammers stays out.

pip install capline uvicorn
uvicorn --no-proxy-headers employees:app
curl -H 'X-Api-Key: me' http://127.0.0.1:8000/employees/7
"""

import json
import os
from typing import Any

from capline import AsyncLimiter, Policy
from capline.web import Rule, key
from capline.web.asgi import CaplineMiddleware

PEOPLE = ("Ada", "Barbara", "Edsger", "Frances", "Grace", "Katherine", "Leslie", "Margaret", "Tony")
NAMES = {f"/employees/{number}": name for number, name in enumerate(PEOPLE, 1)}


async def employees(scope: Any, _receive: Any, send: Any) -> None:
    name = NAMES.get(scope["path"]) if scope["type"] == "http" else None
    answer = {"error": "no such employee"} if name is None else {"name": name}
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 404 if name is None else 200, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


store = os.environ.get("EMPLOYEES_STORE", "lmdb://.capline/store")
if configuration := os.environ.get("EMPLOYEES_CONFIG"):
    limiter = AsyncLimiter.from_config(configuration, store)
else:
    limiter = AsyncLimiter(store, [Policy("employees", ["10/minute"], count_denied=True)])
rules = [Rule("employees", key.header("X-Api-Key"))]
app = CaplineMiddleware(employees, limiter, rules, on_error="deny")  # in an outage 503, so that nobody is over it
