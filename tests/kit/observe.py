"""Tools for tests of observers: one that keeps what it was told, and a second count of decisions to hold it against."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from capline import CaplineError, Decision, Decisions, Policy
from capline.observe import Decided, Outcome

POLICIES = (
    Policy("p", ["3/day", "4/week"], by_segment={"new": ["1/day"], "old": ["2/day"]}, channels={"push": ["2/day"]}),
    Policy("q", ["2/day"]),
)


class Told(NamedTuple):
    verb: str
    policy: str | None
    segment: str | None
    channel: str | None
    size: int
    seconds: float | None
    counts: Mapping[Outcome, int]


class Recorder:
    """Keeps every event as it was when it was told."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.events: list[Decided] = []

    def decided(self, event: Decided) -> None:
        self.events.append(event)
        self.told.append(
            Told(event.verb, event.policy, event.segment, event.channel, event.size, event.seconds, dict(event.counts))
        )

    def sums(self) -> Counter[Outcome]:
        return sum((Counter(dict(told.counts)) for told in self.told), Counter[Outcome]())


class Raising:
    """Raises at each event, and keeps how often it did."""

    def __init__(self) -> None:
        self.times = 0

    def decided(self, event: Decided) -> None:
        self.times += 1
        raise RuntimeError(f"no room for {event.verb}")


def outcome(answer: Any, policy: str | None, segment: str | None = None, channel: str | None = None) -> Outcome:
    """Where one answer belongs, found without capline's own count."""
    if isinstance(answer, CaplineError):
        return Outcome(policy, segment, channel, None, "error", "")
    verdict = "allowed" if answer.allowed else "refused"
    return Outcome(policy, segment, channel, answer.limit, verdict, answer.origin)


def row(answers: Decisions, number: int) -> Decision | CaplineError:
    """A row of many, or why it has none."""
    try:
        return answers[number]
    except CaplineError as error:
        return error


def labels(outcome: Outcome) -> tuple[str, ...]:
    """As a metric names it."""
    return tuple("" if part is None else str(part) for part in outcome)
