"""What is answered to a decision, a joint decision, an explanation or a question for usage.

Times are in the subject's zone if a limit depends on it, else in UTC; in JSON they are microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from rich.table import Table

from capline.cli.render.console import FAILED, Answer, note, out, plain, printable
from capline.limiter.policies.shadow import SHADOW
from capline.model.limit import QuietHours, duration_text
from capline.model.policy import LOGS
from capline.model.subject import subject_text
from capline.model.zone import UTC_ZONE

if TYPE_CHECKING:
    from capline.limiter.explain import ExplainedLimit, Explanation
    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.limit_status import LimitStatus


def decision_answer(decision: Decision, now_us: int, zone: str, *, exit_code: bool) -> Answer:
    """A decision; with `exit_code`, a refusal exits 1."""
    hit = "" if decision.hit is None else f", hit {decision.hit}"
    _note_outage(decision)
    return Answer(
        decision.as_dict(), lambda: out.print(_line(decision, now_us, zone) + hit), _code(decision, exit_code)
    )


def joint_answer(joint: Joint, parts: Sequence[Attempt], now_us: int, zone: str, *, exit_code: bool) -> Answer:
    """The decision over these attempts, and the hit of each."""

    def lines() -> None:
        of = "" if joint.limit is None else f" of {_named(parts[joint.binds])}"
        out.print(_line(joint, now_us, zone, of))
        for hit, attempt in zip(joint.hits, parts, strict=False):
            out.print(f"  {'no hit' if hit is None else f'hit {hit}'}  {_named(attempt)}", markup=False)

    fields = ("allowed", "remaining", "retry_after_us", "reset_after_us", "hits", "binds", "origin")
    facts = {field: getattr(joint, field) for field in fields}
    _note_outage(joint)
    limit = None if joint.limit is None else str(joint.limit)
    return Answer({**facts, "limit": limit}, lines, _code(joint, exit_code))


def usage_answer(states: Sequence[LimitStatus]) -> Answer:
    """What is used and left of each limit."""
    fields = ("name", "used", "remaining", "past", "frees_in_us", "whole_in_us")
    shown = Table("limit")
    for heading in ("used", "left", "more in", "all in"):
        shown.add_column(heading, justify="right")
    for state in states:
        quiet = isinstance(state.limit, QuietHours)
        numbers = ("-", "-") if quiet else (str(state.used), str(state.remaining))
        more = "never" if state.frees_in_us is None else duration_text(state.frees_in_us)
        shown.add_row(str(state.limit), *numbers, more, duration_text(state.whole_in_us))
    facts = [{"limit": str(state.limit), **{field: getattr(state, field) for field in fields}} for state in states]
    return Answer(facts, lambda: out.print(shown))


def explanation_answer(why: Explanation, segment: str | None, other: Explanation | None) -> Answer:
    """The decision, the state of each limit, and the hits; then those of the subject with the same digits, if any."""

    def lines() -> None:
        _print_explanation(why, segment)
        if other is not None:
            _print_explanation(other, segment)

    return Answer(why.as_dict(segment), lines)


def _print_explanation(why: Explanation, segment: str | None) -> None:
    zone = why.zone or UTC_ZONE
    line = _line(why.decision, why.now_us, zone)
    out.print(line.replace(" left under ", " left after one more, under "))
    _note_outage(why.decision)
    title = f"policy {why.policy}, subject {subject_text(why.subject)}"
    title += f", segment {segment}" if segment is not None else ""
    title += f", in {why.zone}" if why.zone else ""
    title += f", by {why.algorithm}" if why.algorithm != LOGS[0] else ""
    out.print(plain(title), style="italic", soft_wrap=True)
    table = Table()
    for heading in ("limit", "counted in", "used", "remaining", "next unit frees"):
        table.add_column(heading, justify="right" if heading in ("used", "remaining") else "left")
    for state in why.limits:
        binds = " (binds)" if state.binds else ""
        quiet = isinstance(state.limit, QuietHours)
        numbers = ("-", "-", "-") if quiet else (state.log, str(state.used), str(state.remaining))
        table.add_row(f"{state.limit}{binds}", *numbers, _frees(state, why, zone))
    out.print(table)
    for hit in why.hits:
        units = f"{hit.units} unit(s){'' if hit.units else ', refunded'}"
        units += "" if hit.id is None else f", id {printable(hit.id)}"
        out.print(f"  hit {hit.stamp_us}  {_when(hit.stamp_us, zone)}  {units}", markup=False)
    for line in _remarks(why):
        out.print(f"  {line}", style="dim")


def _line(answer: Decision | Joint, now_us: int, zone: str, of: str = "") -> str:
    limit, of = answer.limit, plain(of)
    quiet = isinstance(limit, QuietHours)
    if answer.allowed:
        left = f"no quiet hours now ({limit}{of})" if quiet else f"{answer.remaining} left under {limit}{of}"
        return f"[green]allowed[/]: {left}"
    refused = f"[red]refused[/]{',' if quiet else ' by'} {limit}{of}"
    if answer.retry_after_us is None:
        return f"{refused}: this cost never fits"
    when = _when(now_us + answer.retry_after_us, zone)
    return f"{refused}: fits in {duration_text(answer.retry_after_us)}, at {when}"


def _note_outage(answer: Decision | Joint) -> None:
    if answer.origin == SHADOW:
        note.print("it would be refused, but its policy is in shadow", style="yellow")
    elif answer.origin != "store":
        note.print(f"the store could not answer; this is the choice for an outage ({answer.origin})", style="yellow")


def _code(answer: Decision | Joint, exit_code: bool) -> int:
    return FAILED if exit_code and not answer.allowed else 0


def _frees(state: ExplainedLimit, why: Explanation, zone: str) -> str:
    """When the next unit of this limit frees; of quiet hours, whether they hold now."""
    if isinstance(state.limit, QuietHours):
        return "not quiet now" if state.quiet_until_us is None else f"quiet until {_when(state.quiet_until_us, zone)}"
    if state.frees:
        return _when(state.frees[0][0], zone)
    return "little by little" if state.used and why.algorithm not in LOGS else "-"


def _remarks(why: Explanation) -> list[str]:
    """Remarks on what the listed hits are."""
    lines: list[str] = []
    if why.algorithm == "bucketed":
        lines.append("bucketed keeps sums: a hit above may be several, with the stamp of the newest")
    elif why.algorithm not in LOGS:
        lines.append(f"{why.algorithm} keeps numbers and not hits; only a hit with an id is listed")
    if why.shadow:
        lines.append("in shadow: nobody is refused")
    if why.count_denied:
        lines.append("refusals count here (count_denied), and are among the hits")
    return lines


def _named(attempt: Attempt) -> str:
    return printable(f"{attempt.policy} {subject_text(attempt.subject)}")


def _when(instant_us: int, zone: str) -> str:
    return datetime.fromtimestamp(instant_us / 1e6, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S %Z")
