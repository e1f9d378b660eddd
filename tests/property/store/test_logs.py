"""Merged logs: as if each hit had been recorded at its own time, whatever comes when, in which parts, and how often."""

import secrets
from collections.abc import Iterator
from functools import cache
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.servers import shared
from tests.profiles import size

from capline import Limiter, LogRecord, ManualClock, PastHit, Policy
from capline.limiter.arguments.records import line_of, read_line
from capline.model.errors import InvalidValueError
from capline.store.redis.scripting.keys import field_of, subject_of, tag_of
from capline.testing import Reference

START_US = 1_700_000_000_000_000
WINDOW_US = 200
STORES = ("memory", "lmdb", "redis", "redis-bucket")


def policies(limits: list[str], layout: str = "subject") -> list[Policy]:
    channels = {"push": [f"9/{WINDOW_US}us"]}
    return [Policy("p", limits, channels=channels, layout=layout, population=500)]


def unmarked(record: LogRecord) -> str:
    """A log, but for the marks of refunded hits: a store may keep the newest one alone."""
    hits = [(stamp_us, units, units and fingerprint) for stamp_us, units, fingerprint in record.hits]
    return f"{record.log} {record.subject!r} {hits}"


@cache
def url_of(store: str) -> str:
    if store == "memory":
        return "memory://"
    if store == "lmdb":
        return f"lmdb://{mkdtemp()}/store"
    return shared("redis").url + "?deadline=20s&bulk_deadline=60s"


def limiter_of(store: str, limits: list[str], clock: ManualClock) -> Limiter:
    layout = "bucket" if store.endswith("bucket") else "subject"
    return Limiter(url_of(store), policies(limits, layout), clock=clock, namespace=f"n{secrets.token_hex(8)}")


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    yield
    url_of.cache_clear()


pasts = st.lists(
    st.tuples(st.integers(1, 900), st.integers(1, 3), st.sampled_from([None, "push"]), st.booleans()),
    max_size=40,
    unique_by=lambda past: past[0],
)
few = settings(max_examples=size(10, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("store", STORES)
@few
@given(pasts, st.randoms(use_true_random=False), st.integers(0, 900))
def test_loaded_in_any_order_and_twice_every_decision_is_the_references(
    store: str, past: list[tuple[int, int, str | None, bool]], random: object, asked_at: int
) -> None:
    sent = [
        PastHit("p", "s", START_US + at, cost, channel, f"id{at}" if named else None)
        for at, cost, channel, named in sorted(past)
    ]
    limits = [f"8/{WINDOW_US}us", f"5/{WINDOW_US // 4}us"]
    clock, then = ManualClock(START_US + 1000), ManualClock(START_US)
    reference = Reference(
        [Policy("p", [f"1000000/{WINDOW_US}us"], channels={"push": [f"1000000/{WINDOW_US}us"]})], then
    )
    for hit in sent:
        then.advance_us(hit.at_us - then.now_us())
        assert reference.decide("p", "s", hit.cost, hit.id, channel=hit.channel)
    then.advance_us(START_US + 1000 - then.now_us())
    reference.use(policies(limits))
    mixed = [*sent, *sent]
    random.shuffle(mixed)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - hypothesis' own
    with limiter_of(store, limits, clock) as limiter:
        loaded = limiter.load(mixed)
        counted = [hit for hit in sent if hit.at_us > START_US + 1000 - WINDOW_US]
        assert (loaded.added, loaded.known) == (len(counted), len(counted))
        assert loaded.old == 2 * (len(sent) - len(counted))
        for step in (0, asked_at // 10, asked_at // 5):
            clock.advance_us(step)
            then.advance_us(step)
            assert [(hit.stamp_us, hit.units) for hit in limiter.explain("p", "s").hits] == reference.hits("p", "s")[0]
            for channel in (None, "push"):
                for cost in (1, 3, 5):
                    assert limiter.peek("p", "s", cost, channel=channel) == reference.peek(
                        "p", "s", cost, channel=channel
                    )
            for hit in counted:
                if hit.id and hit.at_us > clock.now_us() - WINDOW_US:
                    assert limiter.decide("p", "s", hit.cost, hit.id, channel=hit.channel) == reference.decide(
                        "p", "s", hit.cost, hit.id, channel=hit.channel
                    )
            assert limiter.decide("p", "s", channel="push") == reference.decide("p", "s", channel="push")


crowds = st.lists(
    st.lists(
        st.tuples(
            st.integers(1, 20),
            st.integers(1, 2),
            st.sampled_from([None, "push"]),
            st.sampled_from([None, "a", "b", "c"]),
        ),
        min_size=1,
        max_size=12,
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("store", STORES[1:])
@few
@given(crowds, st.lists(st.integers(1, 25), max_size=3))
def test_where_hits_crowd_in_a_few_microseconds_every_store_puts_them_where_memory_does(
    store: str, crowd: list[list[tuple[int, int, str | None, str | None]]], refunds: list[int]
) -> None:
    clock = ManualClock(START_US + 15)
    with limiter_of("memory", ["99/1ms"], clock) as one, limiter_of(store, ["99/1ms"], clock) as other:
        for lot in crowd:
            records = [PastHit("p", "s", START_US + at, units, channel, name) for at, units, channel, name in lot]
            plain = [(START_US + at, units, 0) for at, units, _, _ in lot]
            assert other.load(records) == one.load(records)
            assert other.load([LogRecord("p", "s", plain)]) == one.load([LogRecord("p", "s", plain)])
            for at in refunds:
                assert other.refund("p", "s", START_US + at) == one.refund("p", "s", START_US + at)
            assert sorted(map(unmarked, other.export())) == sorted(map(unmarked, one.export()))
            repeated = [*records, LogRecord("p", "s", plain), *one.export()]
            again = one.load(repeated)
            assert other.load(repeated) == again
            assert refunds or not again.added
            assert sorted(map(unmarked, other.export())) == sorted(map(unmarked, one.export()))
            assert other.peek("p", "s", channel="push") == one.peek("p", "s", channel="push")


subjects = st.integers(0, 2**64 - 1) | st.text(min_size=1, max_size=60).filter(
    lambda text: text.isprintable() or "\0" in text
).filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text))


@given(subjects | st.sampled_from(["%", "%25", "%7D", "}", "%257D", "'", "#1", "~1", "1"]), st.sampled_from([0, 1, 7]))
def test_the_subject_of_a_key_is_the_one_it_was_made_for(subject: str | int, buckets: int) -> None:
    tag = tag_of(subject, buckets)
    assert subject_of(tag, field_of(subject) if buckets else None) == subject
    assert subject_of(tag, None if buckets else b"x") is None


rows = st.tuples(st.integers(0, 2**55 - 1), st.integers(0, 2**53 - 1), st.just(0) | st.integers(1, 2**64 - 1))


@given(subjects, st.lists(rows, min_size=1, max_size=20), st.booleans())
def test_a_record_comes_back_from_its_line(subject: str | int, hits: list[tuple[int, int, int]], keyed: bool) -> None:
    record = LogRecord("promo/push", subject, hits, keyed)
    line = line_of(record)
    assert line.count(b"\n") == 1
    assert read_line(line) == record


@pytest.mark.parametrize("more", [', "cost": 5', ', "at" : 3'])
def test_a_line_with_a_key_twice_is_refused(more: str) -> None:
    with pytest.raises(InvalidValueError, match="a key twice, of policy, subject, "):
        read_line(('{"policy": "p", "subject": "\\"cost\\": 1", "at": 1, "cost": 1' + more + "}").encode())
