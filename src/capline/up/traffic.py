"""A part of `capline up`: a few requests a second one after the other, a campaign and some orders now and then.

    python -m capline.up.traffic URL PER_SECOND EMPLOYEES ORDERS     the last two are "" where they are missing

Bounded: at most so many requests a second, of 1,000 users and 20 callers, whose logs go by themselves when their
windows end; each campaign goes after an hour, charged orders after that too. Every ten seconds a line says how many
were asked, allowed and not answered.
"""

import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import msgspec

SEED = 42
LINE_EVERY_S = 10.0
TIMEOUT_S = 10.0
CAMPAIGN_EVERY_S, ORDERS_EVERY_S = 120.0, 15.0
ORDERS = {"acme-pay": 60, "minipay": 9}
_BLAST_IN = timedelta(minutes=3)
_CALLERS = 20
_SHARES = (("promo", 3), ("api", 6), ("employees", 1))


def requests(draw: random.Random, users: Sequence[int], employees: str) -> Iterator[tuple[str, str, Any]]:
    """What is asked, without end: method, address, form; of the employees API its headers."""
    policies = [name for name, share in _SHARES for _ in range(share) if employees or name != "employees"]
    while True:
        policy, caller = draw.choice(policies), f"caller:{draw.randint(1, _CALLERS)}"
        if policy == "employees":
            yield "GET", f"{employees}/{draw.randint(1, 9)}", {"X-Api-Key": caller}
        else:
            subject = draw.choice(users) if policy == "promo" else caller
            yield "POST", "/v1/decide", {"policy": policy, "subject": subject}


def main() -> None:
    """Ask until it is ended; a request without an answer is counted, and the next one comes a second later."""
    url, rate, employees, orders = sys.argv[1:]
    counts: Counter[str] = Counter()
    told, due = time.monotonic(), {"campaign": 0.0, "orders": 0.0}
    users = [int(line) for line in Path("users.csv").read_text(encoding="ascii").split()[1:]]
    token = Path("traffic.token").read_text(encoding="ascii")

    def own(request: httpx.Request) -> None:
        if str(request.url).startswith(url):  # the employees API is no business of this token
            request.headers["Authorization"] = f"Bearer {token}"

    hooks: Any = {"request": [own]}
    with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False, event_hooks=hooks) as client:
        at = datetime.now(UTC).replace(second=0) + _BLAST_IN  # a full minute: once under its name
        _begin(client, "blast", "blast", send_at=f"{at:%Y-%m-%dT%H:%M:00Z}")
        asked = requests(random.Random(SEED), users, employees)  # noqa: S311 - load, nothing to guess
        for number, (method, address, form) in enumerate(asked, 1):
            begun = time.monotonic()
            said = _ask(client, method, address, form)
            counts[said] += 1
            if begun >= due["campaign"]:
                now = datetime.now(UTC)
                done = _begin(client, "hello", f"hello-{now:%H%M}")
                due["campaign"] = begun + (CAMPAIGN_EVERY_S if done else LINE_EVERY_S)
            if orders and begun >= due["orders"]:
                _order(orders)
                due["orders"] = begun + ORDERS_EVERY_S
            if begun - told >= LINE_EVERY_S:
                told = begun
                facts = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
                sys.stderr.write(f"{number:,} asked: {facts}\n")
            time.sleep(1.0 if said == "not answered" else max(0.0, 1 / float(rate) - (time.monotonic() - begun)))


def _ask(client: httpx.Client, method: str, address: str, form: Any) -> str:
    try:
        answer = client.get(address, headers=form) if method == "GET" else client.post(address, json=form)
    except httpx.HTTPError:
        return "not answered"
    if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        return "refused"
    if not answer.is_success:
        return "not answered"
    return "allowed" if method == "GET" or answer.json()["allowed"] else "refused"


def _begin(client: httpx.Client, kind: str, name: str, **more: str) -> bool:
    """Begin a campaign of this kind, if there is one; False where it is to be tried again."""
    form = msgspec.json.decode(Path("campaigns.json").read_bytes()).get(kind)
    if form is None:
        return True
    try:
        answer = client.post("/v1/campaigns", json=form | {"campaign": name} | more, headers={"Idempotency-Key": name})
    except httpx.HTTPError:
        return False
    if not answer.is_success:
        sys.stderr.write(f"{name} was not begun: {answer.text}\n")
    return answer.is_success or answer.is_client_error


def _order(path: str) -> None:
    """Some new orders for each provider; those charged more than an hour's worth ago go."""
    database = sqlite3.connect(path, timeout=TIMEOUT_S)
    rows = [(provider, 999) for provider, count in ORDERS.items() for _ in range(count)]
    with database:
        database.executemany("INSERT INTO orders (provider, cents) VALUES (?, ?)", rows)
        database.execute(
            "DELETE FROM orders WHERE state = 'charged' AND id < (SELECT max(id) FROM orders) - ?",
            (round(len(rows) * 3600 / ORDERS_EVERY_S),),
        )
    database.close()


if __name__ == "__main__":
    main()
