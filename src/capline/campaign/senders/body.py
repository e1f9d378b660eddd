"""A webhook's `body`: what a provider's own API asks for, as a tree whose texts are templates.

    body: {message: {token: '{token}', notification: {title: 'Sale', body: 'Dear {name}'}}}    JSON
    body: {To: '{phone}', Body: 'Dear {name}'}  with  format: form                             a form, urlencoded

The rule: values are put into a tree, never into its text. So a quote, a line break or an `&` in a name is that
character for the receiver. In JSON what is written without quotes and reads as a number, true, false or null is that.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Raw
from msgspec.json import encode

from capline.campaign.senders.protocol import Message
from capline.campaign.senders.template import Template
from capline.forms.tree import Items, Node, Table, Text, Unusable
from capline.model.errors import CampaignError

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
_PLAIN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false", re.ASCII)

_Tree = Template | Raw | list["_Tree"] | dict[str, "_Tree"]


class Body:
    """See the module's text; `CampaignError` for a tree that cannot be a body."""

    def __init__(self, node: Node, *, as_form: bool) -> None:
        self.content_type = FORM if as_form else JSON
        self._templates: list[Template] = []
        self._tree = self._read(node)
        if not isinstance(self._tree, dict | list):
            raise CampaignError("expected a mapping, like {to: '{phone}'}")
        if as_form and not (isinstance(self._tree, dict) and all(map(_fits_a_form, self._tree.values()))):
            raise CampaignError("a form is a mapping of texts, or of lists of texts")

    def check(self, columns: Sequence[str]) -> None:
        """`CampaignError` for a placeholder that nothing fills."""
        for template in self._templates:
            template.check(columns)

    def fill(self, message: Message) -> bytes:
        """The body of a message's request."""
        filled: Any = _filled(self._tree, message.texts)
        return encode(filled) if self.content_type == JSON else urlencode(filled, doseq=True).encode()

    def _read(self, node: Node) -> _Tree:
        match node:
            case Text(text=text, plain=plain):
                if node.is_null or (plain and self.content_type == JSON and _PLAIN.fullmatch(text)):
                    return Raw(b"null" if node.is_null else text.encode())
                self._templates.append(Template(text))
                return self._templates[-1]
            case Items(items=items):
                return [self._read(item) for item in items]
            case Table(entries=entries):
                return {key.text: self._read(value) for key, value in entries}
            case Unusable():
                return Raw(b"null")  # reported when it was read


def _fits_a_form(tree: _Tree) -> bool:
    return all(isinstance(item, Template) for item in (tree if isinstance(tree, list) else [tree]))


def _filled(tree: _Tree, texts: Mapping[str, str]) -> object:
    match tree:
        case Template():
            return tree.fill(texts)
        case Raw():
            return tree
        case list():
            return [_filled(item, texts) for item in tree]
        case dict():
            return {key: _filled(item, texts) for key, item in tree.items()}
