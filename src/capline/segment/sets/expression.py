"""Expressions over segment names: `active - churned`, `(active | new) & vip`.

    a | b   in either        a & b   in both        a - b   in a, not in b        ( )   first

They bind as Python's sets do: `-` before `&` before `|`, and from the left, so `a | b & c - d` is `a | (b & (c - d))`.

A name may itself hold `-` and `.`, as in `at-risk`. The rule: a `-` that touches a name on its left belongs to the
name, so the operator is written with a space before it: `active - churned`. `active-churned` is one name.

The text is read once into steps in postfix order, which a stack evaluates: no recursion, so no text can exhaust it.
Text is bounded (4,096 characters), and so is nesting (64).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from capline.model.errors import InvalidTypeError, SegmentError, UnknownNameError

if TYPE_CHECKING:
    from capline.segment.sets.idset import IdSet

LONGEST_TEXT = 4096
DEEPEST = 64

_BINDS = {"|": 1, "&": 2, "-": 3}
_TOKEN = re.compile(r"(?P<space>\s+)|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)|(?P<sign>[-|&()])", re.ASCII)
_OPERAND = "a segment name or '('"
_OPERATOR = "'|', '&', '-' or ')'"


class _Step(msgspec.Struct, frozen=True):
    """One step in postfix order: a name to push, or an operator over the two sets on top; columns count from 1."""

    word: str
    column: int
    is_name: bool = False


class Expression(msgspec.Struct, frozen=True):
    """A parsed expression: its text, and the names it uses in order of first use. Made by `parse_expression`."""

    text: str
    names: tuple[str, ...]
    steps: tuple[_Step, ...]

    def evaluate(self, sets: Mapping[str, IdSet]) -> IdSet:
        """Return the ids that the expression names; `UnknownNameError` with the column for a name that `sets` lacks.

        Cost: one pass over the sets for each operator.
        """
        for step in self.steps:
            if step.is_name and step.word not in sets:
                raise UnknownNameError(_unknown(self.text, step, sets))
        stack: list[IdSet] = []
        for step in self.steps:
            if step.is_name:
                stack.append(sets[step.word])
                continue
            right, left = stack.pop(), stack.pop()
            stack.append(left | right if step.word == "|" else left & right if step.word == "&" else left - right)
        return stack[0]


def parse_expression(text: str) -> Expression:
    """Read an expression; `SegmentError` with the column of the fault. Unknown names are seen on evaluation."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidTypeError(f"an expression is text like 'active - churned', not {text!r}")
    if len(text) > LONGEST_TEXT:
        raise SegmentError(f"an expression has at most {LONGEST_TEXT} characters, not {len(text)}")
    tokens = _tokens(text)
    _check_brackets(text, tokens)
    steps: list[_Step] = []
    waiting: list[_Step] = []  # operators and open brackets whose right side is not complete
    after_operand = False
    for token in tokens:
        starts_operand = token.is_name or token.word == "("
        if starts_operand == after_operand:
            raise _fault(
                text, token.column, f"expected {_OPERATOR if after_operand else _OPERAND}, found {token.word!r}"
            )
        if token.is_name:
            steps.append(token)
            after_operand = True
        elif token.word == "(":
            waiting.append(token)
        elif token.word == ")":
            _release(waiting, steps, 0)
            waiting.pop()
        else:
            _release(waiting, steps, _BINDS[token.word])
            waiting.append(token)
            after_operand = False
    if not after_operand:
        raise _fault(text, len(text) + 1, f"expected {_OPERAND}, found the end")
    _release(waiting, steps, 0)
    return Expression(text, tuple(dict.fromkeys(step.word for step in steps if step.is_name)), tuple(steps))


def _tokens(text: str) -> list[_Step]:
    tokens: list[_Step] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _fault(text, position + 1, f"{text[position]!r} is neither a name nor one of | & - ( )")
        if match.lastgroup != "space":
            tokens.append(_Step(match[0], position + 1, match.lastgroup == "name"))
        position = match.end()
    return tokens


def _check_brackets(text: str, tokens: list[_Step]) -> None:
    opened: list[_Step] = []
    for token in tokens:
        if token.word == "(":
            opened.append(token)
            if len(opened) > DEEPEST:
                raise _fault(text, token.column, f"more than {DEEPEST} open brackets")
        elif token.word == ")":
            if not opened:
                raise _fault(text, token.column, "')' closes nothing")
            opened.pop()
    if opened:
        raise _fault(text, opened[-1].column, "'(' is not closed")


def _release(waiting: list[_Step], steps: list[_Step], binds: int) -> None:
    """Move the operators that bind at least as tightly to the steps, back to the last open bracket."""
    while waiting and waiting[-1].word != "(" and _BINDS[waiting[-1].word] >= binds:
        steps.append(waiting.pop())


def _fault(text: str, column: int, why: str) -> SegmentError:
    shown = text if len(text) <= 80 else f"{text[:80]}…"  # noqa: PLR2004 - what fits in one line of a message
    return SegmentError(f"expression {shown!r}, column {column}: {why}")


def _unknown(text: str, step: _Step, sets: Mapping[str, IdSet]) -> str:
    message = f"{_fault(text, step.column, f'no segment {step.word!r}')}; there are: {', '.join(sets)}"
    for dash in re.finditer("-", step.word):
        left, right = step.word[: dash.start()], step.word[dash.end() :]
        if left in sets and (right in sets or not right):
            return f"{message} (to subtract, write a space before the '-': '{left} - {right or '…'}')"
    return message
