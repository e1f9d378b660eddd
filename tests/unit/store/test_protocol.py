"""The protocols of stores: a verb that a store forgot is an error, not an answer of None."""

import inspect

import pytest

from capline.store.local.aio import AsyncLocalStore
from capline.store.local.memory import MemoryStore
from capline.store.protocol import AsyncStore, Store
from capline.store.redis.async_store import AsyncRedisStore
from capline.store.redis.store import RedisStore

PROTOCOLS = (Store, AsyncStore)


def verbs(protocol: type) -> set[str]:
    return {name for name in protocol.__abstractmethods__ if not name.startswith("_")}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType] - of ABCMeta


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_verb_has_to_be_written(protocol: type) -> None:
    assert {"step", "joint", "rows", "columns", "close"} <= verbs(protocol)
    assert len(verbs(protocol)) <= 14


def test_both_protocols_have_the_same_verbs() -> None:
    assert verbs(Store) == verbs(AsyncStore)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("forgotten", ["step", "columns"])
def test_a_store_that_forgot_a_verb_cannot_be_made(protocol: type, forgotten: str) -> None:
    def written(*_: object) -> None: ...

    others = dict.fromkeys(verbs(protocol) - {forgotten}, written)
    type("Whole", (protocol,), {**others, forgotten: written})()
    with pytest.raises(TypeError, match=f"abstract.*{forgotten}"):
        type("Partial", (protocol,), others)()


@pytest.mark.parametrize("store", [MemoryStore, RedisStore, AsyncRedisStore, AsyncLocalStore])
def test_our_stores_forget_none(store: type) -> None:
    assert not inspect.isabstract(store)
