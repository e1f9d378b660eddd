"""Reading one mapping of a YAML form, key by key: of a policy file, a campaign file, a sender's options.

The rule: whoever asks for a key says what it has to be, and a key that nobody asked for is a fault. Faults are
collected with their lines, so that a file is fixed in one go; what is returned beside a fault is a stand-in and is
never used. Senders, also other people's, read their options through this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path

from capline.forms.tree import Fault, Items, Node, Table, Text, Unusable, shown
from capline.model.errors import CaplineError

WHOLE = re.compile(r"(?:[0-9]_?){0,31}[0-9]", re.ASCII)
"""A whole number in a form. Its length is bounded, since parsing takes time quadratic in it."""

BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_HERE = Path()
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


class Fields:
    """The entries of one mapping.

    `where` is what messages call it, `base` the directory that relative paths start from. Every reader takes the key,
    and a default for when it is left out; without a default the key must be there.
    """

    def __init__(self, node: Node | None, where: str, faults: list[Fault], base: Path = _HERE, like: str = "") -> None:
        self.where = where
        self.base = base
        self.faults = faults
        self.at_line = 0 if node is None else node.line
        self._entries: dict[str, tuple[int, Node]] = {}
        self._taken: list[str] = []
        self.is_mapping = isinstance(node, Table)
        if isinstance(node, Table):
            for key, value in node.entries:
                if key.is_null:
                    self._note(key.line, "a key is empty or null; write a name, or quote it")
                else:
                    self._entries[key.text] = (key.line, value)
        else:
            misshapen(node, faults, where, f"a mapping, like {like or 'key: value'}")

    @classmethod
    def single(cls, key: str, value: Text, siblings: Fields, where: str) -> Fields:
        """The short form of a section: `value` stands for `key`, beside what is left of `siblings`."""
        fields = cls(Table(value.line, ()), where, siblings.faults, siblings.base)
        fields._entries = {key: (value.line, value), **siblings.rest()}
        return fields

    def rest(self) -> dict[str, tuple[int, Node]]:
        """The entries that nobody has asked for yet; they count as asked for from here on."""
        rest = {key: entry for key, entry in self._entries.items() if key not in self._taken}
        self._taken += rest
        return rest

    def only(self, allowed: Sequence[str]) -> None:
        """Note the keys that are not known, and leave them out from here on."""
        for key in [key for key in self._entries if key not in allowed]:
            self._note(self._entries.pop(key)[0], f"unknown key {shown(key)}; {_nearest(key, allowed)}")

    def lines(self) -> list[tuple[str, int, Node]]:
        """Every key, its line and what stands under it, as it is."""
        return [(key, line, node) for key, (line, node) in self._entries.items()]

    def keys(self) -> tuple[str, ...]:
        """The keys that were written, in their order."""
        return tuple(self._entries)

    def written(self) -> list[tuple[str, Node]]:
        """Every key and what stands under it, as it is, whether asked for or not."""
        return [(key, node) for key, (_, node) in self._entries.items()]

    def has(self, key: str) -> bool:
        """Whether the key was written."""
        return key in self._entries

    def node(self, key: str) -> Node | None:
        """What stands under the key, as it is; None where it was left out."""
        self._taken.append(key)
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def fault(self, key: str | None, problem: str) -> None:
        """Note a fault on the line of the key, or of the whole mapping."""
        line = self._entries[key][0] if key in self._entries else self.at_line
        self._note(line, f"{key}: {problem}" if key else problem)

    def text(self, key: str, default: str | None = None, like: str = "") -> str:
        """One text, not empty."""
        node = self.node(key)
        if node is None:
            return self._absent(key, default, like)
        if isinstance(node, Text) and not node.is_null and node.text:
            return node.text
        if not isinstance(node, Unusable):
            self.fault(key, f"expected a text{like and ', like ' + like}, found {_found(node)}")
        return default or ""

    def optional(self, key: str, like: str = "") -> str | None:
        """One text, not empty; None when the key is left out."""
        if key in self._entries:
            return self.text(key, like=like)
        self._taken.append(key)
        return None

    def one_of(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """One of these words."""
        word = self.text(key, default)
        if word not in allowed:
            self.fault(key, f"{shown(word)} is not known; use {' or '.join(allowed)}")
        return word

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false, in YAML's words."""
        word = self.text(key, "true" if default else "false").lower()
        if word not in BOOLEANS:
            self.fault(key, f"expected true or false, found {shown(word)}")
        return BOOLEANS.get(word, default)

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        """A whole number within these bounds."""
        word = self.text(key, str(default))
        if not WHOLE.fullmatch(word) or not least <= int(word) <= most:
            self.fault(key, f"expected a whole number from {least} to {most}, found {shown(word)}")
            return default
        return int(word)

    def seconds(self, key: str, default: float, most: float, *, zero: bool = False) -> float:
        """A number of seconds above 0, or also 0, at most `most`."""
        word = self.text(key, f"{default:g}")
        if not _DECIMAL.fullmatch(word) or not 0 < float(word) + zero <= most + zero:
            least = "from" if zero else "above"
            self.fault(key, f"expected a number of seconds {least} 0 and at most {most:g}, found {shown(word)}")
            return default
        return float(word)

    def path(self, key: str, like: str = "") -> Path:
        """A path; a relative one starts at the file's directory."""
        return self.base / self.text(key, like=like)

    def texts(self, key: str, default: tuple[str, ...] | None = None, like: str = "") -> tuple[str, ...]:
        """One text or a list of texts; at least one."""
        node = self.node(key)
        if node is None and default is not None:
            return default
        if not isinstance(node, Items):
            return (self.text(key, like=like),)
        words = tuple(item.text for item in node.items if isinstance(item, Text) and not item.is_null and item.text)
        if not words or len(words) != len(node.items):
            self.fault(key, f"expected a list of texts{like and ', like [' + like + ']'}")
        return words

    def mapping(self, key: str) -> dict[str, str]:
        """A mapping of texts; empty when left out."""
        node = self.node(key)
        if node is None or isinstance(node, Unusable):
            return {}
        if not isinstance(node, Table):
            self.fault(key, f"expected a mapping, like {{Name: value}}, found {_found(node)}")
            return {}
        texts: dict[str, str] = {}
        for name, value in node.entries:
            if isinstance(value, Text) and not value.is_null:
                texts[name.text] = value.text
            elif not isinstance(value, Unusable):
                self._note(name.line, f"{key}: {shown(name.text)}: expected a text, found {_found(value)}")
        return texts

    def section(self, key: str, like: str = "") -> Fields | None:
        """The mapping under the key, to be read in its turn; None where it was left out."""
        node = self.node(key)
        where = f"{self.where}{key}: "
        return None if node is None else Fields(node, where, self.faults, self.base, like)

    def checked(self, key: str, check: Callable[[str], object], default: str | None = None) -> str:
        """One text that the model's own check accepts; its error message becomes the fault."""
        word = self.text(key, default)
        try:
            if self.has(key) and word:
                check(word)
        except CaplineError as error:
            self.fault(key, str(error).removeprefix(f"{key} "))
        return word

    def close(self) -> None:
        """Note the keys that nobody has asked for."""
        for key in self._entries:
            if key not in self._taken:
                fix = _nearest(key, tuple(dict.fromkeys(self._taken)))
                self._note(self._entries[key][0], f"unknown key {shown(key)}; {fix}")

    def _absent(self, key: str, default: str | None, like: str) -> str:
        if default is None:
            # On the last line: an unknown key above it, which may be this one misspelt, is then shown first.
            line = max((line for line, _ in self._entries.values()), default=self.at_line)
            self._note(line, f"no '{key}:' here; add it{like and ', like ' + key + ': ' + like}")
        return default or ""

    def _note(self, line: int, problem: str) -> None:
        self.faults.append((line, f"{self.where}{problem}"))


def misshapen(node: Node | None, faults: list[Fault], where: str, wanted: str, fix: str = "") -> None:
    """Note, on the node's line, that something else was expected; nothing where the node itself was a fault."""
    if isinstance(node, Unusable):
        return  # reported when it was read
    if isinstance(node, Text) and ":" in node.text and node.plain and not fix:
        fix = "; is there a space after the colon?"
    faults.append((0 if node is None else node.line, f"{where}expected {wanted}, found {_found(node)}{fix}"))


def _nearest(key: str, keys: Sequence[str]) -> str:
    near = get_close_matches(key.lower().replace("-", "_").replace(" ", "_")[:64], keys, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return f"use {', '.join(keys[:-1])} or {keys[-1]}" if len(keys) > 1 else f"use {''.join(keys) or 'none'}"


def _found(node: Node | None) -> str:
    match node:
        case Text() if not node.is_null:
            return shown(node.text)
        case Items():
            return "a list"
        case Table():
            return "a mapping"
        case _:
            return "nothing"
