"""Rules that take the place of others know the channels that a log had: a refund and `erase` have to reach them."""

import pytest

from capline import Policy
from capline.limiter.policies.rules import Rules

PUSH, MAIL, NONE = (
    Policy("p", ["9/day"], channels=channels) for channels in ({"push": ["2/day"]}, {"mail": ["2/day"]}, {})
)


@pytest.mark.parametrize("by_policy", [False, True], ids=["all", "one"])
def test_a_channel_that_the_policy_has_no_more_is_known(*, by_policy: bool) -> None:
    rules = Rules([PUSH])
    for policy in (MAIL, NONE, NONE):
        rules = rules.having({"p": policy}, {}) if by_policy else Rules([policy], before=rules)
    assert rules.rule("p", None, None).channel_logs == ("capline:p/mail", "capline:p/push")
