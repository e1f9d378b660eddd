"""Limits around calls that go out: each call waits for a slot of its own, on every host, and then goes.

    capline.middleware.httpx       LimitedTransport, AsyncLimitedTransport
    capline.middleware.httpx2      the same two for httpx2
    capline.middleware.requests    LimitedAdapter
    capline.middleware.aiohttp     LimitedMiddleware
    capline.middleware.scrapy      LimitedMiddleware
    capline.middleware.botocore    limit_client, for boto3 too
    capline.middleware.celery      limited_task
    capline.middleware.dramatiq    limited_actor
    capline.middleware.decorator   limited, for any function
    capline.middleware.retry_after retry_after, what a provider's headers ask for

Each is imported by its own module, so that nobody needs a client that they do not use.
"""
