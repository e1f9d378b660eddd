"""What an observer receives: one `Decided` for each call of a verb, however many attempts are in it.

The rule: it has no subjects, only names of policies, segments and channels (under `limits=` the caller's own name). So
these bound the figures by name.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from capline.model.limit import Limit

PEEKS = frozenset(("peek", "peek_all", "peek_many"))


class Outcome(NamedTuple):
    """The labels by which decisions are counted.

    `policy` is None where an attempt of a batch names none that exists; `segment` then too, and where the policy does
    not differ by segment. `limit` is the binding one, as in `Decision`. `verdict` is `"allowed"`, `"refused"` or
    `"error"`; an error has no limit, and `origin` "".
    """

    policy: str | None
    segment: str | None
    channel: str | None
    limit: Limit | None
    verdict: str
    origin: str


class Decided(msgspec.Struct):
    """The answers of one call.

    `verb`     `"decide"`, `"decide_all"`, `"decide_batch"`, `"decide_many"`, `"charge"`, `"reserve"`, `"schedule"`
               and `"schedule_all"` (also for `acquire` and `acquire_all`), and the peeks, which decide nothing:
               `"peek"`, `"peek_all"`, `"peek_many"`
    `policy`, `segment`, `channel`  what all its attempts share; None where mixed, or not named
    `size`     attempts in it; each is allowed, refused or an error (or would be, for a peek)
    `seconds`  duration of the store's call, with the fallback in an outage; None where no store was asked

    The counts are computed when first read: read them within `decided`, before the caller has the answers.
    """

    verb: str
    policy: str | None
    segment: str | None
    channel: str | None
    size: int
    seconds: float | None
    count: Callable[[], Mapping[Outcome, int]]
    counted: Mapping[Outcome, int] | None = None

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many attempts had each outcome; they add up to `size`."""
        if self.counted is None:
            self.counted = self.count()
        return self.counted

    @property
    def is_peek(self) -> bool:
        """Whether nothing was decided: the outcomes are what a decision would have been."""
        return self.verb in PEEKS

    @property
    def allowed(self) -> int:
        """Attempts that were allowed; none by a peek."""
        return 0 if self.is_peek else self._having("allowed")

    @property
    def refused(self) -> int:
        """Attempts that were refused; none by a peek."""
        return 0 if self.is_peek else self._having("refused")

    @property
    def would_allow(self) -> int:
        """Attempts that a peek says would be allowed."""
        return self._having("allowed") if self.is_peek else 0

    @property
    def would_refuse(self) -> int:
        """Attempts that a peek says would be refused."""
        return self._having("refused") if self.is_peek else 0

    @property
    def errors(self) -> int:
        """Attempts without an answer: the store failed, or an attempt of a batch was invalid."""
        return self._having("error")

    @property
    def by_origin(self) -> dict[str, int]:
        """Attempts by origin, without the errors."""
        sums: dict[str, int] = {}
        for outcome, count in self.counts.items():
            if outcome.origin:
                sums[outcome.origin] = sums.get(outcome.origin, 0) + count
        return sums

    @property
    def refused_by_limit(self) -> dict[Limit, int]:
        """Refused attempts by the binding limit; none by a peek."""
        sums: dict[Limit, int] = {}
        for outcome, count in () if self.is_peek else self.counts.items():
            if outcome.verdict == "refused" and outcome.limit is not None:
                sums[outcome.limit] = sums.get(outcome.limit, 0) + count
        return sums

    def _having(self, verdict: str) -> int:
        return sum(count for outcome, count in self.counts.items() if outcome.verdict == verdict)
