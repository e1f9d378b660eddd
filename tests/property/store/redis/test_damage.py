"""Stored values that are not what was written: an error of their own kind or a decision, and never a crash."""

# pyright: reportPrivateUsage=false, reportArgumentType=false

import random
import secrets
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.kit.server import SLOW, Limiters, each_kind, each_layout
from tests.kit.servers import Server, shared
from tests.profiles import size, sized

from capline import Attempt, CaplineError, Decision, IdConflictError, Limiter, ManualClock, Policy
from capline.model.decision import Joint
from capline.model.errors import StoreDamagedError
from capline.store.redis.scripting.keys import bucket_count, field_of, tag_of
from capline.store.redis.scripting.scripts import _folder
from capline.store.redis.scripting.value import ParsedLog, read_value

START_US = 1_700_000_000_000_000
POPULATION = 640

READ = b"""
local value, now = ARGV[1], '0'
%b
local log = decode(value)
if not log then return {err = 'DAMAGED'} end
local out = {string.format('%%.0f', log.floor)}
for _, row in ipairs(log.rows or {{0, 0, 0, log}}) do
  local log = row[4]
  for i = 1, log.n do
    out[#out + 1] = string.format('%%.0f', log.s[i])
    out[#out + 1] = string.format('%%.0f', log.c[i] - log.c[i - 1])
    out[#out + 1] = log.f and log.f[i] or ''
  end
end
return out
"""


def read_by_lua(server: Server, value: bytes) -> ParsedLog | None:
    """The value as log.lua understands it; None where it does not."""
    script = READ % b"".join((_folder() / f"{part}.lua").read_bytes() for part in ("prelude", "blocks", "log"))
    try:
        floor, *flat = server.command("EVAL", script, 0, value)
    except Exception as error:
        if "DAMAGED" in str(error):
            return None
        raise
    hits = [(int(flat[i]), int(flat[i + 1]), int.from_bytes(flat[i + 2])) for i in range(0, len(flat), 3)]
    return ParsedLog(hits, int(floor))


def read_by_python(value: bytes) -> ParsedLog | None:
    try:
        return msgspec.structs.replace(read_value(value), rows=None)
    except StoreDamagedError:
        return None


def policies(layout: str) -> list[Policy]:
    options: dict[str, Any] = {"layout": layout, "population": POPULATION}
    return [
        Policy("p", ["5/day", "9/week"], **options),
        Policy("wide", ["6/20days"], **options),
        Policy("widest", ["6/3650days"], **options),
        Policy("long", ["400/day", "900/week"], channels={"c": ["300/day"]}, **options),
        Policy("longest", ["4000/day"], **options),
        Policy("counter", ["5/day", "9/week"], algorithm="sliding_counter", **options),
        Policy("level", ["5/day", "9/week"], algorithm="gcra", **options),
    ]


def written(kind: str, layout: str) -> dict[str, tuple[str, bytes]]:
    """A value of each form, as the store wrote it, and its policy."""
    server = shared(kind)
    clock = ManualClock(START_US)
    name = f"t{secrets.token_hex(6)}"
    values: dict[str, tuple[str, bytes]] = {}
    with Limiter(f"{server.url}?{SLOW}&forms=next", policies(layout), clock=clock, namespace=name) as limiter:

        def take(form: str, policy: str, work: Callable[[str], None]) -> None:
            work(form)
            values[form] = (policy, raw(server, layout, name, policy, form))

        def some(policy: str, times: int, cost: int = 1, id: bool = False) -> Callable[[str], None]:
            def work(subject: str) -> None:
                for number in range(times):
                    clock.advance_us(1_000)
                    limiter.decide(policy, subject, cost, id=f"{number}" if id else None)

            return work

        def refunded(subject: str) -> None:
            hits = [limiter.decide("p", subject).hit for _ in range(3)]
            limiter.refund("p", subject, hits[1])

        def many(subject: str) -> None:
            limiter.decide_many("long", [subject] * 300)

        def units(subject: str) -> None:
            limiter.decide_many("longest", [subject] * 500)
            some("longest", 3)(subject)

        def blocks(subject: str, id: str | None) -> None:
            limiter.decide("longest", subject, 2)  # else it would be one of units
            hits = limiter.decide_many("longest", [subject] * 1_090).hit
            limiter.decide("longest", subject, 3, id=id)
            limiter.refund("longest", subject, int(hits[7]))

        take("plain", "p", some("p", 4))
        take("one hit", "p", some("p", 1))
        take("plain, wider", "wide", some("wide", 4))
        take("plain, widest", "widest", some("widest", 4))
        take("costs", "p", some("p", 2, 2))
        take("large costs", "long", some("long", 2, 150))
        take("ids", "p", some("p", 4, 1, id=True))
        take("refunded", "p", refunded)
        take("long", "long", many)
        take("long with ids", "long", lambda subject: [many(subject), some("long", 3, 2, id=True)(subject)] and None)  # noqa: SIM223
        take("long, of units", "longest", units)
        take("blocks", "longest", lambda subject: blocks(subject, None))
        take("blocks with ids", "longest", lambda subject: blocks(subject, "first"))
        take("counters", "counter", some("counter", 4))
        take("levels", "level", some("level", 2, 2))
        take("slots", "p", lambda subject: [limiter.schedule("p", subject) for _ in range(8)] and None)
    return values


def key_of(layout: str, namespace: str, policy: str, subject: str) -> bytes:
    buckets = bucket_count(POPULATION) if layout == "bucket" else 0
    return b"%b:%b:{%b}" % (namespace.encode(), policy.encode(), tag_of(subject, buckets))


def raw(server: Server, layout: str, namespace: str, policy: str, subject: str) -> bytes:
    key = key_of(layout, namespace, policy, subject)
    return server.command("HGET", key, field_of(subject)) if layout == "bucket" else server.command("GET", key)


def put(server: Server, layout: str, namespace: str, policy: str, subject: str, value: bytes) -> None:
    key = key_of(layout, namespace, policy, subject)
    if layout == "bucket":
        server.command("HSET", key, field_of(subject), value)
    else:
        server.command("SET", key, value)


def spoiled(draw: random.Random, value: bytes) -> bytes:  # noqa: PLR0911 - one line a kind of damage
    """Another value, not far from this one."""
    way = draw.randrange(7)
    at = draw.randrange(len(value))
    if way == 0:
        return value[:at] + bytes((value[at] ^ 1 << draw.randrange(8),)) + value[at + 1 :]
    if way == 1:
        return value[:at]
    if way == 2:
        return value + draw.randbytes(draw.randrange(1, 30))
    if way == 3:
        return draw.randbytes(draw.choice((1, 7, 8, 15, 22, 40, 2860, 4222)))
    if way == 4:
        return bytes((draw.choice((5, 6, 7, 64, 65, 71, 75, 97, 107, 128, 203, 235, 255)),)) + value[1:]
    if way == 5:
        many = draw.randrange(1, 9)
        return value[:at] + draw.choice((b"\0", b"\xff")) * many + value[at + many :]
    return value[:at] + draw.randbytes(draw.randrange(1, 20)) + value[at:]


@each_kind
@each_layout
def test_what_the_scripts_write_is_what_python_reads(kind: str, layout: str) -> None:
    forms = written(kind, layout)
    assert layout == "bucket" or (forms["blocks"][1][0], forms["blocks with ids"][1][0]) == (203, 235)
    assert layout == "bucket" or forms["long, of units"][1][0] == 65
    for form, (_, value) in forms.items():
        mine = read_by_python(value)
        assert mine is not None
        assert mine.hits
        assert read_by_lua(shared(kind), value) == mine, form


@each_kind
@sized
def test_lua_and_python_agree_on_what_is_a_log(kind: str) -> None:
    """But for numbers above 2^53, of which Lua knows no more than the size."""
    draw = random.Random(7)
    forms = [*written(kind, "subject").values()]
    agreed = damaged = 0
    for _ in range(size(400, 600, 1_500)):
        value = spoiled(draw, draw.choice(forms)[1])
        mine, theirs = read_by_python(value), read_by_lua(shared(kind), value)
        assert mine == theirs, value
        agreed += mine is not None
        damaged += mine is None
    assert agreed > 25
    assert damaged > 25


VERBS: dict[str, Callable[[Any, str, str], list[Any]]] = {
    "decide": lambda limiter, policy, subject: [limiter.decide(policy, subject) for _ in range(3)],
    "cost and id": lambda limiter, policy, subject: [limiter.decide(policy, subject, 2, id="2")],
    "peek": lambda limiter, policy, subject: [limiter.peek(policy, subject), limiter.peek(policy, subject, 3, id="1")],
    "schedule": lambda limiter, policy, subject: [limiter.schedule(policy, subject, max_wait=10.0)],
    "together": lambda limiter, policy, subject: [
        limiter.decide_all([Attempt(policy, "sound", cost), Attempt(policy, subject, cost)]) for cost in (1, 2)
    ],
    "refund": lambda limiter, policy, subject: [limiter.refund(policy, subject, START_US + 2_000)],
    "explain": lambda limiter, policy, subject: [limiter.explain(policy, subject)],
    "many": lambda limiter, policy, subject: _rows(limiter.decide_many(policy, [subject, subject, "sound"])),
    "peek many": lambda limiter, policy, subject: _rows(limiter.peek_many(policy, [subject, "sound"])),
    "batch": lambda limiter, policy, subject: limiter.decide_batch(
        [Attempt(policy, subject, 2), Attempt(policy, subject, id="0"), Attempt(policy, "sound", id="0")]
    ),
    "sweep": lambda limiter, policy, subject: [limiter.sweep()],
    "erase": lambda limiter, policy, subject: [limiter.erase(subject)],
}


def _rows(answers: Any) -> list[Any]:
    return [answers.errors.get(row) or answers[row] for row in range(len(answers))]


@each_kind
@each_layout
@sized
def test_a_damaged_value_is_an_error_of_its_subject_or_a_decision_and_nothing_else(
    kind: str, layout: str, sync_limiters: Limiters
) -> None:
    draw = random.Random(f"{kind}{layout}")
    server = shared(kind)
    clock = ManualClock(START_US + 1_000_000)
    limiter = sync_limiters(server, *policies(layout), clock=clock)
    forms = [*written(kind, layout).values()]
    quotas = {policy.name: max(limit.quota for limit in policy.limits) for policy in limiter.policies.values()}
    errors = decided = 0
    for number in range(size(300, 500, 1_200)):
        policy, value = draw.choice(forms)
        value = spoiled(draw, value)
        verb = draw.choice([*VERBS])
        put(server, layout, sync_limiters.namespace, policy, "bad", value)
        told = f"{verb} {policy} {value.hex()} ({number})"
        try:
            answers = VERBS[verb](limiter, policy, "bad")
        except CaplineError as error:
            assert isinstance(error, (StoreDamagedError, IdConflictError)), f"{told}: {error!r}"  # noqa: PT017
            errors += 1
            continue
        for answer in answers:
            if isinstance(answer, Decision):
                decided += 1
                assert 0 <= answer.remaining <= quotas[policy], told
                assert answer.retry_after_us is None or answer.retry_after_us >= 0, told
            elif isinstance(answer, CaplineError):
                errors += 1
                assert isinstance(answer, (StoreDamagedError, IdConflictError)), f"{told}: {answer!r}"
        if verb in ("many", "peek many", "batch"):
            assert isinstance(answers[-1], Decision), f"{told}: a sound subject was taken along"
        if layout == "bucket":
            server.command("DEL", key_of(layout, sync_limiters.namespace, policy, "bad"))
        limiter.erase("sound")
    assert errors > 25
    assert decided > 25


@each_kind
@pytest.mark.parametrize("form", ["long with ids", "long, of units", "blocks", "blocks with ids"])
def test_a_long_log_that_was_cut_is_damaged_or_shorter(kind: str, form: str, sync_limiters: Limiters) -> None:
    server = shared(kind)
    limiter = sync_limiters(server, *policies("subject"), clock=ManualClock(START_US + 1_000_000))
    policy, value = written(kind, "subject")[form]
    for end in range(9 * len(value) // 10, 9 * len(value) // 10 + 22):  # as far as an entry
        for verb in ("decide", "peek", "schedule", "together", "many"):
            put(server, "subject", sync_limiters.namespace, policy, "bad", value[:end])
            try:
                answers = VERBS[verb](limiter, policy, "bad")
            except StoreDamagedError:
                continue
            assert all(isinstance(answer, (Decision, Joint, StoreDamagedError)) for answer in answers)


@each_kind
@each_layout
def test_a_key_of_another_kind_is_damaged_in_its_own_row_only(kind: str, layout: str, limiters: Limiters) -> None:
    server = shared(kind)
    limiter = limiters(server, *policies(layout))
    sound = next(f"s{n}" for n in range(99) if key_of(layout, "n", "p", f"s{n}") != key_of(layout, "n", "p", "bad"))
    for policy in ("p", "long"):
        key = key_of(layout, limiters.namespace, policy, "bad")
        server.command("RPUSH", key, "not a log")
        for verb in ("decide", "cost and id", "peek", "schedule", "refund", "explain"):
            with pytest.raises(StoreDamagedError, match="erase the subject"):
                VERBS[verb](limiter, policy, "bad")
        for answers in (
            _rows(limiter.decide_many(policy, ["bad", sound])),
            _rows(limiter.peek_many(policy, [sound, "bad"]))[::-1],
            limiter.decide_batch([Attempt(policy, "bad"), Attempt(policy, sound, 2)]),
            limiter.decide_batch([Attempt(policy, "bad", id="1"), Attempt(policy, sound)]),
        ):
            assert isinstance(answers[0], StoreDamagedError)
            assert isinstance(answers[1], Decision)
        limiter.sweep()
        assert server.command("LLEN", key) == 1, "it is left as it is"
        server.command("DEL", key)


@each_kind
def test_a_damaged_log_of_a_channel_admits_nothing_on_the_policy_s_log(kind: str, limiters: Limiters) -> None:
    server = shared(kind)
    limiter = limiters(server, *policies("subject"))
    assert limiter.decide("long", "s", channel="c")
    key = key_of("subject", limiters.namespace, "long/c", "s")
    server.command("SET", key, b"nonsense")
    with pytest.raises(StoreDamagedError):
        limiter.decide("long", "s", channel="c")
    assert limiter.decide("long", "s").remaining == 398
    assert server.command("GET", key) == b"nonsense"
