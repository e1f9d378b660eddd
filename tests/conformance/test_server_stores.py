"""Redis and Valkey, single and cluster, both layouts, sync and async: held to the same law, one line each."""

from functools import partial

from tests.kit.servers import shared

from capline.testing import conformance

# For a test machine that does ten things at once: what a late answer means is tested elsewhere.
PATIENT = "?deadline=20s&bulk_deadline=60s"


def _single(kind: str) -> str:
    return shared(kind).url + PATIENT


def _cluster(kind: str) -> str:
    return shared(kind, "cluster").url + PATIENT


redis, valkey = partial(_single, "redis"), partial(_single, "valkey")
redis_cluster, valkey_cluster = partial(_cluster, "redis"), partial(_cluster, "valkey")

TestRedis = conformance(redis)
TestRedisBucket = conformance(redis, layout="bucket")
TestRedisAsync = conformance(redis, asynchronous=True)
TestRedisAsyncBucket = conformance(redis, asynchronous=True, layout="bucket")
TestRedisCluster = conformance(redis_cluster)
TestRedisClusterBucket = conformance(redis_cluster, layout="bucket")
TestRedisClusterAsync = conformance(redis_cluster, asynchronous=True)
TestRedisClusterAsyncBucket = conformance(redis_cluster, asynchronous=True, layout="bucket")
TestValkey = conformance(valkey)
TestValkeyBucket = conformance(valkey, layout="bucket")
TestValkeyAsync = conformance(valkey, asynchronous=True)
TestValkeyAsyncBucket = conformance(valkey, asynchronous=True, layout="bucket")
TestValkeyCluster = conformance(valkey_cluster)
TestValkeyClusterBucket = conformance(valkey_cluster, layout="bucket")
TestValkeyClusterAsync = conformance(valkey_cluster, asynchronous=True)
TestValkeyClusterAsyncBucket = conformance(valkey_cluster, asynchronous=True, layout="bucket")
TestRedisNext = conformance(lambda: redis() + "&forms=next")
TestValkeyClusterAsyncBucketNext = conformance(
    lambda: valkey_cluster() + "&forms=next", asynchronous=True, layout="bucket"
)
