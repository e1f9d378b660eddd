"""What the service answers: decisions as JSON, in rows and in columns.

`segment` is the one whose limits bind, named or looked up. Durations are in seconds; `retry_after` null is never. An
answer that the store did not give says so in `origin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

import msgspec
import numpy as np
from msgspec.structs import asdict

from capline.model.decision import Decision
from capline.model.subject import Subject  # noqa: TC001 - msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from capline.limiter.explain import Explanation
    from capline.model.attempt import Attempt
    from capline.model.decision import Joint
    from capline.model.errors import CaplineError
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.model.policy import Policy
    from capline.store.columns import Decisions

__all__ = [
    "Answer",
    "Cancelled",
    "Columns",
    "Committed",
    "Erased",
    "Explained",
    "JointAnswer",
    "JointSlotAnswer",
    "Policies",
    "PolicyFacts",
    "Refunded",
    "RefundedAll",
    "Settled",
    "SlotAnswer",
    "Used",
    "UsedLimit",
    "columns_of",
    "columns_of_rows",
    "explained",
    "joint",
    "joint_slot",
    "one",
    "policies",
    "policy",
    "slot",
    "usage",
]


class Answer(msgspec.Struct):
    """The answer to one attempt."""

    allowed: bool
    policy: str
    limit: str | None
    remaining: int
    retry_after: float | None
    reset_after: float | None
    hit: int | None
    segment: str | None
    origin: str


class SlotAnswer(Answer):
    """The answer to one that may wait: `wait` seconds from the asking to its slot, or `late` seconds after it."""

    wait: float
    late: float


class JointAnswer(msgspec.Struct):
    """One answer to all attempts: `binds` is the number of the one that `policy` and `limit` are of."""

    allowed: bool
    policy: str
    limit: str | None
    remaining: int
    retry_after: float | None
    reset_after: float | None
    hits: tuple[int, ...]
    binds: int
    segment: str | None
    origin: str


class JointSlotAnswer(JointAnswer):
    """One answer to attempts that may wait: `wait` seconds from the asking to their slot."""

    wait: float


class Refunded(msgspec.Struct):
    """Whether the hit was given back now."""

    refunded: bool


class Committed(msgspec.Struct):
    """Whether the hit counts: it is the caller's."""

    committed: bool


class Cancelled(msgspec.Struct):
    """Whether the reserved hit was given back now."""

    cancelled: bool


class RefundedAll(msgspec.Struct):
    """How many of the hits were given back now."""

    refunded: int


class Erased(msgspec.Struct):
    """How many logs the subject had."""

    erased_logs: int


class UsedLimit(msgspec.Struct):
    """What is used and left of one limit now; times in seconds, null for never."""

    limit: str
    name: str
    used: int
    remaining: int
    past: int
    frees_in: float | None
    whole_in: float | None


class Used(msgspec.Struct):
    """What is used and left of each limit."""

    policy: str
    segment: str | None
    limits: list[UsedLimit]


class Settled(msgspec.Struct):
    """Whether there was such a hit."""

    settled: bool


class ExplainedUnits(TypedDict):
    """Units, and when they are free again."""

    at_us: int
    units: int


class LimitNow(TypedDict):
    """One limit as it stands; quiet hours have `quiet_until_us` in place of units."""

    limit: str
    binds: bool
    log: NotRequired[str]
    used: NotRequired[int]
    remaining: NotRequired[int]
    frees: NotRequired[list[ExplainedUnits]]
    quiet_until_us: NotRequired[int | None]


class HitNow(TypedDict):
    """A hit of the log."""

    hit: int
    units: int


class Explained(TypedDict):
    """Why: the decision for one unit at `now_us`, each limit, every hit, oldest first."""

    policy: str
    subject: Subject
    segment: str | None
    algorithm: str
    count_denied: bool
    zone: str | None
    now_us: int
    decision: Answer
    limits: list[LimitNow]
    hits: list[HitNow]


class PolicyFacts(TypedDict):
    """A policy in force, with what it leaves to defaults."""

    name: str
    limits: list[str]
    by_segment: dict[str, list[str]]
    channels: dict[str, list[str]]
    algorithm: str
    count_denied: bool
    log: str
    zone: str | None
    reservations: bool


class Policies(TypedDict):
    """All policies in force."""

    namespace: str
    policies: list[PolicyFacts]


class Columns(msgspec.Struct):
    """The answers to many, in the order asked; `errors` and `origins` by row, the latter where not `origin`."""

    allowed: list[bool]
    remaining: list[int]
    retry_after: list[float | None]
    hit: list[int | None]
    limit: list[str | None]
    errors: dict[str, str]
    origin: str
    origins: dict[str, str]


def one(policy: str, segment: str | None, decision: Decision) -> Answer:
    """A decision."""
    retry_us, reset_us, limit = decision.retry_after_us, decision.reset_after_us, decision.limit
    return Answer(
        decision.allowed,
        policy,
        None if limit is None else str(limit),
        decision.remaining,
        None if retry_us is None else retry_us / 1e6,
        None if reset_us is None else reset_us / 1e6,
        decision.hit,
        segment,
        decision.origin,
    )


def slot(policy: str, segment: str | None, decision: Decision) -> SlotAnswer:
    """A decision of `schedule`."""
    return SlotAnswer(**asdict(one(policy, segment, decision)), wait=decision.wait, late=decision.late)


def usage(policy: str, segment: str | None, limits: Sequence[LimitStatus]) -> Used:
    """What is used and left of each limit."""
    return Used(policy, segment, [_used_of(one) for one in limits])


def _used_of(state: LimitStatus) -> UsedLimit:
    return UsedLimit(
        str(state.limit), state.name, state.used, state.remaining, state.past, state.frees_in, state.whole_in
    )


def joint(asked: Sequence[Attempt], answer: Joint) -> JointAnswer:
    """A decision over several subjects."""
    binding = asked[answer.binds]
    return JointAnswer(
        answer.allowed,
        binding.policy,
        _text(answer.limit),
        answer.remaining,
        answer.retry_after,
        answer.reset_after,
        answer.hits,
        answer.binds,
        binding.segment,
        answer.origin,
    )


def joint_slot(asked: Sequence[Attempt], answer: Joint) -> JointSlotAnswer:
    """A slot of several subjects."""
    return JointSlotAnswer(**asdict(joint(asked, answer)), wait=answer.wait)


def columns_of(answers: Decisions) -> Columns:
    """The answers of `decide_many`. Costs a fraction of a microsecond a row."""
    names: list[str | None] = [*map(str, answers.limits), None]  # -1, no limit, is the last
    return Columns(
        answers.allowed.tolist(),
        answers.remaining.tolist(),
        [None if us < 0 else us / 1e6 for us in answers.retry_after_us.tolist()],
        [None if stamp < 0 else stamp for stamp in answers.hit.tolist()],
        [names[index] for index in np.asarray(answers.limit_index).tolist()],
        {str(row): str(error) for row, error in answers.errors.items()},
        answers.origin,
        {str(row): origin for row, origin in answers.origins.items()},
    )


def columns_of_rows(answers: Sequence[Decision | CaplineError]) -> Columns:
    """The answers of `decide_batch`; a row that is wrong is not allowed, and says why in `errors`."""
    columns = Columns([], [], [], [], [], {}, "store", {})
    for row, answer in enumerate(answers):
        if not isinstance(answer, Decision):
            columns.errors[str(row)] = str(answer)
            answer = _NONE  # noqa: PLW2901 - the row all the same
        columns.allowed.append(answer.allowed)
        columns.remaining.append(answer.remaining)
        columns.retry_after.append(answer.retry_after)
        columns.hit.append(answer.hit)
        columns.limit.append(_text(answer.limit))
        if answer.origin != columns.origin:
            columns.origins[str(row)] = answer.origin
    return columns


_NONE = Decision(False, None, 0, None, None, None)


def explained(why: Explanation, segment: str | None) -> bytes:
    """Why: the decision for one unit now, each limit as it stands, the hits, oldest first."""
    return msgspec.json.encode(
        why.as_dict(segment)
        | {
            "decision": one(why.policy, segment, why.decision),
            "hits": [{"hit": hit.stamp_us, "units": hit.units} for hit in why.hits],
        }
    )


def policies(namespace: str, named: Mapping[str, Policy]) -> Policies:
    """All policies in force, in their order."""
    return {"namespace": namespace, "policies": [policy(each) for each in named.values()]}


def _text(limit: Limit | None) -> str | None:
    return None if limit is None else str(limit)


def policy(policy: Policy) -> PolicyFacts:
    """A policy, with what it leaves to defaults."""
    return {
        "name": policy.name,
        "limits": [str(limit) for limit in policy.limits],
        "by_segment": {name: [str(limit) for limit in limits] for name, limits in policy.by_segment.items()},
        "channels": {name: [str(limit) for limit in limits] for name, limits in policy.channels.items()},
        "algorithm": policy.algorithm,
        "count_denied": policy.count_denied,
        "log": policy.log,
        "zone": policy.zone,
        "reservations": policy.reservations,
    }
