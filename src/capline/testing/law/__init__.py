"""The conformance checks by topic: a class in each module, which `capline.testing.conformance` joins."""
