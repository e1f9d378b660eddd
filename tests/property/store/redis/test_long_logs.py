"""Logs of hundreds of hits on a server: read in blocks, searched, appended to in place, trimmed by halves; and queues.

The state machine seldom gets a log that long or a queue, so here random steps begin on one that is, or make one, beside
the reference.
"""

import random
import re
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.kit.servers import KINDS, Server, shared
from tests.profiles import first, pairs, size, sized

from capline import Attempt, Decision, Limiter, ManualClock, Policy
from capline.model.errors import IdConflictError
from capline.testing import Reference

START_US = 1_700_000_000_000_000
LIMITS = (["300/1000us"], ["150/500us", "400/5000us"], ["700/3000us", "2000/20000us"], ["250/30us", "260/900us"])


class Beside:
    """A store and the reference, asked the same."""

    def __init__(
        self, url: str, limits: list[str], layout: str, start_us: int = START_US, forms: str = "present"
    ) -> None:
        self.clock = ManualClock(start_us)
        policies = [Policy("p", limits, layout=layout)]
        self.namespace = "n" + secrets.token_hex(4)
        self.limiter = Limiter(
            f"{url}?deadline=20s&forms={forms}", policies=policies, clock=self.clock, namespace=self.namespace
        )
        self.reference = Reference(policies, self.clock)
        self.hits: list[int] = []

    def ask(self, verb: str, *args: Any, **options: Any) -> None:
        try:
            expected = getattr(self.reference, verb)("p", "s", *args, **options)
        except IdConflictError:
            with pytest.raises(IdConflictError):
                getattr(self.limiter, verb)("p", "s", *args, **options)
            return
        assert getattr(self.limiter, verb)("p", "s", *args, **options) == expected, (verb, args, options)
        if verb in ("decide", "schedule") and expected.hit is not None:
            self.hits.append(expected.hit)

    def refund(self, hit: int) -> None:
        assert self.limiter.refund("p", "s", hit) == self.reference.refund("p", "s", hit)

    def settle(self, hit: int, units: int) -> None:
        assert self.limiter.settle("p", "s", hit, units) == self.reference.settle("p", "s", hit, units)

    def same_history(self) -> None:
        mine = [(hit.stamp_us, hit.units) for hit in self.limiter.explain("p", "s").hits]
        assert mine == self.reference.hits("p", "s")[0]


@pytest.fixture
def beside() -> Iterator[Callable[..., Beside]]:
    """Makes them; they are closed when the test ends."""
    with ExitStack() as stack:

        def make(*args: Any) -> Beside:
            pair = Beside(*args)
            stack.callback(pair.limiter.close)
            return pair

        yield make


def unit_steps(pair: Beside, chance: random.Random, steps: int, most_us: int) -> None:
    """One unit at a time, as traffic is: now steady, now in bursts, now with a clock that steps back."""
    for _ in range(steps):
        pair.clock.advance_us(chance.choice((0, 0, 1, 2, chance.randrange(most_us), -chance.randrange(3))))
        pair.ask("decide")


def mixed_steps(pair: Beside, chance: random.Random, steps: int, most_us: int) -> None:
    for step in range(steps):
        pair.clock.advance_us(chance.choice((0, 1, 3, chance.randrange(most_us), -chance.randrange(9))))
        match chance.randrange(13):
            case 12 if pair.hits:
                pair.settle(chance.choice(pair.hits[-200:]), chance.choice((1, 2, 9)))
            case 0 | 1 | 2 | 3:
                pair.ask("decide")
            case 4:
                pair.ask("decide", chance.choice((2, 7, 100, 1000)))
            case 5:
                pair.ask("decide", chance.choice((1, 1, 2)), f"id{chance.randrange(step + 1)}")
            case 6:
                pair.ask("peek", chance.choice((1, 5, 200)))
            case 7:
                pair.ask("schedule", chance.choice((1, 1, 3)), max_wait=chance.choice((None, 0, most_us * 1e-5)))
            case 8 | 9 if pair.hits:
                pair.refund(chance.choice((pair.hits[-1], chance.choice(pair.hits[-200:]))))
            case 10 if chance.random() < 0.2:
                pair.same_history()
            case _:
                pair.ask("decide")


def queue_steps(pair: Beside, chance: random.Random, steps: int, window_us: int) -> None:
    """Slots behind others: a queue that grows, shrinks, ends and begins again."""
    for step in range(steps):
        pair.clock.advance_us(chance.choice((0, 0, 1, chance.randrange(window_us))))
        if step % 10 == 0:
            pair.same_history()
            pair.clock.advance_us(-chance.randrange(window_us))
        if step % 20 == 19:
            about_the_end_of_the_queue = max(pair.hits) + chance.randrange(-2, 2 * window_us)
            pair.clock.advance_us(about_the_end_of_the_queue - pair.clock.now_us())
        match chance.randrange(24):
            case 0:
                pair.ask(chance.choice(("decide", "charge")), chance.choice((1, 1, 2)))
            case 1:
                pair.ask("schedule", max_wait=chance.choice((0, 1e-6, window_us * 1e-6)))
            case 2 if step % 3 == 0:
                pair.ask("decide", 1, f"id{step // 20}")
            case 3 if step % 3 == 0:
                end_queue(pair)
                pair.clock.advance_us(-chance.randrange(window_us))
            case 4 if step % 5 == 0:  # far off: those behind it wait for it alone
                pair.ask("schedule", not_before=8 * window_us * 1e-6)
            case 5 if pair.hits:
                pair.refund(chance.choice(pair.hits[-50:]))
            case _:
                pair.ask("schedule")


def end_queue(pair: Beside) -> None:
    """Nobody waits any more: each gives its slot back."""
    now_us = pair.clock.now_us()
    for hit in pair.hits:
        if hit > now_us:
            pair.refund(hit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize(
    ("limits", "window_us"),
    [
        (["1/5us"], 5),
        (["3/10us", "5/40us"], 8),
        (["7/100us", "90/2000us"], 30),
        (["110/1000us"], 12),
        (["3/day", "10/week"], 86_400_000_000),
        (["2/hour", "30/3600 days"], 3_600_000_000),
    ],
    ids=str,
)
@sized
def test_a_queue(beside: Callable[..., Beside], kind: str, layout: str, limits: list[str], window_us: int) -> None:
    pair = beside(shared(kind).url, limits, layout)
    queue_steps(pair, random.Random(f"{limits} queue"), size(150, 250, 400), window_us)


@pytest.mark.parametrize(
    "limits", first(3, [["100/600us"], ["150/500us", "151/501us", "400/700us"], *LIMITS]), ids=" ".join
)
@pytest.mark.parametrize("seed", first(1, [1, 2]))
@sized
def test_a_long_queue(beside: Callable[..., Beside], limits: list[str], seed: int) -> None:
    pair = beside(shared(KINDS[seed % 2]).url, limits, "subject")
    chance = random.Random(f"{limits} queue {seed}")
    unit_steps(pair, chance, 200, 3)
    for _ in range(5):
        for _ in range(60):
            pair.ask("schedule")
        pair.clock.advance_us(chance.randrange(20))
    queue_steps(pair, chance, size(100, 200, 300), 40)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", first(1, LIMITS), ids=" ".join)
def test_unit_by_unit_on_a_long_log(beside: Callable[..., Beside], kind: str, limits: list[str]) -> None:
    pair = beside(shared(kind).url, limits, "subject")
    chance = random.Random(f"{limits} units")
    unit_steps(pair, chance, 900, 6)
    unit_steps(pair, chance, 300, 60)
    # Some two hundred in the widest window: below the quota, and the rest is trimmed by halves on the way.
    widest_us = max(limit.window_us for limit in pair.limiter.policies["p"].limits)
    for _ in range(900):
        pair.clock.advance_us(chance.choice((0, widest_us // 100)))
        pair.ask("decide")
    pair.same_history()


@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize("limits", first(2, LIMITS), ids=" ".join)
@pytest.mark.parametrize("seed", first(1, [1, 2]))
def test_every_verb_on_a_long_log(beside: Callable[..., Beside], layout: str, limits: list[str], seed: int) -> None:
    pair = beside(shared(KINDS[seed % 2]).url, limits, layout)
    chance = random.Random(f"{limits} {seed}")
    unit_steps(pair, chance, 250, 4)
    mixed_steps(pair, chance, 350, 12)
    unit_steps(pair, chance, 80, 12)
    mixed_steps(pair, chance, 120, 200)
    pair.same_history()


@pytest.mark.parametrize("limits", [["9000/hour"], ["1/ms"], ["1/ms", "100/s"]], ids=" ".join)
def test_no_attempt_reads_a_long_log_whole(beside: Callable[..., Beside], limits: list[str]) -> None:
    server = shared("redis")
    pair = beside(server.url, limits, "subject")
    for _ in range(200):
        pair.ask("decide" if limits[0] == "9000/hour" else "schedule")
    server.command("CONFIG", "RESETSTAT")
    attempts = (("decide",), ("decide", 2), ("decide", 1, "id"), ("peek",), ("peek", 3), ("schedule", 2), ("charge", 1))
    for verb, *args in attempts if limits[0] == "9000/hour" else attempts[::2]:
        pair.ask(verb, *args)
    assert pair.limiter.decide_many("p", ["s", "other"]).allowed.tolist() == [limits[0] == "9000/hour", True]
    used = str(server.command("INFO", "commandstats"))
    reads = re.search(r"cmdstat_get:calls=(\d+)", used)  # with slots, of the record of reservations that may be beside
    assert (int(reads[1]) if reads else 0) <= (0 if limits[0] == "9000/hour" else 5)
    assert "cmdstat_mget:" not in used


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forms", first(1, ["present", "next"]))
def test_charges_before_thousands_of_slots(beside: Callable[..., Beside], kind: str, forms: str) -> None:
    """Each moves the bytes of all slots behind it; by blocks, the last of each block goes into the next."""
    pair = beside(shared(kind).url, ["1/ms", "9000/hour"], "subject", START_US, forms)
    for i in range(2_150):
        pair.ask("schedule", id=f"id{i}" if i % 3 else None)
    pair.clock.advance_us(pair.hits[1000] - START_US)
    pair.settle(pair.hits[1023], 1 << 41)  # the last of a block; those before it have less than this in the next
    for _ in range(3):
        pair.ask("charge", 1)
    for place in (1010, 1023, 1023, 1024, 2047, 2100):
        pair.clock.advance_us(pair.hits[place] + 1 - pair.clock.now_us())
        pair.ask("charge", 5)
        pair.settle(pair.hits[place], 3_000)
        for cost in (2, 1, 3):
            pair.ask("charge", cost, f"charged {place} {cost}")
        pair.refund(pair.hits[place])
        pair.settle(pair.hits[place - 1], 9_000)
        pair.ask("charge", 1)
        pair.ask("decide")
        pair.ask("schedule")
        pair.clock.advance_us(-700_000)
        pair.ask("charge", 1)
    pair.same_history()


@pytest.mark.parametrize("forms", first(1, ["next", "present"]))
@pytest.mark.parametrize("named", first(1, [True, False]), ids=["with ids", "plain"])
@sized
def test_charges_on_the_room_in_front_of_thousands_of_slots(
    beside: Callable[..., Beside], named: bool, forms: str
) -> None:
    """The first moves what is behind it and leaves room for some more, until that is used up, and hits have aged."""
    pair = beside(shared("redis").url, ["1/ms", "9000/s"], "subject", START_US, forms)
    chance = random.Random(f"{named} {forms}")
    for i in range(size(2_300, 4_300, 5_300)):
        pair.ask("schedule", id=f"id{i}" if named and i % 3 else None)
    pair.clock.advance_us(300)
    pair.settle(pair.hits[700], 90)  # by blocks, some are ahead
    for step in range(300):
        pair.ask("charge", chance.choice((1, 1, 3)), f"charged {step}" if named and step % 2 else None)
        if step % 20 == 0:
            pair.ask("peek")
            pair.settle(pair.hits[step], 1 + step)
            pair.refund(pair.hits[chance.randrange(1_500)])
            pair.ask("charge", 1, f"charged {step - 1}" if named else None)
            pair.clock.advance_us(chance.choice((1, 900, 2_000, 30_000)))
        if step % 100 == 99:
            pair.same_history()
            pair.ask("schedule")
    pair.clock.advance_us(2_300_000)  # hits in front have aged, and others there are in another block
    for place in (1_700, 2_000, 2_200):
        pair.settle(pair.hits[place], 90)
        pair.ask("charge", 3)
        pair.same_history()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forms", ["present", "next"])
@pytest.mark.parametrize("named", first(1, [True, False]), ids=["with ids", "plain"])
def test_changes_of_a_hit_far_back(beside: Callable[..., Beside], kind: str, named: bool, forms: str) -> None:
    """The thousands of hits behind it are rewritten a thousand at a time; by blocks, those of one block."""
    pair = beside(shared(kind).url, ["9000/hour"], "subject", START_US, forms)
    attempts = [Attempt("p", "s", id=f"id{i}" if named and i % 3 else None) for i in range(2_150)]
    answers = pair.limiter.decide_batch(attempts)
    pair.hits = [answer.hit or 0 for answer in answers if isinstance(answer, Decision)]
    for i, attempt in enumerate(attempts):
        assert pair.reference.decide("p", "s", 1, attempt.id).hit == pair.hits[i]
    for place in (-1, -2, -999, -1000, -1001, -2000, -2001, 1, 0):
        pair.settle(pair.hits[place], 3)
        pair.refund(pair.hits[place])
        pair.refund(pair.hits[place])
        pair.settle(pair.hits[place - 3], 2)
        pair.ask("decide", 1, attempts[place].id)
    pair.ask("decide", 1, "the first id")
    pair.same_history()
    pair.ask("peek", 1)
    [key] = shared(kind).command("KEYS", f"{pair.namespace}*")
    assert shared(kind).command("GET", key)[0] == (107 if forms == "present" else 235)


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_by_blocks_is_trimmed(beside: Callable[..., Beside], kind: str) -> None:
    server = shared(kind)
    pair = beside(server.url, ["3000/15ms"], "subject", START_US, "next")
    for named in (None, "first", *[None] * 100):
        for _ in range(1_150 if not pair.hits else 1):
            pair.clock.advance_us(10)
            pair.ask("decide", 1 if pair.hits else 2, named)  # else it would be one of units
    pair.clock.advance_us(9_500)  # some 700 are old now
    for _ in range(70):
        pair.ask("decide")
    [key] = server.command("KEYS", f"{pair.namespace}*")
    value: bytes = server.command("GET", key)
    narrow, skipped, *_ = BLOCKS.unpack_from(value, 22)
    assert (value[0], narrow > 0, skipped > 0) == (235, True, True)  # hits without bytes for an id, within a block
    pair.ask("decide", 1, "first")
    for _ in range(700):
        pair.ask("decide")
    pair.refund(pair.hits[900])
    pair.settle(pair.hits[1_150], 3)
    pair.same_history()


CHANGES: dict[str, Callable[[Beside], None]] = {
    "a cost": lambda pair: pair.ask("decide", 2),
    "an id": lambda pair: pair.ask("decide", 1, "an id"),
    "a slot": lambda pair: pair.ask("schedule", max_wait=1.0),
    "a later slot": lambda pair: pair.ask("schedule", not_before=0.3),
    "a charge": lambda pair: pair.ask("charge", 30),
    "a refund": lambda pair: pair.refund(pair.hits[-200]),
    "a settlement": lambda pair: pair.settle(pair.hits[-200], 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "limits", "unit_us", "tag"),
    pairs(
        CHANGES,
        [(["450/7500 min", "500/10000 min"], 1_000_000, 65), (["450/2745 days", "500/3660 days"], 527_040_000, 67)],
    ),
)
def test_a_change_of_a_long_log_of_units(
    beside: Callable[..., Beside], kind: str, change: str, limits: list[str], unit_us: int, tag: int
) -> None:
    """It is full, trimmed by eighths and outlives its first stamp's 40 bits, then has one change, and units again.

    A third of the callers lack the setting.
    """
    server = shared(kind)
    pair = beside(server.url, limits, "subject", START_US, "next")
    older = Limiter(
        f"{server.url}?deadline=20s", [*pair.limiter.policies.values()], clock=pair.clock, namespace=pair.namespace
    )

    def units(many: int, begun: bool = True) -> None:
        for number in range(many):
            pair.clock.advance_us((700, 1_300, 1_200)[number % 3] * unit_us)
            if begun and number % 50 > 33:
                assert older.decide("p", "s") == pair.reference.decide("p", "s")
            else:
                pair.ask("decide")

    with older:
        units(450, begun=False)
        units(700)
        [key] = server.command("KEYS", f"{pair.namespace}*")
        value: bytes = server.command("GET", key)
        assert value[0] == tag
        assert len(value) <= 15 + (tag - 60) * (600 + 64)
        CHANGES[change](pair)
        units(140)
        pair.clock.advance_us(100_000 * unit_us)
        units(20)
        pair.same_history()


def test_units_of_a_long_log_are_as_before_without_the_setting(beside: Callable[..., Beside]) -> None:
    pair = beside(shared("redis").url, ["500/600ms"], "subject")
    for _ in range(1_100):
        pair.clock.advance_us(1_100)
        pair.ask("decide")
    [key] = shared("redis").command("KEYS", f"{pair.namespace}*")
    assert shared("redis").command("GET", key)[0] == 75


@pytest.mark.parametrize("limits", first(2, LIMITS), ids=" ".join)
@pytest.mark.parametrize("seed", first(1, [1, 2, 3]))
def test_every_verb_on_a_long_log_by_blocks(beside: Callable[..., Beside], limits: list[str], seed: int) -> None:
    """Processes without the setting keep a log by blocks that another began, wherever its blocks end."""
    server = shared(KINDS[seed % 2])
    pair = beside(server.url, limits, "subject")
    chance = random.Random(f"{limits} blocks {seed}")
    begun = 0
    for turn in range(size(6, 9, 20)):
        unit_steps(pair, chance, 150, 3)
        begun += begin_blocks(server, pair, -chance.randrange(90))
        unit_steps(pair, chance, 5, 3)
        for hit in chance.sample(pair.hits[-200:], 6):
            chance.choice((pair.refund, lambda hit: pair.settle(hit, 3)))(hit)
        pair.same_history()
        if turn % 3 == 2:
            mixed_steps(pair, chance, 40, 4)
            queue_steps(pair, chance, 4, 9)
            pair.ask("charge", 2)
    assert begun > 4


@pytest.mark.parametrize("kind", KINDS)
def test_units_on_a_long_log_by_blocks(beside: Callable[..., Beside], kind: str) -> None:
    """The fast path passes from block to block, and behind trims by halves."""
    server = shared(kind)
    pair = beside(server.url, ["130/5000us", "450/20000us"], "subject")
    chance = random.Random(f"{kind} units by blocks")
    for turn in range(size(4, 8, 30)):
        unit_steps(pair, chance, 150, 400)
        assert begin_blocks(server, pair, (1, 2, 3)[turn % 3])
        unit_steps(pair, chance, 6, 400)
        assert begin_blocks(server, pair, -40)
        pair.same_history()
        pair.clock.advance_us(11_000)  # so that a trim moves the ends of blocks
        unit_steps(pair, chance, 70, 20)
        pair.same_history()
    unit_steps(pair, chance, 150, 400)
    pair.refund(pair.hits[-60])
    pair.ask("schedule", not_before=0.001)
    pair.ask("schedule", id="an id")
    assert begin_blocks(server, pair, -5)
    for _ in range(2):
        pair.ask("charge", 1, "another id")
    assert begin_blocks(server, pair, -5)
    pair.same_history()
    pair.clock.advance_us(11_000)
    unit_steps(pair, chance, 70, 20)
    pair.same_history()


BLOCKS = struct.Struct(">IH256q")
LONG_BYTES = 1814


def begin_blocks(server: Server, pair: Beside, behind: int) -> bool:
    """Write a long log as one by blocks, the first to end so many hits behind the newest; False where it is short."""
    [key] = server.command("KEYS", f"{pair.namespace}*")
    value: bytes = server.command("GET", key)
    tag, at = value[0], 22
    if tag in (65, 66) and len(value) > LONG_BYTES:
        stamps = [int.from_bytes(value[at : at + tag - 60]) for at in range(15, len(value), tag - 60)]
        first_us = int.from_bytes(value[8:15])
        long = [(first_us + stamp).to_bytes(7) + i.to_bytes(7) for i, stamp in enumerate(stamps, 1)]
        tag, value = 75, b"".join((value[:8], bytes(14), *long))
    if tag not in (75, 107, 203, 235):
        return False
    narrow, skipped, ahead = 0, 0, [0] * 256
    if tag >= 192:
        narrow, skipped, *ahead = BLOCKS.unpack_from(value, 22)
        tag, at = tag - 128, 22 + BLOCKS.size
    entries: list[tuple[bytes, int, bytes]] = []
    while at < len(value):
        units = int.from_bytes(value[at + 7 : at + 14]) + ahead[(skipped + len(entries)) // 1024]
        end = at + (14 if tag == 75 or len(entries) < narrow else 22)
        entries.append((value[at : at + 7], units, value[at + 14 : end]))
        at = end
    narrow = 0
    if tag == 107:
        named = [i for i, entry in enumerate(entries) if entry[2].strip(b"\0")]
        narrow = min(named, default=len(entries))
    skipped = 1024 - len(entries) - behind
    ahead = [-7 * len(value), *[-1_000] * 255]
    written = [bytes([tag + 128]), value[1:22], BLOCKS.pack(narrow, skipped, *ahead)]
    for i, (stamp, units, id) in enumerate(entries):
        written += stamp, (units - ahead[(skipped + i) // 1024]).to_bytes(7)
        written.append((id or bytes(8)) if tag == 107 and i >= narrow else b"")
    return bool(server.command("SET", key, b"".join(written), "KEEPTTL"))


@pytest.mark.parametrize("layout", ["subject", "bucket"])
@pytest.mark.parametrize(
    ("limits", "start_us", "most_us"),
    [
        (["3/day", "10/week"], 0, 86_400_000_000),
        (["20/30 days"], START_US, 86_400_000_000 * 3),
        (["30/3600 days"], START_US, 86_400_000_000 * 200),
        (["5/s", "9/min"], (1 << 53) - 10**13, 700_000),
    ],
    ids=["0", "now", "now-wide", "last"],
)
def test_stamps_of_every_width_from_the_first_instant_to_the_last(
    beside: Callable[..., Beside], layout: str, limits: list[str], start_us: int, most_us: int
) -> None:
    pair = beside(shared("redis").url, limits, layout, start_us)
    chance = random.Random(f"{limits}")
    for _ in range(250):
        pair.clock.advance_us(chance.choice((0, 1, chance.randrange(most_us // 10), chance.randrange(most_us))))
        pair.ask("decide")
    for step in range(60):
        pair.clock.advance_us(chance.randrange(most_us // 3))
        pair.ask("decide", chance.choice((1, 1, 2)), chance.choice((None, f"id{step // 2}")))
        pair.ask("schedule", 1, max_wait=most_us * 1e-6)
    pair.same_history()
