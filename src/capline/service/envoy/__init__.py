"""Envoy's global rate limiting: what envoyproxy/ratelimit reads and answers, decided by capline.

    YAML files -> form (one file) -> files (all of them, followed) -> rules (which limit a descriptor has)
    settings (upstream's variables by environment) -> what holds for all limits
    gRPC server, POST /json (json) -> service (one request) -> ratelimit (decided by the limiter) -> a response

The rule: a configuration is taken whole or not at all, and an outage is never a refusal. docs/howto/envoy.md says what
differs from upstream.
"""
