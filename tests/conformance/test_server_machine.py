"""Random steps of a server store beside the reference, each layout, Redis and Valkey: 10,000 in the deep part."""

from functools import partial

from tests.kit.servers import shared
from tests.profiles import size, sized

from capline.testing import state_machine

pytestmark = sized
STEPS = size(1_500, 10_000)

PATIENT = "?deadline=20s&bulk_deadline=60s"


def _single(kind: str) -> str:
    return shared(kind).url + PATIENT


def _cluster(kind: str) -> str:
    return shared(kind, "cluster").url + PATIENT


TestRedis = state_machine(partial(_single, "redis"), steps=STEPS)
TestRedisBucket = state_machine(partial(_single, "redis"), layout="bucket", steps=STEPS)
TestRedisChanging = state_machine(partial(_single, "redis"), steps=STEPS, changing=True)
TestValkey = state_machine(partial(_single, "valkey"), steps=STEPS)
TestValkeyClusterBucketChanging = state_machine(
    partial(_cluster, "valkey"), layout="bucket", steps=STEPS, changing=True
)
TestValkeyClusterBucket = state_machine(partial(_cluster, "valkey"), layout="bucket", steps=STEPS)
TestRedisBucketNext = state_machine(
    lambda: _single("redis") + "&forms=next", layout="bucket", steps=STEPS, changing=True
)
TestValkeyClusterNext = state_machine(lambda: _cluster("valkey") + "&forms=next", steps=STEPS, changing=True)
