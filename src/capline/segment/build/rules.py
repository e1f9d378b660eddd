"""Rules for segments: a file of conditions over the events of each user.

    columns: {id: user, time: at, event: kind, value: amount}     where the names are not these keys
    segments:
      new:     {first: signup within 30 days, never: ride}
      active:  {at_least: 1 ride within 30 days}
      lapsed:  {last: ride more than 90 days ago}
      big:     {spent: at least 100 on order within 90 days}

The rule: a user is in the first segment all of whose conditions hold, or in none; so segments are disjoint. A condition
that is given a list must hold for each of it. `any` stands for every event. An event exactly 30 days old is no longer
within 30 days, as in a limit's window: it is more than 30 days ago. Values are exact to four decimals.
"""

import re
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from capline.forms.fields import Fields
from capline.forms.tree import in_one_line, read_tree, shown
from capline.model.errors import CaplineError, SegmentError
from capline.model.limit import parse_span
from capline.model.policy import check_name
from capline.segment import files

MOST_RULES = 60
"""Each has a bit of a number."""
VALUE_UNITS = 10_000
"""Parts that a value is counted in."""
ANY = "any"

_COLUMNS = ("id", "time", "event", "value")
_LARGEST_FILE_BYTES = 1 << 20
_WITHIN = r"(?: within (?P<within>.+))?"
_AGE = r"(?P<event>.+?) (?:within (?P<within>.+)|more than (?P<ago>.+) ago)"
_COUNT = rf"(?P<number>[0-9]{{1,9}}) (?P<event>.+?){_WITHIN}"
_FORMS = {
    "first": (_AGE, "signup within 30 days"),
    "last": (_AGE, "ride more than 90 days ago"),
    "never": (rf"(?P<event>.+?){_WITHIN}", "ride within 30 days"),
    "at_least": (_COUNT, "1 ride within 30 days"),
    "at_most": (_COUNT, "3 ride within 30 days"),
    "spent": (
        rf"(?P<least>at least|less than) (?P<number>[0-9]{{1,12}}(?:\.[0-9]{{1,4}})?)(?: on (?P<event>.+?))?{_WITHIN}",
        "at least 100 within 90 days",
    ),
}


class Condition(NamedTuple):
    """What one event or more of a user must be."""

    measure: str
    """`first` and `last`: the age of that event; `count`: how many; `sum`: of their values."""
    event: str
    span_us: int | None
    """How old an event may be; None: any age. Of an age, the bound."""
    at_least: bool
    """Whether the number is the least, or else one too many; of an age, whether it is the span or more."""
    number: int = 0


class Rule(NamedTuple):
    """A segment, and the conditions that all must hold."""

    segment: str
    conditions: frozenset[Condition]


class Columns(NamedTuple):
    """The columns of events."""

    id: str
    time: str
    event: str | None
    """None if no rule asks what an event was."""
    value: str | None


class Rules(NamedTuple):
    """A file of rules, in order."""

    rules: tuple[Rule, ...]
    columns: Columns

    @property
    def names(self) -> list[str]:
        """The segments."""
        return [rule.segment for rule in self.rules]

    def events(self) -> dict[str, int]:
        """The events that rules name, each with a code from 1 on."""
        named = (each.event for rule in self.rules for each in rule.conditions if each.event != ANY)
        return {event: code for code, event in enumerate(sorted(set(named)), start=1)}


def read_rules(path: str | Path, columns: dict[str, str | None] | None = None) -> Rules:
    """Read a file of rules; `columns` wins over its own. `SegmentError` with the line of each fault."""
    data = files.read(path, _LARGEST_FILE_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise SegmentError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    root, faults = read_tree(text)
    if root is None and not faults:
        faults.append((0, "the file is empty; begin it with 'segments:'"))
    rules: list[Rule] = []
    named: dict[str, str] = {}
    if not faults:
        form = Fields(root, "", faults, like="segments: {new: {first: signup within 30 days}}")
        section = form.section("columns", "{id: user, time: at}")
        if section is not None:
            named = {key: section.text(key, key) for key in _COLUMNS}
            section.close()
        segments = form.section("segments", "new: {first: signup within 30 days}")
        if segments is None:
            form.fault(None, "no 'segments:' here; add it, like segments: {new: {first: signup within 30 days}}")
        else:
            rules = _rules(segments)
        form.close()
    if faults:
        raise SegmentError(in_one_line(str(path), faults))
    asked = {name: value for name, value in (columns or {}).items() if value is not None}
    found = {**dict(zip(_COLUMNS, _COLUMNS, strict=True)), **named, **asked}
    return Rules(tuple(rules), _needed(rules, found))


def _needed(rules: Iterable[Rule], named: dict[str, str]) -> Columns:
    conditions = [each for rule in rules for each in rule.conditions]
    event = named["event"] if any(each.event != ANY for each in conditions) else None
    value = named["value"] if any(each.measure == "sum" for each in conditions) else None
    columns = Columns(named["id"], named["time"], event, value)
    used = [name for name in columns if name is not None]
    if len(set(used)) < len(used):
        raise SegmentError(f"two of the columns are one: {', '.join(used)}; name each apart")
    return columns


def _rules(segments: Fields) -> list[Rule]:
    rules: list[Rule] = []
    for name, _ in segments.written():
        try:
            check_name(name, "segment")
        except CaplineError as error:
            segments.fault(name, str(error))
        form = segments.section(name, "{first: signup within 30 days}")
        if form is None or not form.is_mapping:
            continue
        form.only(tuple(_FORMS))
        conditions = frozenset(
            found for key, _ in form.written() for text in form.texts(key) if (found := _condition(form, key, text))
        )
        if not form.keys():
            segments.fault(name, f"no condition; add one, like first: {_FORMS['first'][1]}")
        alike = next((rule.segment for rule in rules if rule.conditions == conditions), None)
        if alike is not None and conditions:
            segments.fault(name, f"the same rule as that of {shown(alike)}, which takes all; remove one")
        rules.append(Rule(name, conditions))
    if len(rules) > MOST_RULES:
        segments.fault(None, f"{len(rules)} segments; at most {MOST_RULES}")
    if segments.is_mapping and not segments.keys():
        segments.fault(None, "there is none; add one, like new: {first: signup within 30 days}")
    return rules


def _condition(form: Fields, key: str, text: str) -> Condition | None:
    pattern, like = _FORMS[key]
    match = re.fullmatch(pattern, text)
    if match is None:
        form.fault(key, f"{shown(text)} cannot be read; write it like '{like}'")
        return None
    parts = {"event": None, "within": None, "ago": None, "number": "0", "least": None, **match.groupdict()}
    span = parts["within"] or parts["ago"]
    try:
        span_us = None if span is None else parse_span(span, key)
    except CaplineError as error:
        form.fault(key, str(error).removeprefix(f"{key}: "))
        return None
    event, number = (parts["event"] or ANY).strip(), Decimal(parts["number"] or 0)
    if key in ("first", "last"):
        return Condition(key, event, span_us, parts["ago"] is not None)
    if key == "spent":
        return Condition("sum", event, span_us, parts["least"] == "at least", int(number * VALUE_UNITS))
    if key == "at_least":
        return Condition("count", event, span_us, True, int(number))
    return Condition("count", event, span_us, False, int(number) + 1)
