"""Input that is meant to hurt, on every store: taken as what it is, or refused with what to fix; never by half."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.server import SLOW
from tests.kit.servers import shared

from capline import Attempt, CaplineError, Decision, Limiter, Policy

PLACES = ("memory", "lmdb", "redis", "valkey", "redis cluster", "redis in buckets")

SUBJECTS: tuple[Any, ...] = (
    *("\0", "a\0b", "{}", "}", "{", "}{", "{a}b", "a{b}", "%7D", "%", "\r\n", "*3\r\n$3\r\nDEL\r\n", "'", "#0", "~0"),
    *(
        "caf\u00e9",
        "cafe\u0301",
        "\u212b",
        "\u00c5",
        "A\u030a",
        "\u202e",
        "\ufeff",
        "\U0010ffff",
        " ",
        "x" * 512,
        "\u00e9" * 256,
    ),
    *(2**32 - 1, 2**32, 2**32 + 1, str(2**32), 0, "0", 2**63, 2**64 - 1, str(2**64 - 1)),
)
"""Subjects, all different, however alike they look or are hashed."""
NO_SUBJECTS: tuple[Any, ...] = (
    "x" * (1 << 20),
    "\u00e9" * 257,
    "\ud800",
    "a\udfffb",
    "",
    -1,
    2**64,
    10**400,
    10**5000,
    1.5,
    True,
    None,
)
NO_COSTS: tuple[Any, ...] = (0, -1, float("nan"), float("inf"), 1e18, 10**18, 2**53, True, "1", None)
NO_IDS: tuple[Any, ...] = ("", "x" * (1 << 20), "\ud800", 7, b"x")


@pytest.fixture(params=PLACES)
def limiter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Limiter]:
    kind, _, more = request.param.partition(" ")
    if kind in ("memory", "lmdb"):
        url = "memory://" if kind == "memory" else f"lmdb://{tmp_path}"
    else:
        url = f"{(shared(kind, 'cluster') if more == 'cluster' else shared(kind)).url}?{SLOW}"
    layout = "bucket" if more == "in buckets" else "subject"
    with Limiter(
        url, [Policy("p", ["2/day"], layout=layout, population=640)], namespace=f"poison-{tmp_path.name}"
    ) as made:
        yield made
        for subject in SUBJECTS:
            made.erase(subject)


def test_subjects_that_look_alike_or_like_something_else_are_subjects(limiter: Limiter) -> None:
    assert len({f"{type(one)} {one}" for one in SUBJECTS}) == len(SUBJECTS)
    for subject in SUBJECTS:
        assert limiter.decide("p", subject).remaining == 1, subject
    assert limiter.decide_many("p", list(SUBJECTS)).remaining.tolist() == [0] * len(SUBJECTS)
    for subject in SUBJECTS:
        refused = limiter.decide("p", subject)
        assert not refused, subject
        assert refused.origin == "store"
        assert len(limiter.explain("p", subject).hits) == 2


def test_what_cannot_be_meant_is_refused_and_records_nothing(limiter: Limiter) -> None:
    for subject in NO_SUBJECTS:
        refused(limiter, subject)
    for cost in NO_COSTS:
        refused(limiter, "s", cost)
    for id in NO_IDS:
        refused(limiter, "s", 1, id)
    assert limiter.peek("p", "s").remaining == 1
    assert not limiter.explain("p", "s").hits


def refused(limiter: Limiter, subject: Any, cost: Any = 1, id: Any = None) -> None:
    for ask in (
        lambda: limiter.decide("p", subject, cost, **({} if id is None else {"id": id})),
        lambda: limiter.schedule("p", subject, cost=cost, **({} if id is None else {"id": id})),
    ):
        with pytest.raises(CaplineError) as caught:
            ask()
        assert isinstance(caught.value, (ValueError, TypeError)), caught.value
        assert len(str(caught.value)) < 400, "a message is for people"
        assert "\n" not in str(caught.value)


def test_in_a_batch_poison_fails_alone(limiter: Limiter) -> None:
    good = ["first", "second", "\0", 2**32]
    mixed: list[Any] = [good[0], "x" * (1 << 20), good[1], "\ud800", good[2], 10**5000, good[3], -1]
    answers = limiter.decide_many("p", mixed)
    assert sorted(answers.errors) == [1, 3, 5, 7]
    assert answers.allowed.tolist() == [True, False] * 4
    decided = limiter.decide_batch([Attempt("p", subject) for subject in good])
    assert all(isinstance(one, Decision) and one.remaining == 0 for one in decided)
    for subject in good:
        limiter.erase(subject)
