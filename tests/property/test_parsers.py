"""Every reader of text from outside: a value, or a CaplineError of one line; never another exception."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline.campaign.file import loads_campaign
from capline.campaign.senders.template import Template, from_environment
from capline.cli.input.target import read_also
from capline.limiter.arguments.records import read_line
from capline.model.errors import CaplineError, InvalidTypeError
from capline.model.limit import Limit, parse_span
from capline.model.policy import Policy, check_name
from capline.model.retry_after import LONGEST_SECONDS, retry_after
from capline.model.subject import parse_subject, subject_text
from capline.model.zone import check_zone
from capline.policy.file import loads
from capline.policy.watch import PolicyWatch
from capline.segment.manifest import decode_manifest
from capline.segment.objects.address import open_objects
from capline.segment.publish.pointer import decode_pointer
from capline.segment.sets.expression import parse_expression
from capline.store.local.lmdb import store as lmdb
from capline.store.open import open_store
from capline.store.redis.io.url import parse_url, safe_url, server_schemes
from capline.tables.times import read_time_us

FUZZ = settings(
    max_examples=size(15, 150), derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

NUMBERS = ("0", "1", "5", "42", "007", "1_000", "1_", "1__0", "_1", "9" * 30, "9" * 5000, "-1", "+1", "1.5", "1e9")
ODD_NUMBERS = ("٣", "²", "Ⅷ", "\U0001d7d8", "0x10", "nan", "inf", "NaN", "-inf", "")
UNITS = ("s", "ms", "day", "week", "wee\u212a", "µs", "μs", "min", "calendar-day", "calendar week", "fortnight")
SIGNS = (
    *"/ :;,=&?@%#+-_.[]{}()|'\"\\<>~*!$",
    "://",
    "%2F",
    "%zz",
    "%00",
    "\t",
    "\n",
    "\0",
    "\x1b[31m",
    "\ud800",
    "\u2028",
)
TIMES = (
    "22:00",
    "24:00",
    "25:99",
    "2026-02-30",
    "2026-01-31T16:00:00Z",
    "2026-01-31T16:00:00",
    "9999-12-31",
    "0001-01-01",
)
WORDS = ("gap", "not between", "and", "per", "promo", "UTC", "Asia/Tokyo", "../etc/passwd", "active", "new", "i:", "s:")
PIECES = st.sampled_from((*NUMBERS, *ODD_NUMBERS, *UNITS, *SIGNS, *TIMES, *WORDS))
TEXTS = st.lists(PIECES, max_size=10).map("".join) | st.text(max_size=60)


def value_or_error(read: Callable[..., object], *arguments: object) -> object:
    """What was read; None where it was refused, in one line."""
    try:
        return read(*arguments)
    except CaplineError as error:
        said = str(error)
    assert said
    assert "\n" not in said
    return None


def joined(*parts: str | st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts of these parts in a row."""
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


def yaml_of(limit: str) -> bytes:
    return f"policies: {{p: {{limits: [{limit!r}]}}}}\n".encode(errors="replace")


def opened_nothing(*_: object, **__: object) -> object:
    return object()


def line_with(key: str, value: str) -> bytes:
    return f'{{"policy":"p","subject":1,"at":5,"{key}":{value}}}'.encode()


def published_with(text: str) -> bytes:
    return b'{"format":' + text.encode(errors="replace") + b"}"


NUMBER = st.sampled_from((*NUMBERS, *ODD_NUMBERS))
UNIT = st.sampled_from(UNITS)
SPANS = joined(NUMBER, st.sampled_from(("", " ", "\t")), UNIT)
LIMITS = (
    joined(NUMBER, st.sampled_from(("/", " per ", "per")), SPANS)
    | joined("gap ", SPANS)
    | joined("not between ", PIECES, ":", PIECES, " and ", st.sampled_from(TIMES))
)


@FUZZ
@given(LIMITS | TEXTS)
@example("1_/day")
@example("1/1__0 s")
@example("1_/calendar-day")
@example("gap 1_ s")
@example("not between ٢٢:00 and 08:00")
@example("1/wee\u212a")
def test_a_limit(text: str) -> None:
    limit = value_or_error(Limit.parse, text)
    if limit is not None:
        assert Limit.parse(str(limit)) == limit


@FUZZ
@given(SPANS | TEXTS)
@example("1_s")
@example("1 min" + " " * 64 + "x")
def test_a_span(text: str) -> None:
    span_us = value_or_error(parse_span, text, "gap")
    if span_us is not None:
        assert len(text) <= 64
        assert parse_span(f"{span_us}us", "gap") == span_us


@FUZZ
@given(SPANS | TEXTS)
@example("1_s")
def test_a_policys_own_words(text: str) -> None:
    every: tuple[dict[str, Any], ...] = (
        {"granularity": text, "algorithm": "bucketed"},
        {"zone": text},
        {"log": text},
        {"algorithm": text},
        {"layout": text},
        {"by_segment": {text: [text]}},
    )
    for options in every:
        value_or_error(partial(Policy, "promo", ["3/day"], **options))
    value_or_error(check_name, text, "policy")
    value_or_error(check_zone, text)


@FUZZ
@given(LIMITS, SPANS, TEXTS)
@example("1_/day", "1s", "UTC")
@example("1/day", "1_s", "UTC")
def test_a_policy_file(limit: str, span: str, word: str) -> None:
    body = f"limits: [{limit!r}]\n    algorithm: bucketed\n    granularity: {span}\n    zone: {word}"
    value_or_error(loads, f"policies:\n  promo:\n    {body}\n    population: {word}\n    wait_replicas: {word}\n")
    value_or_error(loads, f"policies:\n  promo:\n    {body}\n")
    value_or_error(loads, f"policies: {{promo: {{limits: [{limit}], channels: {{push: [gap {span}]}}}}}}\n")


@FUZZ
@given(data=st.lists(LIMITS.map(yaml_of) | st.binary(), max_size=4))
@example(data=[b"policies: {p: {limits: [1_/day]}}"])
@example(data=[b"policies: {p: {limits: [1/day], algorithm: bucketed, granularity: 1_s}}"])
def test_a_watch_never_raises_when_it_looks(data: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"watched-{os.getpid()}.yaml"
    path.write_bytes(b"policies: {p: {limits: [1/day]}}\n")
    watch = PolicyWatch(path)
    for each in data:
        path.write_bytes(each)
        watch.poll()
        assert watch.current.policies
        assert watch.error is None or "\n" not in str(watch.error)
    path.unlink()
    assert watch.poll() is False


SCHEMES = st.sampled_from(
    (*server_schemes(), "val\u212aey", "REDIS", " redis", "memory", "lmdb", "LMDB", "http", "r\tedis", "")
)
HOSTS = st.sampled_from(
    ("h", "h:1", "h:99999999", "h:٣", "h:" + "9" * 5000, "[::1]", "[::1", "h:1,", ",", "u:secret@h", "", "h:")
)
NAMES = ("deadline", "bulk_deadline", "max_connections", "max_bytes", "durability", "forms", "ca", "token", "pass", "")
OPTIONS = joined(st.sampled_from(NAMES), "=", SPANS | NUMBER | TEXTS)
URLS = joined(
    SCHEMES, "://", HOSTS, st.sampled_from(("", "/", "/0", "/" + "9" * 5000, "/²", "/m/0", "/a/b/c")), "?", OPTIONS
)


@FUZZ
@given(URLS | joined(SCHEMES, "://", TEXTS) | TEXTS)
@example("redis://h?deadline=1__0ms")
@example("redis://h?max_connections=" + "9" * 5000)
@example("redis://h?max_connections=²")
@example("redis://h/" + "9" * 5000)
@example("redis://h:" + "9" * 5000)
@example("val\u212aey://h")
@example("lmdb://x?max_bytes=" + "9" * 5000)
@example("lmdb://x?max_bytes=1__0")
@example("lmdb://x?max_bytes=_")
@example("lmdb:///x%00y")
def test_the_url_of_a_store(url: str) -> None:
    safe_url(url)
    if url.partition("://")[0] in server_schemes():
        value_or_error(parse_url, url)
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lmdb, "LmdbStore", opened_nothing)  # the disk is left alone
            patch.setattr("capline.store.redis.store.RedisStore", opened_nothing)
            value_or_error(open_store, url)


@FUZZ
@given(TEXTS)
@example("i:" + "9" * 5000)
@example("9" * 5000)
@example("i:-1")
@example("i:")
@example("s:")
def test_a_subject(text: str) -> None:
    for as_text in (False, True):
        subject = value_or_error(partial(parse_subject, text, as_text=as_text))
        assert subject is None or isinstance(subject, str | int)
        if isinstance(subject, str | int):
            assert parse_subject(subject_text(subject)) == subject


@FUZZ
@given(joined(PIECES, st.sampled_from((":", "")), NUMBER, st.sampled_from(("=", "")), TEXTS) | TEXTS)
@example("user:" + "9" * 5000 + "=x")
def test_a_further_part_of_an_attempt(words: str) -> None:
    value_or_error(lambda: read_also([words], None, as_text=False))


@FUZZ
@given(st.sampled_from(TIMES) | NUMBER | TEXTS)
@example("9" * 18)
@example("0001-01-01T00:00:00+23:59")
def test_a_time(text: str) -> None:
    value_or_error(read_time_us, text)
    value_or_error(read_line, f'{{"policy":"p","subject":1,"at":"{text}"}}'.encode(errors="replace"))
    seconds = retry_after({"Retry-After": text})
    assert seconds is None or 0 <= seconds <= LONGEST_SECONDS


@FUZZ
@given(
    st.builds(
        line_with,
        st.sampled_from(("subject", "at", "cost", "hits", "id", "keyed", "channel")),
        st.sampled_from(("{", "[", '"', "9" * 400, "1e999", "-1", "null", "true", '"log"')),
    )
    | st.binary(max_size=80)
)
@example(b'{"log":"p","subject":1,"hits":[[1,1,"\xff"]]}')
@example(b'{"policy":"p","subject":1,"at":"0001-01-01T00:00:00+23:59"}')
@example(b"[" * 100_000)
def test_a_line_of_an_import(line: bytes) -> None:
    value_or_error(read_line, line)


@FUZZ
@given(
    st.lists(st.sampled_from(("active", "new", "at-risk", "|", "&", "-", "(", ")", " ", "²")), max_size=12).map("".join)
    | TEXTS
)
@example("(" * 5000)
def test_an_expression_over_segments(text: str) -> None:
    value_or_error(parse_expression, text)


@FUZZ
@given(joined(st.sampled_from(("", "file://", "s3x://", "FILE://", "file://[", "ftp://")), TEXTS))
@example("file://[")
@example("file://h/x")
def test_the_address_of_a_publication(text: str) -> None:
    value_or_error(open_objects, text)


@FUZZ
@given(st.binary(max_size=200) | st.builds(published_with, TEXTS))
@example(b"[" * 100_000)
def test_what_is_published(data: bytes) -> None:
    value_or_error(decode_manifest, data, "manifest.json")
    value_or_error(decode_pointer, data, "current.json")


KEYS = ("cost", "batch", "at", "as_of", "store", "channel", "segments", "policy", "campaign", "nonsense")


@FUZZ
@given(st.sampled_from(KEYS), SPANS | NUMBER | TEXTS | st.sampled_from(TIMES))
@example("batch", "1_")
@example("cost", "1__0")
@example("at", "0001-01-01T00:00:00+23:59")
@example("store", "${")
def test_a_campaign_file(key: str, word: str) -> None:
    good: dict[str, Any] = {"campaign": "spring", "policies": "policies.yaml", "policy": "promo"}
    lines = [f"{name}: {value}" for name, value in {**good, key: word}.items()]
    text = "\n".join((*lines, "audience: {csv: users.csv}", "sender: {file: out/}"))
    value_or_error(loads_campaign, text, Path("campaign.yaml"))
    quiet = "\n".join((*(f"{name}: {value}" for name, value in good.items()), "audience: {csv: users.csv}"))
    for sender in (
        f"{{webhook: {{url: {word!r}, timeout: {word!r}, concurrency: {word!r}}}}}",
        f"{{smtp: {{server: {word!r}, from: {word!r}, to: {word!r}, subject: {word!r}}}}}",
        f"{{file: {word!r}, format: {word!r}}}",
    ):
        value_or_error(
            loads_campaign,
            f"{quiet}\nretry: {{attempts: {word!r}, wait: {word!r}}}\nsender: {sender}\n",
            Path("c.yaml"),
        )


@FUZZ
@given(TEXTS)
@example("{")
@example("${HOME")
def test_a_template(text: str) -> None:
    value_or_error(Template, text)
    value_or_error(from_environment, text)


@pytest.mark.parametrize("wrong", [None, 5, 1.5, b"3/day", ["3/day"], object()])
def test_what_is_no_text_at_all(wrong: Any) -> None:
    readers: list[Callable[[Any], object]] = [Limit.parse, check_zone, parse_expression, parse_subject]
    for read in readers:
        with pytest.raises(InvalidTypeError):
            read(wrong)
    with pytest.raises(InvalidTypeError):
        parse_span(wrong, "gap")
