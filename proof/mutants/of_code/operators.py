"""The standard operators of mutation testing, made at every place of a file of Python or Lua where they apply."""

from __future__ import annotations

import ast
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Mutation", "mutations"]

COMPARE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "~=": "=="}
ARITHMETIC = {"+": "-", "-": "+", "*": "//", "//": "*", "/": "*", "%": "*", "&": "|", "|": "&", "<<": ">>", ">>": "<<"}
SWAPS = {
    "compare": COMPARE | {"is": "is not", "is not": "is", "in": "not in", "not in": "in"},
    "arithmetic": ARITHMETIC,
    "boolean": {"and": "or", "or": "and", "not": ""},
    "constant": {"True": "False", "False": "True", "true": "false", "false": "true"},
}
LUA = COMPARE | {"==": "~="}
SKIPPED = {"returns", "annotation", "decorator_list"}
LUA_TOKEN = re.compile(
    r"--[^\n]*|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|\.\.+|[<>=~]=|[-+*/%<>=(,{\[]|\d[\w.]*|[A-Za-z_]\w*|\S"
)
LUA_LINES = (
    ("branch", re.compile(r"^ *(?:else)?if (.+) then\b", re.MULTILINE), "false"),
    ("return", re.compile(r"^ *return (.+)$", re.MULTILINE), "nil"),
    ("delete", re.compile(r"^ +([\w.:]+\(.*\))$", re.MULTILINE), ""),
    ("delete", re.compile(r"^ +(\w+(?:\.\w+|\[[^\]]+\])+ = .*[^,({])$", re.MULTILINE), ""),
)


class Mutation(NamedTuple):
    """One mistake: `wrong` in place of what stands from `start` to `end`, in bytes."""

    file: str
    function: str
    operator: str
    """With what it changes, as `compare <= <`."""
    number: int
    """Which of those that are alike in this function, from 1."""
    line: int
    start: int
    end: int
    wrong: str

    @property
    def key(self) -> str:
        """By what it is named: as good after a rewording of what is around it."""
        return f"{self.file} {self.function} {self.operator} {self.number}"

    def applied(self, source: bytes) -> bytes:
        """The file with the mistake."""
        return source[: self.start] + self.wrong.encode() + source[self.end :]


def mutations(file: str, source: bytes) -> list[Mutation]:
    """Each mistake that the operators make in this file, in order."""
    made: list[Mutation] = []
    counts: Counter[tuple[str, str]] = Counter()
    places = _Python(source).places() if file.endswith(".py") else _lua(source)
    for function, operator, start, end, wrong in sorted(places, key=lambda place: place[2:]):
        counts[function, operator] += 1
        line = source.count(b"\n", 0, start) + 1
        made.append(Mutation(file, function, operator, counts[function, operator], line, start, end, wrong))
    return made


class _Python:
    """The places in a file of Python, as (function, operator, start, end, wrong)."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts: list[int] = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def places(self) -> Iterator[tuple[str, str, int, int, str]]:
        yield from self._walk(ast.parse(self._source), "module")

    def _walk(self, node: ast.AST, function: str) -> Iterator[tuple[str, str, int, int, str]]:
        if isinstance(node, (ast.JoinedStr, ast.Assert)) or (
            isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        ):
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            function = node.name if function == "module" else f"{function}.{node.name}"
        for operator, start, end, wrong in self._at(node):
            yield function, operator, start, end, wrong
        skipped = {id(child) for field in SKIPPED for child in _listed(getattr(node, field, None))}
        for child in ast.iter_child_nodes(node):
            if id(child) not in skipped:
                yield from self._walk(child, function)

    def _at(self, node: ast.AST) -> Iterator[tuple[str, int, int, str]]:  # noqa: C901, PLR0912 - a case for each kind
        match node:
            case ast.Compare(left=left, comparators=rights):
                for before, after in pairwise([left, *rights]):
                    yield self._swap("compare", r"(is\s+not|not\s+in|is|in|[<>=!]=|[<>])", before, after)
            case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
                yield self._swap("arithmetic", r"(//|<<|>>|[-+*/%&|])", left, right)
            case ast.BoolOp(values=values):
                for before, after in pairwise(values):
                    yield self._swap("boolean", r"\b(and|or)\b", before, after)
            case ast.UnaryOp(op=ast.Not() | ast.USub() as op):
                operator = "boolean not" if isinstance(op, ast.Not) else "arithmetic minus"
                begin = self._span(node)[0]
                yield operator, begin, begin + (3 if isinstance(op, ast.Not) else 1), ""
            case ast.Constant(value=bool() as value):
                yield f"constant {value}", *self._span(node), str(not value)
            case ast.Constant(value=int() as value):
                yield f"constant {value}", *self._span(node), str(value + 1)
            case ast.If(test=test):
                yield "branch", *self._span(test), "False"
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "return", *self._span(value), "None"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Raise() | ast.Delete() | ast.Continue():
                yield "delete", *self._span(node), "pass"
            case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()):
                yield "delete", *self._span(node), "pass"
            case _:
                pass

    def _swap(self, operator: str, pattern: str, left: ast.expr, right: ast.expr) -> tuple[str, int, int, str]:
        begin, end = self._span(left)[1], self._span(right)[0]
        between = re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), self._source[begin:end].decode("latin-1"))
        found = next(re.finditer(pattern, between))
        wrong = SWAPS[operator].get(" ".join(found[1].split()), found[1])
        return f"{operator} {found[1]}", begin + found.start(1), begin + found.end(1), wrong

    def _span(self, node: Any) -> tuple[int, int]:
        first: int = self._starts[int(node.lineno) - 1] + int(node.col_offset)
        last: int = self._starts[int(node.end_lineno) - 1] + int(node.end_col_offset)
        return first, last


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _lua(source: bytes) -> Iterator[tuple[str, str, int, int, str]]:
    """The places in a file of Lua, by its tokens and its lines: it has no parser here."""
    text = source.decode("latin-1")
    heads = [
        (0, "module"),
        *((m.start(), m[1]) for m in re.finditer(r"^(?:local )?function (\w+)", text, re.MULTILINE)),
    ]

    def function(at: int) -> str:
        return max(head for head in heads if head[0] <= at)[1]

    before = "("
    for token in LUA_TOKEN.finditer(text):
        word, at = token[0], token.start()
        is_value = bool(re.match(r"[\w)\]'\"]", before)) and before not in ("and", "or", "not", "return", "then")
        if word.startswith("--"):
            continue
        for operator, swaps in {**SWAPS, "compare": LUA}.items():
            wrong = {"*": "+", "/": "*"}.get(word, swaps.get(word, "")) if operator == "arithmetic" else swaps.get(word)
            if word in swaps and wrong is not None and word not in ("in", "is") and (is_value or word not in "-+"):
                yield function(at), f"{operator} {word}", at, token.end(), wrong
        if word.isdigit():
            yield function(at), f"constant {word}", at, token.end(), str(int(word) + 1)
        before = word
    for operator, pattern, wrong in LUA_LINES:
        for found in pattern.finditer(text):
            yield function(found.start()), operator, found.start(1), found.end(1), wrong
