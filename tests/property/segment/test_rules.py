"""Segments by rules over random events equal what plain Python decides of each user, one by one."""

import csv
import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import pytest
from tests.profiles import size

from capline.model.errors import SegmentError
from capline.segment import RuleBuild, build_segments, read_rules
from capline.segment.build.source import Rows

pa: Any = import_module("pyarrow")
pq: Any = import_module("pyarrow.parquet")

DAY_US = 86_400_000_000
AT_US = 1_700_000_000_000_000
KINDS = ("ride", "order paid", "signup")


class Event(NamedTuple):
    user: int
    at_us: int
    kind: str
    value: str


Holds = Callable[[list[Event]], bool]


def drawn(random: Random) -> list[Event]:
    """Events at and beside the edges of windows, in any order, some of them twice and some later than the instant."""
    ages = [days * DAY_US + beside for days in (-1, 0, 3, 7, 30) for beside in (-1, 0, 1)]
    values = ("", "0", "1.5", "2.25", "10", "-1.0001", "3.3333")
    rows = [
        Event(random.randrange(8), AT_US - random.choice(ages), random.choice((*KINDS, "other")), random.choice(values))
        for _ in range(random.randrange(1, 40))
    ]
    return rows + random.sample(rows, len(rows) // 4)


def condition(random: Random) -> tuple[str, str, Holds]:
    """A condition as it is written, and the same as a function of a user's events up to the instant."""
    days, kind, number = random.choice((3, 7, 30)), random.choice((*KINDS, "any")), random.choice((0, 1, 2, 3))
    edge, within = AT_US - days * DAY_US, random.random() < 0.5
    least, bound = random.random() < 0.5, random.choice(("3", "4.8333", "0"))
    age = f"{kind} within {days} days" if within else f"{kind} more than {days} days ago"
    span, since = (f" within {days} days", edge) if within else ("", 0)
    on = "" if kind == "any" else f" on {kind}"

    def of(events: list[Event]) -> list[Event]:
        return [each for each in events if kind in ("any", each.kind)]

    def some(events: list[Event]) -> list[Event]:
        return [each for each in of(events) if each.at_us > since]

    def aged(pick: Callable[[list[int]], int]) -> Holds:
        return lambda events: bool(of(events)) and (pick([each.at_us for each in of(events)]) > edge) == within

    def spent(events: list[Event]) -> bool:
        total = sum((Decimal(each.value or 0) for each in some(events)), Decimal(0))
        return (total >= Decimal(bound)) == least

    forms: list[tuple[str, str, Holds]] = [
        ("first", age, aged(min)),
        ("last", age, aged(max)),
        ("never", f"{kind}{span}", lambda events: not some(events)),
        ("at_least", f"{number} {kind}{span}", lambda events: len(some(events)) >= number),
        ("at_most", f"{number} {kind}{span}", lambda events: len(some(events)) <= number),
        ("spent", f"{'at least' if least else 'less than'} {bound}{on}{span}", spent),
    ]
    return random.choice(forms)


def key(row: Event, texts: list[tuple[str, str]]) -> tuple[object, ...]:
    """What makes an event the same as another: all that some rule reads of it."""
    kind = row.kind if any(kind in text for _, text in texts for kind in KINDS) else ""
    return row.user, row.at_us, kind, Decimal(row.value or 0) if any(name == "spent" for name, _ in texts) else 0


def written(random: Random, path: Path, rows: list[Event]) -> Path:
    """The events as a file, in one of the forms."""
    form = random.randrange(3)
    if form == 0:
        path = path.with_suffix(".jsonl")
        lines = [
            {
                "user": row.user,
                "time": f"{row.at_us / 1e6:.6f}",
                "event": row.kind,
                "value": float(row.value or 0) or None,
            }
            for row in rows
        ]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return path
    if form == 1:
        path = path.with_suffix(".csv")
        with path.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(("user", "time", "event", "value"))
            out.writerows((row.user, f"{row.at_us / 1e6:.6f}", row.kind, row.value) for row in rows)
        return path
    path = path.with_suffix(".parquet")
    times = pa.array([row.at_us for row in rows], pa.timestamp("us", random.choice(("UTC", "Asia/Tokyo", None))))
    values = pa.array([Decimal(row.value) if row.value else None for row in rows], pa.decimal128(20, 4))
    columns: dict[str, Any] = {"event": [row.kind for row in rows], "user": [row.user for row in rows]}
    pq.write_table(pa.table({**columns, "time": times, "value": values}), path)
    return path


@pytest.mark.parametrize("seed", range(size(40, 400)))
def test_each_user_is_where_plain_python_puts_it(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    rules: dict[str, dict[str, tuple[str, Holds]]] = {}
    for name in ("one", "two", "three"):
        conditions = [condition(random) for _ in range(random.randrange(1, 3))]
        rules[name] = {key: (text, holds) for key, text, holds in conditions}
    lines = [
        f"  {name}: {{{', '.join(f'{key}: {text}' for key, (text, _) in of.items())}}}" for name, of in rules.items()
    ]
    (tmp_path / "rules.yaml").write_text("\n".join(["columns: {id: user}", "segments:", *lines, ""]))
    try:
        read = read_rules(tmp_path / "rules.yaml")
    except SegmentError as error:
        if "the same rule" not in str(error):
            raise
        return
    rows = drawn(random)
    half = random.randrange(len(rows) + 1) or len(rows)
    files = [
        written(random, tmp_path / f"e{place}", part) for place, part in enumerate((rows[:half], rows[half:])) if part
    ]
    (tmp_path / "users.csv").write_text("user\n3\n8\n9\n")
    users, distinct = random.choice((None, tmp_path / "users.csv")), random.random() < 0.3
    build = RuleBuild(read, files, AT_US, users=users, drop_duplicates=distinct)
    found = build_segments(cast("Iterable[Rows]", build.rows(tmp_path)), build.names)
    texts = [(name, text) for of in rules.values() for name, (text, _) in of.items()]
    past = [row for row in rows if row.at_us <= AT_US]
    used = list({key(row, texts): row for row in past}.values()) if distinct else past
    known = {row.user for row in used} | ({3, 8, 9} if users else set[int]())
    expected: dict[str, set[int]] = {name: set() for name in rules}
    for user in known:
        events = [row for row in used if row.user == user]
        for name, conditions in rules.items():
            if all(holds(events) for _, holds in conditions.values()):
                expected[name].add(user)
                break
    assert {name: set(ids) for name, ids in found.items()} == expected, (tmp_path / "rules.yaml").read_text()
    assert (build.events, build.later, build.used, build.users) == (
        len(rows),
        len(rows) - len(past),
        len(used),
        len(known),
    )
