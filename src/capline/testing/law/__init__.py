"""The conformance checks: a room for each topic, a class in each module; `capline.testing.conformance` joins them."""
