"""The decision service: the limiter's verbs over HTTP, for programs in any language.

    bytes -> http (routes, bounds)  ->  api (a verb a handler)  ->  AsyncLimiter  ->  forms (answers)  ->  bytes

`problems` turns every error into one document, `probes` answers who watches the service, `server` listens and stops.
"""
