"""What may be raised, by name."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

from capline import (
    CaplineError,
    Limiter,
    Policy,
    PolicyError,
    PolicyFileError,
    StoreError,
    StoreUnavailableError,
    StoreUnknownError,
)

try:
    Limiter.from_file("no-such-file.yaml", "memory://")
except PolicyFileError as broken:
    assert_type(broken, PolicyFileError)
    policy_error: PolicyError = broken

try:
    Limiter("memory://", [Policy("p", ["3/day"])]).decide("p", "s")
except (StoreUnavailableError, StoreUnknownError) as outage:
    store_error: StoreError = outage
except StoreError as other:
    error: CaplineError = other
