"""Prints a decision, a joint decision or an explanation: as lines for people, or in JSON.

Times are in the subject's zone if a limit depends on it, else in UTC; in JSON they are microseconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import typer
from rich.table import Table

from capline.cli.common import answer_json, note, out, plain, printable
from capline.model.limit import QuietHours, duration_text
from capline.model.policy import LOGS
from capline.model.subject import subject_text
from capline.model.zone import UTC_ZONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capline.limiter.explain import ExplainedLimit, Explanation
    from capline.model.attempt import Attempt
    from capline.model.decision import Decision, Joint
    from capline.model.limit import Limit

__all__ = ["show", "show_explanation", "show_joint"]


def show(decision: Decision, now_us: int, zone: str, *, json: bool, exit_code: bool) -> None:
    """Print a decision; with `exit_code`, a refusal exits 1."""
    if json:
        answer_json(decision.as_dict())
    else:
        hit = "" if decision.hit is None else f", hit {decision.hit}"
        out.print(_line(decision, now_us, zone) + hit)
    _end(decision, exit_code=exit_code)


def show_joint(joint: Joint, asked: Sequence[Attempt], now_us: int, zone: str, *, json: bool, exit_code: bool) -> None:
    """Print the decision over these attempts, and the hit of each."""
    if json:
        parts = ("allowed", "remaining", "retry_after_us", "reset_after_us", "hits", "binds", "origin")
        answer_json({**{part: getattr(joint, part) for part in parts}, "limit": _text(joint.limit)})
    else:
        of = "" if joint.limit is None else f" of {_named(asked[joint.binds])}"
        out.print(_line(joint, now_us, zone, of))
        for hit, attempt in zip(joint.hits, asked, strict=False):
            out.print(f"  hit {hit}  {_named(attempt)}", markup=False)
    _end(joint, exit_code=exit_code)


def show_explanation(why: Explanation, segment: str | None, *, json: bool) -> None:
    """Print an explanation: the decision, the state of each limit, and the hits."""
    if json:
        answer_json(why.as_dict(segment))
        return
    zone = why.zone or UTC_ZONE
    line = _line(why.decision, why.now_us, zone)
    out.print(line.replace(" left under ", " left after one more, under "))
    _end(why.decision, exit_code=False)
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
    """The decision in one line."""
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


def _end(answer: Decision | Joint, *, exit_code: bool) -> None:
    if answer.origin != "store":
        note.print(f"the store could not answer; this is the choice for an outage ({answer.origin})", style="yellow")
    if exit_code and not answer.allowed:
        raise typer.Exit(1)


def _frees(state: ExplainedLimit, why: Explanation, zone: str) -> str:
    """When the next unit of this limit frees."""
    if isinstance(state.limit, QuietHours):
        return _quiet(state, zone)
    if state.frees:
        return _when(state.frees[0][0], zone)
    return "little by little" if state.used and why.algorithm not in LOGS else "-"


def _quiet(state: ExplainedLimit, zone: str) -> str:
    """Whether quiet hours hold now."""
    return "not quiet now" if state.quiet_until_us is None else f"quiet until {_when(state.quiet_until_us, zone)}"


def _remarks(why: Explanation) -> list[str]:
    """Remarks on what the listed hits are."""
    lines: list[str] = []
    if why.algorithm == "bucketed":
        lines.append("bucketed keeps sums: a hit above may be several, with the stamp of the newest")
    elif why.algorithm not in LOGS:
        lines.append(f"{why.algorithm} keeps numbers and not hits; only a hit with an id is listed")
    if why.count_denied:
        lines.append("refusals count here (count_denied), and are among the hits")
    return lines


def _text(limit: Limit | None) -> str | None:
    return None if limit is None else str(limit)


def _named(attempt: Attempt) -> str:
    return printable(f"{attempt.policy} {subject_text(attempt.subject)}")


def _when(instant_us: int, zone: str) -> str:
    return datetime.fromtimestamp(instant_us / 1e6, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S %Z")
