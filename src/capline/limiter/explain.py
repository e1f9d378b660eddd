"""Why: the limits in force for one subject, every hit that counts, and when each unit frees."""

from collections.abc import Mapping

import msgspec

from capline.model.decision import Decision
from capline.model.limit import Limit, QuietHours
from capline.model.policy import BoundPolicy
from capline.model.subject import Subject
from capline.window.bound_log import readers_of, table_of
from capline.window.limit_reader import QuietReader
from capline.window.log import CARRIED, Hit, Log


class ExplainedLimit(msgspec.Struct, frozen=True):
    """One limit as it stands: `used` is what counts now, and `remaining` what is left now, as `usage` says them.

    `log` is the name of its log as an export has it, without the namespace.
    A decision's `remaining` is what is left after it. `frees` is (microseconds since 1970, units) of every hit that
    counts, soonest first; empty if the algorithm keeps no hits, and for quiet hours. `binds` is set for the limit that
    the decision names: the one that blocks longest, or has the least left. `quiet_until_us` is when the current quiet
    hours end; None if there are none now, and for all other limits.
    """

    log: str
    limit: Limit
    used: int
    remaining: int
    frees: tuple[tuple[int, int], ...]
    binds: bool = False
    quiet_until_us: int | None = None

    def as_dict(self) -> dict[str, object]:
        """The same for JSON: the limit as its text; quiet hours have neither units nor a log."""
        if isinstance(self.limit, QuietHours):
            return {"limit": str(self.limit), "binds": self.binds, "quiet_until_us": self.quiet_until_us}
        return {
            "limit": str(self.limit),
            "log": self.log,
            "used": self.used,
            "remaining": self.remaining,
            "binds": self.binds,
            "frees": [{"at_us": at_us, "units": units} for at_us, units in self.frees],
        }


class ExplainedHit(Hit, frozen=True):
    """A hit, and the attempt's id: a log keeps 64 bits of it, so it is known only if given to `explain`."""

    id: str | None = None

    def as_dict(self) -> dict[str, object]:
        """The same for JSON, with the id only where it is known."""
        known: dict[str, object] = {} if self.id is None else {"id": self.id}
        return {"stamp_us": self.stamp_us, "units": self.units, **known}


class Explanation(msgspec.Struct, frozen=True):
    """Why an attempt would be allowed or refused.

    `decision` is what a `decide` of one unit would answer at `now_us`; `hits` is the log, oldest first. Of an algorithm
    that keeps no log these are the hits that have an id. With `count_denied` refusals are among them. `zone` is where
    the subject is, and empty if no limit needs it. Under a policy in `shadow` the decision has that `origin` where
    it would be refused.
    """

    policy: str
    subject: Subject
    now_us: int
    decision: Decision
    limits: tuple[ExplainedLimit, ...]
    hits: tuple[ExplainedHit, ...]
    algorithm: str = "sliding_log"
    zone: str = ""
    count_denied: bool = False
    shadow: bool = False

    def as_dict(self, segment: str | None = None) -> dict[str, object]:
        """The same for JSON; `segment` is the one that was asked for. A hit has an `id` where it is known."""
        return {
            "policy": self.policy,
            "subject": self.subject,
            "segment": segment,
            "algorithm": self.algorithm,
            "count_denied": self.count_denied,
            "shadow": self.shadow,
            "zone": self.zone or None,
            "now_us": self.now_us,
            "decision": self.decision.as_dict(),
            "limits": [limit.as_dict() for limit in self.limits],
            "hits": [hit.as_dict() for hit in self.hits],
        }


def explain(
    rule: BoundPolicy, subject: Subject, now_us: int, decision: Decision, logs: list[list[Hit]], ids: Mapping[int, str]
) -> Explanation:
    """Put the hits of each log beside its limits; `ids` are the given ids by their fingerprints."""
    binding = _binding(rule, decision)
    states: list[ExplainedLimit] = []
    table = table_of(rule, now_us)
    for log_limits, readers, hits in zip(rule.logs, readers_of(rule), logs, strict=True):
        log = Log(tuple(hits))
        for reader in readers:
            left = reader.left(log, max(now_us, log.newest_us() + 1), table)
            frees = tuple(
                (frees_us, hit.units)
                for hit in hits
                if hit.units and (frees_us := reader.frees_us(hit.stamp_us, table)) > now_us
            )
            used = max(0, reader.limit.quota - left)
            binds = binding == len(states)
            opens_us = reader.opens_us(now_us, table) if isinstance(reader, QuietReader) else now_us
            quiet_until_us = opens_us if opens_us > now_us else None
            states.append(
                ExplainedLimit(
                    log_limits.log.partition(":")[2], reader.limit, used, max(0, left), frees, binds, quiet_until_us
                )
            )
    names = [hit.fingerprint if hit.fingerprint < CARRIED else 0 for hit in logs[0]]
    hits = tuple(
        ExplainedHit(hit.stamp_us, hit.units, name, ids.get(name)) for hit, name in zip(logs[0], names, strict=True)
    )
    counts_denied = rule.denied_units > 0
    return Explanation(
        rule.policy, subject, now_us, decision, tuple(states), hits, rule.algorithm, rule.zone, counts_denied
    )


def _binding(rule: BoundPolicy, decision: Decision) -> int | None:
    """The number of the decision's limit through all logs.

    A channel's limit that equals one of the policy's never binds: the policy's log has all of the channel's hits.
    """
    limits = [limit for log_limits in rule.logs for limit in log_limits.limits]
    return limits.index(decision.limit) if decision.limit in limits else None
