"""Errors as values that travel."""

import pickle

import pytest

from capline import Limiter, LimitExceeded, ManualClock, Policy, UnknownNameError
from capline.limiter.policies.rules import Rules
from capline.model.errors import listed


def test_a_refused_wait_travels_to_another_process_with_its_decision() -> None:
    limiter = Limiter("memory://", [Policy("p", ["1/day"])], clock=ManualClock(10**15))
    limiter.decide("p", "s")
    with pytest.raises(LimitExceeded) as refused, limiter.acquire("p", "s", timeout=1):
        pass
    sent = pickle.loads(pickle.dumps(refused.value))  # noqa: S301 - our own
    assert str(sent) == str(refused.value)
    assert sent.decision == refused.value.decision
    assert sent.decision.limits == refused.value.decision.limits


@pytest.mark.parametrize("what", ["policy", "log", "segment", "channel", "only channels"])
def test_an_unknown_name_is_answered_with_some_of_the_known_ones(what: str) -> None:
    names = [f"{'n' * 60}{number:04}" for number in range(1024)]
    limits = {name: ["1/day"] for name in names}
    rules = {
        "policy": lambda: Rules([Policy(name, ["1/day"]) for name in names]).policy("x"),
        "log": lambda: Rules([Policy(name, ["1/day"]) for name in names]).log_rule("x"),
        "segment": lambda: Policy("p", ["1/day"], by_segment=limits).limits_for("x"),
        "channel": lambda: Policy("p", ["1/day"], channels=limits).limits_on("x"),
        "only channels": lambda: Rules([Policy("p", [], channels=limits)]).rule("p", None, None),
    }
    with pytest.raises(UnknownNameError) as caught:
        rules[what]()
    said = str(caught.value)
    assert said.endswith(f"{names[19]} and 1,004 more")
    assert names[0] in said
    assert len(said) < 2000


def test_a_few_names_are_all_listed() -> None:
    assert listed(iter("abc")) == "a, b, c"
    assert listed(map(str, range(21))).endswith("18, 19 and 1 more")
    assert listed(map(str, range(20))).endswith("18, 19")
    assert listed(()) == "none"
