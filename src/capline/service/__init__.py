"""The decision service: the limiter's verbs over HTTP, for programs in any language.

    bytes -> http (routes, bounds)  ->  api (forms in, AsyncLimiter, answers out)  ->  bytes

`problems` turns errors into problem documents, `probes` answers health checks, `server` starts and stops it all.
"""
