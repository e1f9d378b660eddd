"""YAML text as a small tree in which every node knows its line.

The rule: nothing in the text can cost more than its length, and nothing in it means more than what is written. So the
tree is built from the parser's events, not by a YAML loader:

    tags                                 refused: they make a text mean another type
    anchors, aliases, merge keys         refused: they make a short text mean a long one. Where a form takes them, what
                                         an alias stands for counts as if it were written out
    depth, number of nodes               bounded while parsing: the rest of a text that passes a bound is not even read
    a key given twice                    refused, where a loader would keep the last one without a word
    plain scalars                        stay text: `1/day`, `1:30`, `on` and `2024` are what they look like

Faults are collected, each with its line, and reading goes on where it can. Line 0 stands for the text as a whole. Costs
O(length): with libyaml about 3 microseconds a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple, cast

import yaml

Fault = tuple[int, str]
"""A line, counted from 1 (0: the text as a whole), and what is wrong there, with the fix."""

MOST_NODES = 100_000
DEEPEST = 16
"""Levels of lists and mappings; the form that policies take needs five."""

_NULLS = ("", "~", "null", "Null", "NULL")
_LONGEST_SHOWN = 80
_MOST_LINES = 12
_UNREADABLE = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What YAML forbids in a text: control characters, NUL among them, and lone surrogates."""

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where the wheel has it, which is some 30 times faster; the events are the same."""


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar, as written. `plain`: without quotes."""

    line: int
    text: str
    plain: bool = True

    @property
    def is_null(self) -> bool:
        """Whether nothing was written, or one of YAML's words for nothing."""
        return self.plain and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping: its keys in the order of the text, each once."""

    line: int
    entries: tuple[tuple[Text, Node], ...]


@dataclass(frozen=True, slots=True)
class Unusable:
    """Stands where something was refused and already reported."""

    line: int


Node = Text | Items | Table | Unusable


def texts_of(node: Node) -> Any:
    """The texts of a node, in lists and dictionaries as they stand there."""
    match node:
        case Text():
            return node.text
        case Items():
            return [texts_of(item) for item in node.items]
        case Table():
            return {key.text: texts_of(value) for key, value in node.entries}
        case Unusable():
            return None


def shown(text: str) -> str:
    """Quote a piece of the file for a message: escaped, so on one line, and short."""
    return repr(clipped(text))


def clipped(text: str) -> str:
    """Cut a text that is too long to be valid; the mark at its end keeps the rest from being valid by accident."""
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def in_one_line(name: str, faults: Sequence[Fault]) -> str:
    """The first of these faults (at least one) in the file of this name, and the lines of the others."""
    (line, text), *rest = sorted(faults, key=itemgetter(0))
    message = f"{name}:{line}: {text}" if line else f"{name}: {text}"
    if rest:
        lines = [str(line) for line in dict.fromkeys(line for line, _ in rest)]
        listed = ", ".join(lines[:_MOST_LINES]) + (", …" if len(lines) > _MOST_LINES else "")
        message += f" (and {len(rest)} more: {'line' if len(lines) == 1 else 'lines'} {listed})"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)


def each_in_a_line(name: str, faults: Sequence[Fault]) -> list[str]:
    """A line for each of the faults in the file of this name, if there are several."""
    ordered = sorted(faults, key=itemgetter(0)) if len(faults) > 1 else []
    return [f"{name}:{line}: {text}" if line else f"{name}: {text}" for line, text in ordered]


def read_tree(text: str, most_nodes: int = MOST_NODES, *, aliases: bool = False) -> tuple[Node | None, list[Fault]]:
    """Read one YAML document: its root (None if it is empty or could not be read to its end) and every fault.

    With `aliases` it takes anchors, aliases and merge keys. Never raises.
    """
    unreadable = _UNREADABLE.search(text)
    if unreadable:
        line = text.count("\n", 0, unreadable.start()) + 1
        return None, [(line, f"the character U+{ord(unreadable.group()):04X} cannot stand in a YAML text; remove it")]
    builder = _Builder(most_nodes, aliases=aliases)
    try:
        for event in _events(text):
            builder.take(event)
    except _StopReading:
        return None, builder.faults
    except yaml.YAMLError as error:
        return None, [*builder.faults, _syntax_fault(error)]
    except (ValueError, OverflowError) as error:
        # Without libyaml, PyYAML's scanner lets chr() and int() complain of the digits in an escape or a version.
        return None, [*builder.faults, (0, f"not YAML: {error}")]
    return builder.root, builder.faults


class _StopReading(Exception):  # noqa: N818 - not an error: the fault that ends the reading is already noted
    pass


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not come yet; a mapping's nodes are its keys and values in turn."""

    line: int
    is_table: bool
    anchor: str | None
    nodes: list[Node]
    size: int = 1
    height: int = 1


class _Anchored(NamedTuple):
    """What an alias stands for: how many values, and how many levels of lists and mappings."""

    node: Node
    size: int
    height: int


class _Builder:
    """Makes the tree from events, with its own stack instead of recursion."""

    def __init__(self, most_nodes: int, *, aliases: bool) -> None:
        self._most_nodes = most_nodes
        self._aliases = aliases
        self._anchored: dict[str, _Anchored] = {}
        self.root: Node | None = None
        self.faults: list[Fault] = []
        self._open: list[_Open] = []
        self._nodes = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1
        match event:
            case yaml.ScalarEvent():
                self._refuse_extras(event, line)
                if "\0" in event.value:  # by an escape; no path, name or URL may have it
                    self.faults.append((line, f"{shown(event.value)} has a NUL character; remove it"))
                text = Text(line, event.value, plain=bool(event.implicit[0]))
                self._add(_Anchored(text, 1, 0), line, cast("str | None", event.anchor))
            case yaml.AliasEvent():
                self._add(self._stands_for(event.anchor, line), line)
            case yaml.CollectionStartEvent():
                self._refuse_extras(event, line)
                anchor = cast("str | None", event.anchor)
                self._open.append(_Open(line, isinstance(event, yaml.MappingStartEvent), anchor, []))
                self._check_depth(0, line)
            case yaml.CollectionEndEvent():
                done = self._open.pop()
                node = self._table(done) if done.is_table else Items(done.line, tuple(done.nodes))
                self._nodes -= done.size - 1  # they are counted again with the whole
                self._add(_Anchored(node, done.size, done.height), done.line, done.anchor)
            case yaml.DocumentStartEvent() if self.root is not None:
                self._stop(line, "a second document begins here; keep one in a file")
            case _:
                pass

    def _add(self, built: _Anchored, line: int, anchor: str | None = None) -> None:
        self._nodes += built.size
        if self._nodes > self._most_nodes:
            self._stop(line, f"more than {self._most_nodes} values in one file; split it")
        if anchor is not None:
            self._anchored[anchor] = built
        if self._open:
            above = self._open[-1]
            above.nodes.append(built.node)
            above.size += built.size
            above.height = max(above.height, built.height + 1)
        else:
            self.root = built.node

    def _stands_for(self, name: str, line: int) -> _Anchored:
        """What an alias stands for, which was written before it."""
        found = self._anchored.get(name)
        if self._aliases and found is not None:
            self._check_depth(found.height, line)
            return found
        what = "stands for nothing that is before it" if self._aliases else "is not used here"
        self.faults.append((line, f"alias '*{name}' {what}; write out what it stands for"))
        return _Anchored(Unusable(line), 1, 0)

    def _check_depth(self, height: int, line: int) -> None:
        depth = len(self._open) + height
        if depth > DEEPEST:
            self._stop(line, f"lists and mappings stand {depth} deep here; at most {DEEPEST}")

    def _refuse_extras(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, line: int) -> None:
        anchor, tag = cast("str | None", event.anchor), cast("str | None", event.tag)
        if anchor is not None and not self._aliases:
            self.faults.append((line, f"anchor '&{anchor}' is not used here; remove it"))
        if tag is not None:
            short = tag.replace("tag:yaml.org,2002:", "!!", 1)
            self.faults.append((line, f"tag {shown(short)} is not used here; remove it"))

    def _table(self, done: _Open) -> Table:
        first: dict[str, int] = {}
        entries: list[tuple[Text, Node]] = []
        merged: list[Table] = []
        for key, value in zip(done.nodes[::2], done.nodes[1::2], strict=True):
            match key:
                case Text(line=line, text="<<", plain=True) if self._aliases:
                    merged += self._to_merge(value, line)
                case Text(line=line, text="<<", plain=True):
                    self.faults.append((line, "merge key '<<' is not used here; write out what it stands for"))
                case Text(line=line, text=text) if text in first:
                    self.faults.append((line, f"{shown(text)} is given twice, first on line {first[text]}; keep one"))
                case Text(line=line, text=text):
                    first[text] = line
                    entries.append((key, value))
                case Unusable():
                    pass
                case Items(line=line) | Table(line=line):
                    self.faults.append((line, "a key is a word, not a list or a mapping"))
        for table in merged:
            entries += [entry for entry in table.entries if entry[0].text not in first]
            first |= {key.text: key.line for key, _ in table.entries}
        return Table(done.line, tuple(entries))

    def _to_merge(self, value: Node, line: int) -> list[Table]:
        """The mappings that a merge key adds. A key of the mapping's own wins, then that of the first of these."""
        tables = list(value.items) if isinstance(value, Items) else [value]
        if not all(isinstance(table, Table | Unusable) for table in tables):
            self.faults.append((line, "merge key '<<' takes a mapping, or a list of them"))
        return [table for table in tables if isinstance(table, Table)]

    def _stop(self, line: int, text: str) -> None:
        self.faults.append((line, text))
        raise _StopReading


def _events(text: str) -> Iterator[yaml.Event]:
    return cast("Iterator[yaml.Event]", yaml.parse(text, Loader=LOADER))  # pyright: ignore[reportUnknownMemberType] - PyYAML's stub leaves it untyped


def _syntax_fault(error: yaml.YAMLError) -> Fault:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "it cannot be read"
    context = getattr(error, "context", None)
    hint = "; indent with spaces, not tabs" if "cannot start any token" in problem else ""
    where = f" {context}" if context and "token" not in context else ""
    return (mark.line + 1 if mark else 0, f"not YAML:{where and where + ','} {problem}{hint}")
