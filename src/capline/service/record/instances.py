"""Which instances of the service there are: each says with its row of an hour what it serves, and when.

    row     [its name, a version, what has it, 0, [the second when, the version's place in the order of versions,
            the second since when it has it]]

They stand among the rows of what it counted, one for each of `KINDS`, in the same value: nothing more is written or
read. The rule: an instance lags if it was heard `FOLLOWS_S` after another served a later version: each speaks once a
minute, and its last word may be older than that version. It is silent once it is not heard for `SILENT_S`, by the
clocks of both; silent, it is gone once another that began since took its place, or after `GONE_S`. One that ended says
so, and is not listed. Cost: some 45 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from capline import __version__
from capline.service.record.counted import Row, read

if TYPE_CHECKING:
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.policies.segments import SegmentSource
    from capline.policy.watch import PolicyWatch

KINDS = ("capline", "policies", "segments", "configuration")
SILENT_S = 100.0
"""An instance writes every minute."""
GONE_S = 900.0
"""Nobody waits for an instance that was silent for so long."""
_APART_S = 60
"""Who lived for so long has said so."""
FOLLOWS_S = 10.0
"""Within this an instance follows a change."""
_ENDED = "ended"

Versions = Mapping[str, tuple[str, int]]
"""By one of `KINDS` a version, and its place in the order of versions; 0 where they have none."""


def served(limiter: AsyncLimiter, segments: SegmentSource | None, policies: PolicyWatch | None) -> Versions:
    """What this instance serves now."""
    found = {"capline": (__version__, 0)}
    if policies is not None:
        found["policies"] = policies.version
    if segments is not None:
        status = segments.status  # a snapshot that is not published has no sequence
        order = status.sequence or (segments.current.created_us if status.version else 0)
        found["segments"] = status.version or "", order
    if limiter.configuration is not None:
        version = limiter.configuration.version
        found["configuration"] = str(version), version
    return found


def ended() -> Versions:
    """What an instance says at its end."""
    return {_ENDED: ("", 0)}


def told(name: str, at: float, versions: Versions, since: Mapping[str, float]) -> list[Row]:
    """The rows of an instance that serves these, each `since` when."""
    return [
        (name, version, kind, 0, [int(at), order, int(since.get(kind, at))])
        for kind, (version, order) in versions.items()
    ]


def heard(values: Iterable[bytes], at: float) -> list[dict[str, Any]]:
    """Each instance: what it serves, when it was last heard, whether it is silent or gone `at` that time, its lags."""
    last: dict[str, int] = {}
    serves: dict[str, dict[str, tuple[str, int, int]]] = {}
    began: dict[str, int] = {}
    for value in values:
        for name, version, kind, _, said in read(value):
            if kind not in (*KINDS, _ENDED) or len(said) not in (2, 3):
                continue
            second, order, since = (*said, said[0])[:3]  # the release before does not say since when
            if len(said) == 3:  # noqa: PLR2004 - this one does
                began[name] = min(began.get(name, since), since)
            if second > last.get(name, -1):
                last[name], serves[name] = second, {}
            if second == last[name]:
                serves[name][kind] = version, order, since
    there = {name: versions for name, versions in serves.items() if _ENDED not in versions}
    silent = {name: last[name] for name in there if at - last[name] > SILENT_S}
    newest: dict[str, tuple[int, str, int]] = {}  # the first that served it counts
    for name in there.keys() - silent.keys():
        for kind, (version, order, since) in there[name].items():
            newest[kind] = max(newest.get(kind, (-1, "", 0)), (order, version, -since))
    gone = _replaced(silent, {name: began[name] for name in there if name in began}) | {
        name for name, second in silent.items() if at - second > GONE_S
    }

    def lags(name: str, kind: str) -> bool:
        version, order, _ = there[name][kind]
        most, newest_version, minus_since = newest.get(kind, (0, "", 0))
        return order < most and version != newest_version and last[name] + minus_since >= FOLLOWS_S

    return [
        {
            "instance": name,
            "heard": last[name],
            "is_silent": name in silent,
            "is_gone": name in gone,
            "versions": {kind: version for kind, (version, *_) in versions.items()},
            "lags": [kind for kind in versions if name not in gone and lags(name, kind)],
        }
        for name, versions in sorted(there.items())
    ]


def _replaced(silent: Mapping[str, int], began: Mapping[str, int]) -> set[str]:
    """Those silent ones whose place another took; each takes one, of the first that fell silent.

    It began after their last word, and `_APART_S` after them: of those that began together none took another's place.
    """
    found: set[str] = set()
    waiting = sorted(silent.keys() & began.keys(), key=lambda name: (silent[name], name))
    for at in sorted(began.values()):
        before = (one for one in waiting if one not in found and silent[one] <= at and began[one] + _APART_S <= at)
        found.update([*before][:1])
    return found
