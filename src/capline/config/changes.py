"""Plans one commit: the rows that make the wanted changes. Its only I/O is reading the rows before.

A change replaces what is in force. A change for a later instant keeps the value in force beside it until then, and
limits for a while the value that comes after them; the next change replaces both, so at most one change is waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from capline.config.document import limit_texts, own_facts
from capline.config.records import (
    OVERRIDES,
    PAST_OVERRIDES,
    PAST_POLICIES,
    POLICIES,
    Entry,
    Name,
    Row,
    Totals,
    entry_bytes,
    hour_of_end,
    names_of,
    past_bytes,
    read_past,
    read_totals,
)
from capline.model.errors import ConfigConflictError, InvalidTypeError, InvalidValueError, PolicyError, quoted
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.policy.shared_log import check_shared_log
from capline.support.instant import instant_text
from capline.support.system import who as account

if TYPE_CHECKING:
    from capline.config.backend import Backend
    from capline.config.view import View

LEAD_US = 3_000_000
"""How far ahead an instant must be, so that every process knows of the change in time."""
MOST_PAST = {POLICIES: 100, OVERRIDES: 16}
"""Versions that are kept before the last."""
_PAST = {POLICIES: PAST_POLICIES, OVERRIDES: PAST_OVERRIDES}
_LAST_US = 253_402_300_799_000_000
"""9999-12-31T23:59:59Z: a later instant could not be shown."""
LONGEST_WHO, LONGEST_REASON = 64, 256
_US = 1_000_000


KEPT: Any = object()
"""The value that a row has when a change is made."""


class Change(NamedTuple):
    """The new value of a row (a document, limits or None), and the version that it must have, if any.

    With `until_us` the value ends at that instant, and `then` follows.
    """

    value: Any
    if_version: int | None
    until_us: int = 0
    then: Any = KEPT


class Plan(NamedTuple):
    """One commit: its rows, what changed, and the changed totals."""

    rows: list[Row]
    names: list[Name]
    totals: dict[str, Totals]

    @property
    def policies(self) -> list[Name]:
        """What changed, by policy."""
        many = {name.policy: name.subject is not None for name in self.names}
        return [Name(policy, many=several) for policy, several in many.items()]


def planned(
    table: str,
    changes: Mapping[bytes, Change],
    before: Sequence[Entry | None],
    backend: Backend,
    version: int,
    now_us: int,
    who: str,
    effective_us: int,
) -> Plan:
    """The commit that makes these changes; empty if nothing differs. Raises `ConfigConflictError`."""
    moved: list[tuple[bytes, Entry, Entry | None]] = []
    for (name, change), old in zip(changes.items(), before, strict=True):
        has = 0 if old is None else old.version
        if change.if_version is not None and change.if_version != has:
            policy, subject = names_of(name)
            about = f"policy {policy!r}" if subject is None else f"the override of {quoted(subject)} under {policy!r}"
            raise ConfigConflictError(f"{about} is of version {has}, not {change.if_version}; read it again")
        kept = None if old is None else old.value
        then = kept if change.then is KEPT else change.then
        if kept == then == change.value and (old is None or old.effective_us <= now_us):
            continue  # no change
        if change.until_us:
            value, from_us, first = then, change.until_us, change.value
        else:
            value, from_us = change.value, effective_us
            first = old.at(now_us) if old is not None and effective_us else None
        moved.append((name, Entry(version, now_us, who, value, from_us, first), old))
    again = [name for name, _, old in moved if old is not None]
    pasts = dict(zip(again, backend.get(_PAST[table], again), strict=True)) if again else {}
    rows: list[Row] = []
    for name, entry, old in moved:
        rows.append((table, name, entry_bytes(entry)))
        if old is not None:
            kept = [*read_past(pasts[name]), old][-MOST_PAST[table] :]
            rows.append((_PAST[table], name, past_bytes(version, kept)))
    names = [Name(*names_of(name)) for name, _, _ in moved]
    return Plan(rows, names, _totals(moved, backend) if table == OVERRIDES else {})


def _totals(moved: Iterable[tuple[bytes, Entry, Entry | None]], backend: Backend) -> dict[str, Totals]:
    by_policy: dict[str, list[tuple[Entry, Entry | None]]] = {}
    for name, entry, old in moved:
        by_policy.setdefault(names_of(name)[0], []).append((entry, old))
    held = backend.totals(list(by_policy))
    totals: dict[str, Totals] = {}
    for policy, pairs in by_policy.items():
        before = read_totals(held[policy]) if policy in held else Totals()
        values = [value for entry, _ in pairs for value in (entry.value, entry.before)]
        texts = {text for value in values for text in own_facts(value)["limits"] or ()}
        limits = [Limit.parse(text) for text in texts]
        count = before.count + sum(_counts(entry) - _counts(old) for entry, old in pairs)
        ends = Counter(before.ends)
        for entry, step in [*((new, 1) for new, _ in pairs), *((old, -1) for _, old in pairs if old is not None)]:
            if hour := hour_of_end(entry):
                ends[hour] += step
        totals[policy] = (
            Totals(
                count,
                max([before.widest_us, *(limit.reach_us for limit in limits)]),
                max([before.largest, *(limit.quota for limit in limits)]),
                {hour: many for hour, many in ends.items() if many > 0},
            )
            if count
            else Totals()
        )
    return totals


def _counts(entry: Entry | None) -> bool:
    return entry is not None and (entry.value is not None or entry.before is not None)


def own_of(
    policy: str, base: Policy | None, limits: Sequence[Limit | str] | None, granularity: str | None = None
) -> list[str] | dict[str, Any] | None:
    """An override's value as it is stored; raises `PolicyError` for limits that the policy cannot have."""
    if limits is None and granularity is None:
        return None
    if base is None:
        base = Policy(policy, ["1/day"], algorithm="sliding_log" if granularity is None else "bucketed")
    if not limits:
        raise PolicyError(f"policy {policy!r}: an override needs at least one limit, like ['10/day']; None removes it")
    if granularity is None:
        return limit_texts(base.having(limits=limits, by_segment={}).limits)
    made = base.having(limits=limits, by_segment={}, granularity=granularity)
    return {"limits": limit_texts(made.limits), "granularity": f"{made.grain_us}us"}


def check_together(view: View, policies: Iterable[Policy]) -> None:
    """Raise where one of these policies shares a log with another that keeps it in another way."""
    new = {policy.name: policy for policy in policies}
    first: dict[str, Policy] = {}
    for policy in new.values():
        check_shared_log(policy, first.setdefault(policy.log, policy))
    for log, policy in first.items():
        entries = [view.entries[name] for name in sorted(view.sharing.get(log, ())) if name not in new]
        for other in (other for entry in entries for other in (entry.value, entry.before)):
            if other is not None and other.log == log:
                check_shared_log(other, policy)


def later_instant_us(given: str | datetime, now_us: int, name: str = "effective_at") -> int:
    """A later instant, in microseconds since 1970; raises `InvalidValueError` if it is too soon or past year 9999."""
    at: Any = given
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise InvalidValueError(f"{name} {quoted(at)} is not an instant; write it like 2026-11-21T16:00Z") from None
    if not isinstance(at, datetime):
        raise InvalidTypeError(f"{name} is an instant like '2026-11-21T16:00Z', not {quoted(at)}")
    if at.tzinfo is None:
        raise InvalidValueError(f"{name} {quoted(given)} has no zone; write it like 2026-11-21T16:00Z")
    whole = (at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    effective_us = round(whole * _US)
    if effective_us < now_us + LEAD_US:
        soonest = instant_text(((now_us + LEAD_US) // _US + 1) * _US)
        raise InvalidValueError(
            f"{name} {quoted(given)} is too soon for others to know of it; name {soonest} or later, or leave it out"
            f"{' for at once' if name == 'effective_at' else ''}"
        )
    if effective_us > _LAST_US:
        raise InvalidValueError(f"{name} {quoted(given)} is later than year 9999 of UTC; name an earlier one")
    return effective_us


def check_who(who: str | None) -> str:
    """The author of a change: as given, or the user of this process."""
    if who is None:
        return account()[:LONGEST_WHO]
    if not isinstance(who, str) or not who.isprintable() or not 1 <= len(who.encode(errors="replace")) <= LONGEST_WHO:  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidValueError(
            f"who is a name of 1 to {LONGEST_WHO} bytes, without control characters, not {quoted(who)}"
        )
    return who


def check_reason(reason: str) -> str:
    """Why a change is made, as given."""
    if not reason.isprintable() or len(reason.encode(errors="replace")) > LONGEST_REASON:
        raise InvalidValueError(f"reason is at most {LONGEST_REASON} bytes, without control characters")
    return reason
