"""What every command shares: the two consoles, JSON answers, and the option for them."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console

__all__ = ["BAD_INPUT", "FAILED", "INTERRUPTED", "JsonOption", "answer_json", "note", "out"]

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

JsonOption = Annotated[
    bool, typer.Option("--json", help="Answer in JSON, for machines; nothing else on standard output.")
]

out = Console(highlight=False)
"""Answers, for people: standard output."""

note = Console(stderr=True, highlight=False)
"""Progress, warnings and errors: standard error, so that a pipe carries answers only."""


def answer_json(value: object) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
