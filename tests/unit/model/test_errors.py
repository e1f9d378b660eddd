"""Errors as values that travel."""

from __future__ import annotations

import pickle

import pytest

from capline import Limiter, LimitExceeded, ManualClock, Policy


def test_a_refused_wait_travels_to_another_process_with_its_decision() -> None:
    limiter = Limiter("memory://", [Policy("p", ["1/day"])], clock=ManualClock(10**15))
    limiter.decide("p", "s")
    with pytest.raises(LimitExceeded) as refused, limiter.acquire("p", "s", timeout=1):
        pass
    sent = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - our own
    assert str(sent) == str(refused.value)
    assert sent.decision == refused.value.decision
    assert sent.decision.limits == refused.value.decision.limits
