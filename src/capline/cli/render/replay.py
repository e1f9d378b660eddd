"""What `capline replay` answers: facts for machines, tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from capline.cli.render.console import NO_SEGMENT, out, plain, table

if TYPE_CHECKING:
    from capline.replay.blocks import EventFile
    from capline.replay.count import ReplayCounts


def replay_facts(counted: Sequence[ReplayCounts], file: EventFile) -> dict[str, object]:
    """The answer in JSON: `policies` by name, and what was said of the file."""
    subjects = file.subjects()
    return {
        "policies": {
            counts.policy.name: {
                "events": counts.events,
                "allowed": counts.events - counts.refusals.total(),
                "refused": counts.refusals.total(),
                "by_limit": counts.by_limit(),
                "by_binding": counts.by_limit(binding=True),
                "subjects": len(subjects),
                "subjects_refused": int((counts.refused_of > 0).sum()),
                "top_refused": counts.top_refused(subjects),
            }
            for counts in counted
        },
        "first_us": counted[0].first_us,
        "last_us": counted[0].last_us,
        "broken_lines": file.broken_lines,
        "segments": {counts.policy.name: _by_segment(counts) for counts in counted},
    }


def _by_segment(counts: ReplayCounts) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for segment, asked in sorted(counts.asked.items(), key=lambda each: each[0] or ""):
        if asked:
            refused = {str(limit): counts.refused[segment, limit] for limit in counts.policy.all_limits()}
            by_limit = {limit: count for limit, count in refused.items() if count}
            rows.append(
                {"segment": segment, "asked": asked, "allowed": asked - sum(by_limit.values()), "refused": by_limit}
            )
    return rows


def show_replay(counted: Sequence[ReplayCounts], file: EventFile, *, by_segment: bool) -> None:
    """Print a table for each policy: refusals by the limit with the longest wait."""
    subjects = file.subjects()
    for counts in counted:
        refused = counts.refusals.total()
        limits = [name for name, count in counts.by_limit(binding=True).items() if count]
        headings = ("asked", "allowed", "refused", *(f"by {limit}" for limit in limits))
        shown = table("segment" if by_segment else "", numbers=headings)
        for line in _by_segment(counts):
            numbers = (line["asked"], line["allowed"], line["asked"] - line["allowed"])
            cells = [f"{number:,}" for number in (*numbers, *(line["refused"].get(limit, 0) for limit in limits))]
            shown.add_row(plain(line["segment"] or NO_SEGMENT) if by_segment else "", *cells)
        out.print(f"policy {plain(counts.policy.name)}: {counts.events:,} events, {refused:,} of them refused")
        out.print(shown)
        if refused:
            top = ", ".join(f"{plain(subject)} ({count:,})" for subject, count in counts.top_refused(subjects, 3))
            hit = int((counts.refused_of > 0).sum())
            out.print(f"{hit:,} of {len(subjects):,} subjects were refused, most of all {top}\n", soft_wrap=True)
