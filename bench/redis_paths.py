"""One limit on a server, each algorithm and verb over redis-py's plain SET, beside the peers that do the same work.

1,000 subjects in turn, one connection, loopback, every attempt allowed; the parties take turns in one run. Each figure
is there twice: by the clock on the wall, and by the processor's time of this process and the server together, which a
busy machine changes little. What no script call can be below stands with them: a script that does nothing, and one of a
GET and a SET, each sent through a plain socket.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

import redis
from _harness import Report, arguments, best_by_clocks, check, processor_clock
from _servers import KINDS, single
from paths import ALGORITHMS, SMALL, SUBJECTS, UNITS, asking, exact, policies, verbs
from peers import attempts

from capline import Attempt, Limiter, Policy

if TYPE_CHECKING:
    from _servers import Server
    from peers import Ask

SET = "redis-py's SET"
UNIT = "sliding_log: one unit"
WANTED = {
    UNIT: 0.87,
    "sliding_log: cost 2": 0.95,
    "sliding_log: with an id": 1.05,
    "sliding_log: peek": 0.9,
    **{f"{algorithm}: one unit": 0.93 for algorithm in ALGORITHMS[1:]},
}
OVER_UNIT = {"sliding_log: schedule": 1.1, "behind 100": 1.1, "decide_all of 3": 1.4}
BEHIND = 200
PROVIDERS = [f"provider:{number}" for number in range(20)]
LONG_QUOTA = 129
"""From here on a log may be long; up to here it is read whole."""
FLOORS = {
    "nothing": "#!lua\nreturn 'ok'",
    "a GET and a SET": (
        "#!lua\nlocal v = redis.call('GET', KEYS[1])\n"
        "redis.call('SET', KEYS[1], 'xxxxxxxxxxxxxxxx', 'PX', 86400000)\nreturn v"
    ),
}


def plain_set(server: Server) -> Ask:
    """redis-py's SET."""
    client: Any = redis.Redis(port=server.port)
    return lambda subject: client.set(subject, "x" * 16)


def floor(server: Server, text: str) -> Ask:
    """This script by EVALSHA on a plain socket."""
    client: Any = redis.Redis(port=server.port)
    sha: str = client.script_load(text)
    wire = socket.create_connection(("127.0.0.1", server.port))

    def ask(subject: str) -> bool:
        wire.sendall(f"*4\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n1\r\n${len(subject)}\r\n{subject}\r\n".encode())
        return wire.recv(8192)[:1] == b"$"

    return ask


def small(limiter: Limiter) -> Ask:
    """One unit on a log that is always short."""
    return lambda subject: limiter.decide("small", subject).allowed


def special(limiter: Limiter) -> dict[str, Ask]:
    """A slot behind many, and three subjects at once."""
    for provider in PROVIDERS:
        check(all(limiter.schedule("crowd", provider) for _ in range(BEHIND)), "a crowd")

    def together(subject: str) -> bool:
        parts = (Attempt("three", subject), Attempt("campaign", "spring"), Attempt("tenant", "acme"))
        return limiter.decide_all(parts).allowed

    places = dict(zip((f"behind 100:{subject}" for subject in SUBJECTS), PROVIDERS * len(SUBJECTS), strict=False))
    return {
        "behind 100": lambda subject: limiter.schedule("crowd", places[subject]).wait > 0,
        "decide_all of 3": together,
    }


def compared(report: Report, kind: str, rounds: int, only: str) -> None:
    """Every row on one server."""
    own = [
        *policies(UNITS),
        Policy("small", [f"{LONG_QUOTA - 1}/second"]),
        Policy("crowd", ["100/hour"]),
        *(Policy(name, [f"{UNITS}/day"]) for name in ("three", "campaign", "tenant")),
    ]
    with (
        single(kind) as server,
        Limiter(server.url + "?deadline=10s", own) as limiter,
        Limiter(server.url, policies(SMALL), namespace="few") as few,
    ):
        works: dict[str, Ask] = {SET: plain_set(server)}
        works |= {f"floor: a script of {name}": floor(server, text) for name, text in FLOORS.items()}
        for algorithm in ALGORITHMS:
            exact(f"capline, {algorithm}", verbs(few, algorithm)["one unit"])
            works |= {f"{algorithm}: {verb}": ask for verb, ask in verbs(limiter, algorithm).items()}
            for name, ask in attempts(algorithm, SMALL, server.address).items():
                if not name.endswith("peek"):
                    exact(f"{name}, {algorithm}", ask(1))
            for name, ask in attempts(algorithm, UNITS, server.address).items():
                costs = {"": 1} if name.endswith("peek") else {", one unit": 1, ", cost 2": 2}
                works |= {f"{algorithm}: {name}{shown}": ask(cost) for shown, cost in costs.items()}
        works |= {"sliding_log: one unit, quota 128": small(limiter), **special(limiter)}
        works = {name: ask for name, ask in works.items() if name in (SET, UNIT) or only in name}
        rows = {name: asking(name.replace("peek", "one unit"), ask) for name, ask in works.items()}
        for work in rows.values():
            work()
        by_wall, by_processor = best_by_clocks(rows, rounds, [time.perf_counter, processor_clock(server.pid)])
    for name in works:
        shown = f"{kind}, {name}"
        report.add(f"{shown}, wall", by_wall[name] / len(SUBJECTS) * 1e6, "us")
        report.add(f"{shown}, processor", by_processor[name] / len(SUBJECTS) * 1e6, "us")
        for clock, best in (("wall", by_wall), ("processor", by_processor)):
            if name in OVER_UNIT:
                report.add(f"{shown}, {clock}, over one unit", best[name] / best[UNIT], "x", at_most=OVER_UNIT[name])
            elif name != SET:
                over = best[name] / best[SET]
                report.add(f"{shown}, {clock}, over SET", over, "x", at_most=WANTED.get(name))


def main() -> None:
    """Run and print."""
    options = arguments(__doc__, rounds=20, only="", kinds=",".join(KINDS))
    report = Report("Every path on a server over redis-py's SET, one limit, 1,000 subjects in turn")
    for kind in options.kinds.split(","):
        compared(report, kind, options.rounds, options.only)
    report.show(as_json=options.json)


if __name__ == "__main__":
    main()
