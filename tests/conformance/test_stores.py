"""Every store, held to the law: one line each."""

from capline.testing import conformance

TestMemory = conformance("memory://")
TestMemoryAsync = conformance("memory://", asynchronous=True)
TestLmdb = conformance("lmdb://{tmp}/store")
TestLmdbNext = conformance("lmdb://{tmp}/store?durability=full&forms=next")
TestLmdbAsync = conformance("lmdb://{tmp}/store", asynchronous=True)
