"""At least 10,000 random steps of a server store beside the reference, in each layout, on Redis and on Valkey."""

from functools import partial

from capline.testing import state_machine
from capline.testing.servers import shared

PATIENT = "?deadline=20s&bulk_deadline=60s"


def _single(kind: str) -> str:
    return shared(kind).url + PATIENT


def _cluster(kind: str) -> str:
    return shared(kind, "cluster").url + PATIENT


TestRedis = state_machine(partial(_single, "redis"))
TestRedisBucket = state_machine(partial(_single, "redis"), layout="bucket")
TestValkey = state_machine(partial(_single, "valkey"))
TestValkeyClusterBucket = state_machine(partial(_cluster, "valkey"), layout="bucket")
