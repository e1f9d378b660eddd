"""The screen of `capline top`: rates, what needs attention, policies, campaigns, one subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group

from capline.cli.render.console import counted, plain, table
from capline.model.limit import duration_text
from capline.support.instant import instant_text
from capline.support.quantity import size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

_MOST_ROWS, _MOST_LIMITED, _LONGEST_WHOLE = 30, 10, 24
_LEAST = 2
"""Columns of a table, however narrow the terminal is."""


def screen(seen: Mapping[str, Any], url: str) -> Group:
    """What was seen of the service there; its `away` says why it does not answer any more."""
    head = _head(seen, url) if "rates" in seen else _store_head(seen, url)
    limited, campaigns = _limited(seen.get("limited", ())), _campaigns(seen.get("campaigns"))
    # A terminal has few lines: the subject that was named comes first; faults of servers are in the head already.
    parts = head, _subject(seen), _policies(seen), _servers(seen["servers"], seen["away"]), limited, campaigns
    return Group(*(line for part in parts for line in part))


def _store_head(seen: Mapping[str, Any], url: str) -> Iterator[RenderableType]:
    yield _title(seen, url)
    figures = seen["figures"]
    if "logs" in figures:
        yield f"{figures['logs']:,} subjects' logs, {size(figures['file_bytes'])}"
    for each in seen["servers"]:
        for fault in each["faults"].values():
            yield f"[yellow]{plain(each['server'])}: {fault}[/]"


def _head(seen: Mapping[str, Any], url: str) -> Iterator[RenderableType]:
    rates, seconds, store = seen["rates"], seen["seconds"], seen["store"]
    yield _title(seen, url)
    refused = f"[red]{rates['refused']:,.1f} refused[/]" if rates["refused"] else "0 refused"
    lost = f", [bold red]{rates['errors']:,.1f} without an answer[/]" if rates["errors"] else ""
    took = f"   half within {_ms(seconds['median'])}, 99 % within {_ms(seconds['p99'])}" if seconds["median"] else ""
    yield f"a second: {rates['allowed']:,.1f} allowed, {refused}{lost}{took}"
    yield f"store {_state(store, seen['away'])}   {counted(seen['policy_count'], 'policy', 'policies')}"
    for each in seen["attention"]:
        yield f"[yellow]{plain(each['what'])}[/]"


def _title(seen: Mapping[str, Any], url: str) -> str:
    at = instant_text(int(seen["at"]) * 1_000_000, "seconds")[11:19]
    title = f"[bold]capline[/] {plain(url)}   as of {at} UTC"
    return f"{title}\n[bold red]it does not answer:[/] {plain(seen['away'])}" if seen["away"] else title


def _servers(servers: Sequence[Mapping[str, Any]], away: str) -> Iterator[RenderableType]:
    rows = [
        {
            "keys": _figure(each["keys"], "{:,}"),
            "memory": size(each["memory_bytes"]) if each["memory_bytes"] else "",
            "of": size(each["max_memory_bytes"]) if each["max_memory_bytes"] else "",
            "replicas": _figure(each["replicas"], "{:,}"),
            "lag": _figure(each["replica_lag_s"], "{} s"),
            "evicted": _figure(each["evicted_keys"] or None, "{:,}"),
            "unsaved": "[bold red]fails[/]" if each["save_failed"] else _figure(each["unsaved_s"] or None, "{:,} s"),
            "script": _figure(each["script_mean_us"], "{:,.0f} us"),
        }
        for each in servers
    ]
    if rows:
        figures = [figure for figure in rows[0] if any(row[figure] for row in rows)]  # narrow: addresses stay whole
        shown = table("\nserver", "", numbers=(f"\n{figure}" for figure in figures))
        for each, row in zip(servers, rows, strict=True):
            shown.add_row(plain(each["server"]), _state(each, away), *(row[figure] for figure in figures))
        yield _Fitted(shown)


class _Fitted:
    """A table that leaves out what a narrow terminal has no room for, the last column first: none is cut."""

    def __init__(self, shown: Table) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        columns, wide = self._shown.columns, options.update(max_width=1000)
        for column in columns:
            width = max(console.measure(cell, options=wide).maximum for cell in (column.header, *column.cells))
            if column.justify == "right" or (column is columns[0] and width <= _LONGEST_WHOLE):
                column.min_width = width
        while len(columns) > _LEAST and console.measure(self._shown, options=wide).minimum > options.max_width:
            columns.pop()
        yield self._shown


def _policies(seen: Mapping[str, Any]) -> Iterator[RenderableType]:
    shown = table("\npolicy", "\nrefused by", numbers=("\nallowed/s", "\nrefused/s", "\nrefused", "\nin shadow"))
    for each in seen["policies"][:_MOST_ROWS]:
        total = each["allowed"] + each["refused"] + each["shadow"]
        by = ", ".join(limit["limit"] for limit in each["limits"])
        rates = (f"{each[verdict] / seen['policies_over_s']:,.2f}" for verdict in ("allowed", "refused"))
        shares = (f"{each[name] / total:.1%}" if each[name] else "" for name in ("refused", "shadow"))
        shown.add_row(plain(each["policy"]), plain(by), *rates, *shares)
    yield _Fitted(shown) if shown.row_count else "\nno service counted a decision lately"


def _limited(policies: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    rows = [
        (entry["count"], policy["policy"], by["limit"], entry["subject"])
        for policy in policies
        for by in policy["limits"]
        for entry in by["subjects"]
    ]
    if rows:
        shown = table("\nmost refused", "\npolicy", "\nlimit", numbers=("\nrefused",))
        for count, policy, limit, subject in sorted(rows, key=lambda row: -row[0])[:_MOST_LIMITED]:
            shown.add_row(plain(subject), plain(policy), plain(limit), f"{count:,}")
        yield _Fitted(shown)


def _campaigns(campaigns: list[dict[str, Any]] | None) -> Iterator[RenderableType]:
    if campaigns:
        shown = table("\ncampaign", "\nstate", "\npolicy", numbers=("\ndone", "\nof"))
        for each in campaigns:
            words = (plain(each[name]) for name in ("campaign", "state", "policy"))
            shown.add_row(*words, f"{each['done']:,}", f"{each['audience']:,}")
        yield _Fitted(shown)


def _subject(seen: Mapping[str, Any]) -> Iterator[RenderableType]:
    if (subject := seen.get("subject")) is None:
        return
    if not subject["policies"]:
        yield f"\nsubject {plain(subject['id'])}: nothing is used"
        return
    shown = table(f"\nsubject {plain(subject['id'])}", "\nlimit", numbers=("\nused", "\nleft", "\na unit is free in"))
    for each in subject["policies"]:
        for limit in each["limits"]:
            style = "red" if limit["binds"] and each["refuses"] else None
            at_us = min((unit["at_us"] for unit in limit.get("frees", ())), default=None)
            free = "" if at_us is None else duration_text(max(0, -(-(at_us - each["now_us"]) // 1_000_000)) * 1_000_000)
            used, left = (f"{limit[name]:,}" if name in limit else "" for name in ("used", "remaining"))
            shown.add_row(plain(each["policy"]), plain(limit["limit"]), used, left, free, style=style)
    yield _Fitted(shown)


def _state(state: Mapping[str, Any], away: str) -> str:
    if state["up"]:
        return "was up" if away else "[green]up[/]"
    return "[bold red]away[/]"


def _figure(figure: float | None, form: str) -> str:
    return "" if figure is None else form.format(figure)


def _ms(seconds: float | None) -> str:
    return "?" if seconds is None else f"{1000 * seconds:.3g} ms"
