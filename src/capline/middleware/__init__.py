"""Limits around calls that go out: each call waits for a slot of its own, on every host, and then goes.

    capline.middleware.httpx       LimitedTransport, AsyncLimitedTransport
    capline.middleware.requests    LimitedAdapter
    capline.middleware.decorator   limited, for any function

Each is imported by its own module, so that nobody needs a client that they do not use.
"""
