"""Which policies can be one, and what each limit says of whose it is."""

import pytest

from capline import Limiter, Policy
from capline.model.errors import PolicyError, UnknownNameError
from capline.model.limit import Limit, limit_of_text
from capline.policy.joint import MOST_POLICIES, JointPolicy

DAY = Policy("day", ["3/day"])
REFUSED: list[tuple[str, list[Policy]]] = [
    ("2 to 16, not 1", [DAY]),
    ("not 17", [Policy(f"p{n}", ["1/day"]) for n in range(MOST_POLICIES + 1)]),
    ("policy 'b' is gcra; beside others", [DAY, Policy("b", ["1/day"], algorithm="gcra")]),
    ("policy 'b' has count_denied", [DAY, Policy("b", ["1/day"], count_denied=True)]),
    ("policy 'b' has shadow", [DAY, Policy("b", ["1/day"], shadow=True)]),
    ("policy 'b' has reservations", [DAY, Policy("b", ["1/day"], reservations=True)]),
    ("log 'day' would count a message twice", [DAY, Policy("b", ["1/day"], log="day")]),
    ("log 'day' would count a message twice", [DAY, DAY]),
    ("several layouts or populations", [DAY, Policy("b", ["1/day"], layout="bucket")]),
    ("several layouts or populations", [DAY, Policy("b", ["1/day"], population=5)]),
    (
        "in several zones",
        [Policy(name, ["1/calendar-day"], zone=zone) for name, zone in (("a", "UTC"), ("b", "Asia/Tokyo"))],
    ),
    (
        "policies b, c limit channels only",
        [DAY, Policy("b", [], channels={"push": ["1/day"]}), Policy("c", [], channels={"x": ["1/day"]})],
    ),
    ("more than 64 limits", [Policy(f"p{n}", [f"1/{hours} hours" for hours in range(2, 18)]) for n in range(5)]),
]


@pytest.mark.parametrize(("why", "policies"), REFUSED, ids=[why for why, _ in REFUSED])
def test_what_one_step_cannot_decide_is_refused(why: str, policies: list[Policy]) -> None:
    with pytest.raises(PolicyError, match=why) as refused:
        JointPolicy(policies)
    assert "\n" not in str(refused.value)


def test_each_limit_says_whose_it_is() -> None:
    both = JointPolicy(
        [
            Policy("a", ["3/day", "not between 22:00 and 08:00"], by_segment={"vip": ["9/day"]}),
            Policy("b", ["3/day", "1/calendar-day"], channels={"push": ["2/day"]}),
        ]
    )
    texts = [str(limit) for limit in both.limits_for(None)]
    assert texts == ["a: 3/day", "a: not between 22:00 and 08:00", "b: 3/day", "b: 1/calendar-day"]
    assert tuple(limit_of_text(text) for text in texts) == both.limits
    assert limit_of_text("3/day") == Limit.parse("3/day") != both.limits[0]
    assert [str(limit) for limit in both.limits_for("vip")] == ["a: 9/day", *texts[2:]]
    assert [str(limit) for limit in both.limits_on("push")] == ["b/push: 2/day"]


def test_channels_without_a_limit_of_their_own_bind_by_the_channel() -> None:
    members = [DAY, Policy("b", [], channels={"push": ["1/day"]})]
    both = JointPolicy(members)
    with Limiter("memory://", [*members, both]) as limiter:
        answers = limiter.decide_many(both.name, ["s", "s"], channel="push")
        assert [str(answer.limit) for answer in answers] == ["b/push: 1/day"] * 2
        assert limiter.refund_many(both.name, ["s"], answers.hit[:1]).tolist() == [True]
        for channel, why in ((None, "limits channels only"), ("mail", "no channel 'mail' together; they have: push")):
            with pytest.raises(UnknownNameError, match=why):
                limiter.decide_many(both.name, ["s"], channel=channel)
