"""Which calls may be sent again: those whose every part says so."""

from contextlib import suppress
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest

from capline import Attempt, Limiter, Policy
from capline.model.errors import StoreUnavailableError
from capline.store.redis import batches, joint
from capline.store.redis.scripting import parts
from capline.store.redis.scripting.scripts import Call


def calls_of(verb: str, asked: list[Attempt], place: Any, name: str) -> list[Call]:
    """The calls that this function builds for a verb; there is no server."""
    make, built = getattr(place, name), list["Call"]()

    def build(*args: Any, **options: Any) -> Call:
        built.append(make(*args, **options))
        return built[-1]

    with (
        patch.object(place, name, build),
        Limiter("redis://127.0.0.1:1", [Policy("p", ["3/h"])]) as limiter,
        suppress(StoreUnavailableError),
    ):
        getattr(limiter, verb)(asked)
    return built


def attempts(ids: tuple[str | None, ...]) -> list[Attempt]:
    return [Attempt("p", f"s{number}", 1, own and f"{own}{number}") for number, own in enumerate(ids)]


@pytest.mark.parametrize("ids", [*product([None, "i"], repeat=3)], ids=str)
def test_a_batch_may_be_sent_again_where_each_of_its_attempts_has_an_id(ids: tuple[str | None, ...]) -> None:
    # A call for all of them, or where each has an id a call each.
    calls = calls_of("decide_batch", attempts(ids), parts, "group_call")
    calls = calls or calls_of("decide_batch", attempts(ids), batches, "step_call")
    assert {call.repeatable for call in calls} == {None not in ids}


@pytest.mark.parametrize("ids", [*product([None, "i"], repeat=3)], ids=str)
def test_a_joint_attempt_may_be_sent_again_where_every_part_has_an_id(ids: tuple[str | None, ...]) -> None:
    for verb, repeatable in (("decide_all", None not in ids), ("peek_all", True)):
        calls = calls_of(verb, attempts(ids), joint, "joint_call")
        assert {call.repeatable for call in calls} == {repeatable}
