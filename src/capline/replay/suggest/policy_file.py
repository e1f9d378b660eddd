"""The suggested limits as a policy file, ready to use, with the forecast in its comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from capline.model.errors import InvalidValueError
from capline.policy.file import loads
from capline.replay.page import share
from capline.segment import files

if TYPE_CHECKING:
    from capline.replay.suggest.suggestion import Price, Suggestion

_FIRST_LINE = "# Suggested by capline suggest"
NAME = "suggested"
"""The policy's name."""


def check_output(path: Path) -> None:
    """Raise where a policy file would be overwritten that this has not written, or there is no such folder."""
    if not path.parent.is_dir():
        raise InvalidValueError(f"{path}: there is no folder {path.parent}; make it, or name another")
    if path.exists() and not (path.is_file() and path.read_bytes().startswith(_FIRST_LINE.encode())):
        raise InvalidValueError(f"{path}: it is there already, and not by capline suggest; name another file")


def policy_text(source: str, bound: str, whole: Suggestion, by_segment: Mapping[str | None, Suggestion]) -> str:
    """The text of the file; `source` and `bound` say in a few words where the events are from, and what was asked."""
    lines = [
        f"{_FIRST_LINE} from {source if source.isprintable() else ascii(source)}.",
        f"# {bound}. The figures are of these {whole.events:,} events by {whole.subjects:,} subjects;",
        "# a refused event counts for nothing, and nobody tries again.",
        "policies:",
        f"  {NAME}:",
    ]
    if not by_segment or None in by_segment:
        lines += [f"    # {_forecast(by_segment.get(None, whole))}", _limits("    limits", by_segment.get(None, whole))]
    named = {segment: found for segment, found in by_segment.items() if segment is not None}
    if named:
        lines.append("    by_segment:  # the events of each alone, though one who moves between them keeps one log")
        for segment, found in named.items():
            lines += [f"      # {_forecast(found)}", _limits(f"      {json.dumps(segment)}", found)]
    text = "\n".join([*lines, ""])
    loads(text, "the suggested policies")  # what is written can be read
    return text


def write_policy(text: str, path: Path) -> None:
    """Write the file, whole or not at all."""
    files.write(path, text.encode())


def forecast(price: Price, of: Suggestion) -> str:
    """What limits would have done, in one line."""
    events, subjects = share(price.events, of.events), share(price.subjects, of.subjects)
    return (
        f"{price.events:,} of {of.events:,} events ({events}) refused, "
        f"{price.subjects:,} of {of.subjects:,} subjects ({subjects}) feel it"
    )


def _forecast(of: Suggestion) -> str:
    return forecast(of.together, of)


def _limits(key: str, of: Suggestion) -> str:
    return f"{key}: [{', '.join(map(str, of.together.limits))}]"
