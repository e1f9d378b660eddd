"""Templates with placeholders, `user-{id}@example.org`, and values from the environment, `${API_KEY}`.

The rule: a placeholder is a plain name. Python's own format strings reach into attributes and items; these do not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from string import Formatter

from capline.campaign.senders.protocol import Message
from capline.forms.fields import Fields
from capline.model.errors import CampaignError

_PLACEHOLDER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_OWN = ("id", "key", "segment")


class Template:
    """A text whose placeholders are `{id}`, `{key}`, `{segment}` or a column's name; `{{` and `}}` stand for braces.

    Raises `CampaignError` for a text that is not one.
    """

    __slots__ = ("_pieces", "names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            pieces = list(Formatter().parse(text))
        except ValueError as error:
            raise CampaignError(f"{text!r}: {error}; write placeholders like {{id}}, and {{{{ for a brace") from None
        for _, name, form, conversion in pieces:
            if name is not None and (form or conversion or not _PLACEHOLDER.fullmatch(name)):
                raise CampaignError(f"{text!r}: a placeholder is a plain name, like {{id}}")
        self._pieces = tuple((literal, name) for literal, name, _, _ in pieces)
        self.names = tuple(dict.fromkeys(name for _, name in self._pieces if name is not None))

    def check(self, columns: Collection[str]) -> None:
        """`CampaignError` for a placeholder that nothing fills."""
        for name in self.names:
            if name not in _OWN and name not in columns:
                there = ", ".join((*_OWN, *columns))
                raise CampaignError(
                    f"{self.text!r}: nothing fills {{{name}}}; there are: {there}; more by audience columns"
                )

    def fill(self, message: Message, escape: Callable[[str], str] = str) -> str:
        """The text for this message; each value is put in as `escape` returns it."""
        own = {"id": str(message.id), "key": message.key, "segment": message.segment or ""}
        values = {**message.fields, **own}
        return "".join(
            literal + ("" if name is None else escape(values.get(name, ""))) for literal, name in self._pieces
        )


def read_template(options: Fields, key: str, like: str = "") -> Template:
    """The template under a key of a sender's options; what is wrong with it is noted as a fault."""
    try:
        return Template(options.text(key, like=like))
    except CampaignError as error:
        options.fault(key, str(error))
        return Template("")


def filled(options: Fields, key: str, text: str, where: str = "") -> str:
    """The text with values from the environment; what is missing is noted as a fault, and the text is empty."""
    try:
        return from_environment(text)
    except CampaignError as error:
        options.fault(key, f"{where}{error}")
        return ""


def variables(text: str) -> list[str]:
    """The names of the environment variables that a text asks for."""
    return _VARIABLE.findall(text)


def from_environment(text: str) -> str:
    """The text with each `${NAME}` replaced by that variable, so that no file holds secrets.

    Raises `CampaignError` where it is not set.
    """

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise CampaignError(f"the environment variable {match[1]} is not set")
        return found

    return _VARIABLE.sub(value, text)
