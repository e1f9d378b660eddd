"""The law, by what it is about: each module a class of checks, which `capline.testing.conformance` joins."""
