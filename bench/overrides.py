"""Overrides: what each takes in the store, and what a decision with one costs beside a decision without.

`--overrides 5000000` is the figure of docs/reference/benchmarks.md; `--store` is a new LMDB file unless said,
or `redis` for a server of its own. Decisions are on a memory store. Checked: a sample of the
subjects has the limit that was set for it, and others have the policy's; a page of overrides costs a server what there
is of its policy, and the whole list has everybody once.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _harness import Report, arguments, best_interleaved, check
from _servers import single

from capline import Limiter, Policy
from capline.config.configuration import Configuration

if TYPE_CHECKING:
    from collections.abc import Callable

LOT = 50_000
QUOTA = 1_000_000_000
KINDS = 8
"""Limits that differ."""
SAMPLE = 1000
A_PAGE, FEW = 50, 10
MOST_COMMANDS, MOST_KB = 300, 100
"""Of a page, also with the follower's polls and this measurement's own question."""


def limit_of(number: int) -> str:
    """What is set for this user."""
    return f"{QUOTA + 1 + number % KINDS}/day"


def stored_bytes(url: str) -> int:
    """What the store holds: the size of its file, or the memory that a server uses."""
    if url.startswith("lmdb://"):
        return sum(path.stat().st_size for path in Path(url.removeprefix("lmdb://")).rglob("data.mdb"))
    import redis  # noqa: PLC0415 - an extra

    client: Any = redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType] - untyped
    used: int = client.info("memory")["used_memory"]
    client.close()
    return used


def load(configuration: Configuration, overrides: int) -> float:
    """Set so many; seconds."""
    begun = time.perf_counter()
    for first in range(0, overrides, LOT):
        last = min(first + LOT, overrides)
        configuration.override_many("promo", {f"user:{i}": [limit_of(i)] for i in range(first, last)}, who="bench")
    return time.perf_counter() - begun


def check_limits(limiter: Limiter, overrides: int) -> None:
    """Everybody has the limit that was set, or the policy's."""
    draw = random.Random(1)  # noqa: S311 - a sample
    for number in (0, overrides - 1, *(draw.randrange(overrides) for _ in range(SAMPLE))):
        found = str(limiter.peek("promo", f"user:{number}").limit)
        check(found == limit_of(number), f"user:{number} has {found}")
    check(str(limiter.peek("promo", f"user:{overrides}").limit) == f"{QUOTA}/day", "who has none got one")


def turn(report: Report, configuration: Configuration, url: str, overrides: int) -> None:
    """Pages of the many after some of them, and of ten beside them: rows, and what the dearest costs the server."""
    import redis  # noqa: PLC0415 - an extra

    client: Any = redis.Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType] - untyped
    draw = random.Random(2)  # noqa: S311 - a sample

    def spent() -> tuple[int, int]:
        told = client.info("stats")
        return told["total_commands_processed"], told["total_net_output_bytes"]

    for policy, rows, afters in (
        ("promo", overrides, [None, *(f"user:{draw.randrange(overrides)}" for _ in range(SAMPLE))]),
        ("few", FEW, [None]),
    ):
        commands, many_bytes, seconds = [0], [0], [0.0]
        for after in afters:
            before, begun = spent(), time.perf_counter()
            page, _ = configuration.overrides_page(policy, after, A_PAGE)
            seconds.append(time.perf_counter() - begun)
            now = spent()
            commands.append(now[0] - before[0] - 1)
            many_bytes.append(now[1] - before[1])
            check(len(page) == min(rows, A_PAGE) or after is not None, f"the first page of {policy} has {len(page)}")
        report.add(f"the dearest page of {rows:,}", max(commands), "commands", at_most=MOST_COMMANDS)
        report.add(f"the dearest page of {rows:,}", max(many_bytes) / 1e3, "kB", at_most=MOST_KB)
        report.add(f"half of the pages of {rows:,} within", statistics.median(seconds[1:]) * 1e3, "ms")
    client.close()
    walked = [subject for subject, _ in configuration.overrides("promo")]
    check(len(walked) == len({*walked}) == overrides, f"the whole list has {len({*walked})} of {overrides}")


def repeat(decide: Callable[[str, str], object], policy: str, subject: str, calls: int) -> None:
    """So many decisions."""
    for _ in range(calls):
        decide(policy, subject)


def main() -> None:
    """Print the figures."""
    asked = arguments(__doc__, overrides=100_000, store="lmdb", calls=20_000, rounds=15)
    report = Report(f"{asked.overrides:,} overrides: {asked.store}")
    with ExitStack() as stack:
        if asked.store == "lmdb":
            url = f"lmdb://{stack.enter_context(tempfile.TemporaryDirectory())}"
        else:
            url = f"{stack.enter_context(single(asked.store)).url}?deadline=30s&bulk_deadline=60s"
        with Configuration(url, namespace="bench") as configuration:
            policies = [Policy("promo", [f"{QUOTA}/day"]), Policy("plain", [f"{QUOTA}/day"])]
            configuration.set_policies([*policies, Policy("few", ["1/day"])], who="bench")
            before = stored_bytes(url.partition("?")[0])
            seconds = load(configuration, asked.overrides)
            size = stored_bytes(url.partition("?")[0]) - before
            if asked.store != "lmdb":
                configuration.override_many("few", {number: ["2/day"] for number in range(FEW)}, who="bench")
                turn(report, configuration, url.partition("?")[0], asked.overrides)
        report.add("set", asked.overrides / seconds, "overrides/s")
        report.add("in the store", size / asked.overrides, "bytes each")
        without = stack.enter_context(Limiter("memory://", policies=[Policy("plain", [f"{QUOTA}/day"])]))
        begun = time.perf_counter()
        limiter = stack.enter_context(Limiter.from_config(url, "memory://", namespace="bench"))
        report.add("a limiter is made of it", time.perf_counter() - begun, "s")
        check_limits(limiter, asked.overrides)
        best = best_interleaved(
            {
                "no configuration": partial(repeat, without.decide, "plain", "user:1", asked.calls),
                "a policy without overrides": partial(repeat, limiter.decide, "plain", "user:1", asked.calls),
                "one with them, the subject has none": partial(repeat, limiter.decide, "promo", "other", asked.calls),
                "a cached override": partial(repeat, limiter.decide, "promo", "user:1", asked.calls),
            },
            asked.rounds,
        )
    for name, seconds in best.items():
        report.add(f"a decision, {name}", seconds / asked.calls * 1e6, "us")
    bare, cached = best["no configuration"], best["a cached override"]
    report.add("with a cached override over without", cached / bare, "x", at_most=1.1)
    report.show(as_json=asked.json)


if __name__ == "__main__":
    main()
