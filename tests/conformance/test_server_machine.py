"""Random steps of a server store beside the reference: two of them all day, each layout and server in the deep part."""

from functools import partial

import pytest
from tests.kit.servers import shared
from tests.profiles import size, sized

from capline.testing import state_machine

pytestmark = sized
deep = pytest.mark.deep
STEPS = size(500, 1_000, 4_000)

PATIENT = "?deadline=20s&bulk_deadline=60s"


def _single(kind: str) -> str:
    return shared(kind).url + PATIENT


def _cluster(kind: str) -> str:
    return shared(kind, "cluster").url + PATIENT


TestRedisBucketNext = state_machine(
    lambda: _single("redis") + "&forms=next", layout="bucket", steps=STEPS, changing=True
)
TestRedis = state_machine(partial(_single, "redis"), steps=STEPS)
TestRedisBucket = deep(state_machine(partial(_single, "redis"), layout="bucket", steps=STEPS))
TestRedisChanging = deep(state_machine(partial(_single, "redis"), steps=STEPS, changing=True))
TestValkey = deep(state_machine(partial(_single, "valkey"), steps=STEPS))
TestValkeyClusterBucketChanging = deep(
    state_machine(partial(_cluster, "valkey"), layout="bucket", steps=STEPS, changing=True)
)
TestValkeyClusterBucket = deep(state_machine(partial(_cluster, "valkey"), layout="bucket", steps=STEPS))
TestValkeyClusterNext = deep(state_machine(lambda: _cluster("valkey") + "&forms=next", steps=STEPS, changing=True))
