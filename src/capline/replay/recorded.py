"""What a policy would have answered to attempts that were recorded, among hits that came from elsewhere.

Each is decided at its own time by a limiter on a store in memory, as `count` does with the events of a file.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from capline.limiter.limiter import Limiter
from capline.model.clock import ManualClock
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.model.subject import Subject
from capline.replay.count import Trial


class Recorded(NamedTuple):
    """An attempt; or a hit from elsewhere, a `charge`. A `peek` is an attempt whose units were given back later."""

    at_us: int
    subject: Subject
    verb: Literal["decide", "charge", "peek"] = "decide"
    cost: int = 1
    id: str | None = None
    segment: str | None = None
    channel: str | None = None
    zone: str | None = None
    keep_free: int = 0


def refusals(policy: Policy, recorded: Sequence[Recorded]) -> list[Limit | None]:
    """For each, in order of time, the limit that refuses it; None where it is allowed, and for a hit.

    A segment or channel that the policy does not have makes no difference. Costs some 8 µs each.
    """
    answers: list[Limit | None] = []
    with Limiter("memory://", [policy.having(shadow=False)], clock=(clock := ManualClock())) as limiter:
        trial = Trial(limiter, clock, policy.name)
        for one in recorded:
            at = trial.at(one.at_us)
            segment = one.segment if one.segment in policy.by_segment else None
            if one.verb == "charge":
                at.charge(policy.name, one.subject, one.cost, segment=segment)
                answers.append(None)
                continue
            channel = one.channel if one.channel in policy.channels else None
            ask = at.peek if one.verb == "peek" else at.decide
            decision = ask(
                policy.name,
                one.subject,
                one.cost,
                one.id,
                segment=segment,
                channel=channel,
                zone=one.zone,
                keep_free=one.keep_free,
            )
            answers.append(None if decision.allowed else decision.limit)
    return answers
