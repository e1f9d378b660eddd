"""Templates with placeholders, `user-{id}@example.org`, and values from the environment, `${API_KEY}`.

The rule: a placeholder is a plain name, checked once. Python's format strings, which fill it, reach into attributes and
items too; these never do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from string import Formatter

from capline.forms.fields import Fields
from capline.model.errors import CampaignError

_PLACEHOLDER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_OWN = ("id", "key", "segment")


class Template:
    """A text whose placeholders are `{id}`, `{key}`, `{segment}` or a column's name; `{{` and `}}` stand for braces.

    Raises `CampaignError` for a text that is not one.
    """

    __slots__ = ("names", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            places = [place for _, *place in Formatter().parse(text)]
        except ValueError as error:
            raise CampaignError(f"{text!r}: {error}; write placeholders like {{id}}, and {{{{ for a brace") from None
        for name, form, conversion in places:
            if name is not None and (form or conversion or not _PLACEHOLDER.fullmatch(name)):
                raise CampaignError(f"{text!r}: a placeholder is a plain name, like {{id}}")
        self.names = tuple(dict.fromkeys(name for name, _, _ in places if name is not None))

    def check(self, columns: Collection[str]) -> None:
        """`CampaignError` for a placeholder that nothing fills."""
        for name in self.names:
            if name not in _OWN and name not in columns:
                there = ", ".join((*_OWN, *columns))
                raise CampaignError(
                    f"{self.text!r}: nothing fills {{{name}}}; there are: {there}; more by audience columns"
                )

    def fill(self, texts: Mapping[str, str], escape: Callable[[str], str] = str) -> str:
        """The text for a message's `texts`; each value is put in as `escape` returns it."""
        return self.text.format_map({name: escape(texts.get(name, "")) for name in self.names})


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
