"""One file of envoyproxy/ratelimit's YAML, added to a configuration; every fault with its line.

    domain: edge
    descriptors:
      - key: path
        value: /api/*                     optional; * stands for any text
        rate_limit: {unit: minute, requests_per_unit: 20, name: api, replaces: [{name: all}]}     or {unlimited: true}
        shadow_mode: true                 optional, as are quota_mode, share_threshold, detailed_metric, value_to_metric
        metadata: {name: service_1}       optional; told to Envoy while there is room
        descriptors: [...]                optional

The keys and what is refused are upstream's. YAML's anchors, aliases and merge keys are taken; tags are refused, as in
capline's own files.
"""

import re
from pathlib import Path
from typing import Any, TypeVar

from capline.forms.fields import Fields
from capline.forms.tree import Fault, Items, Node, Table, Text, Unusable, read_tree, shown
from capline.service.envoy.rules import UNITS_US, Configuration, Descriptor, Rule

_Kind = TypeVar("_Kind", Text, Items, Table)
_LARGEST_QUOTA = (1 << 32) - 1
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NUMBER = re.compile(r"[-+]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][-+]?[0-9]{1,2})?", re.ASCII)


def add_file(text: str, into: Configuration, *, merge_domains: bool) -> list[Fault]:
    """Add the domain of a file; the faults, and where there are any the configuration is not to be used."""
    root, faults = read_tree(text, aliases=True)
    if faults:
        return faults
    fields = Fields(root, "", faults, Path(), "domain: edge")
    domain = _word(fields, "domain")
    below = _items(fields, "descriptors")
    fields.close()
    if faults:
        return faults
    if not domain:
        fields.fault("domain" if fields.has("domain") else None, "config file cannot have empty domain")
    elif domain in into.domains and not merge_domains:
        fields.fault("domain", f"duplicate domain {shown(domain)}; one file for each, or let domains be merged")
    else:
        _Reader(into, faults).descriptors(below, into.domains.setdefault(domain, Descriptor()), domain)
    return faults


class _Reader:
    def __init__(self, into: Configuration, faults: list[Fault]) -> None:
        self._into, self._faults = into, faults

    def descriptors(self, items: tuple[Node, ...], above: Descriptor, path: str) -> None:
        """Put these below `above`, which is at `path`."""
        for item in items:
            if not isinstance(item, Unusable):
                self._descriptor(Fields(item, f"{path}: ", self._faults, Path(), "key: path"), above, path)

    def _descriptor(self, fields: Fields, above: Descriptor, path: str) -> None:
        key, value = _word(fields, "key"), _word(fields, "value")
        composite = f"{path}.{key}_{value}" if value else f"{path}.{key}"
        share = fields.flag("share_threshold", default=False)
        options: dict[str, Any] = {
            "shadow": fields.flag("shadow_mode", default=False),
            "quota_mode": fields.flag("quota_mode", default=False),
            "detailed": fields.flag("detailed_metric", default=False),
        }
        metadata = _node(fields, "metadata", Table, "a mapping, like {name: service_1}")
        options["metadata"] = metadata and _value(metadata)
        rule = self._rule(fields.section("rate_limit", "{unit: minute, requests_per_unit: 20}"), options)
        descriptor = Descriptor(
            rule, share_threshold=share, value_to_metric=fields.flag("value_to_metric", default=False)
        )
        below = _items(fields, "descriptors")
        fields.close()
        if not key:
            fields.fault("key" if fields.has("key") else None, "descriptor has empty key")
        elif above.has(key, value):
            fields.fault("key", f"duplicate descriptor composite key {shown(composite)}")
        elif share and "*" not in value:
            fields.fault("share_threshold", f"it goes with a value that has a *, not with {shown(value)}")
        else:
            above.add(key, value, descriptor)
        self.descriptors(below, descriptor, composite)

    def _rule(self, fields: Fields | None, options: dict[str, Any]) -> Rule | None:
        if fields is None or not fields.keys():
            return None
        unlimited = fields.flag("unlimited", default=False)
        unit = _word(fields, "unit")
        quota = fields.whole("requests_per_unit", 0, 0, _LARGEST_QUOTA)
        name = _word(fields, "name")
        replaces = [self._replaced(item, name) for item in _items(fields, "replaces")]
        fields.close()
        has_unit = unit.lower() in UNITS_US
        if unlimited and has_unit:
            fields.fault("unit", "should not specify rate limit unit when unlimited")
        elif not unlimited and not has_unit:
            listed = ", ".join(UNITS_US)
            fields.fault("unit" if fields.has("unit") else None, f"invalid rate limit unit {shown(unit)}; use {listed}")
        rule = Rule(quota, "" if unlimited else unit.lower(), unlimited, name, tuple(replaces), **options)
        self._into.rules.append(rule)
        return rule

    def _replaced(self, item: Node, rule_name: str) -> str:
        fields = Fields(item, "replaces: ", self._faults, Path(), "name: all")
        name = _word(fields, "name")
        fields.close()
        if not name:
            fields.fault(None, "should not have an empty replaces entry")
        elif name == rule_name:
            fields.fault("name", f"replaces should not contain name of same descriptor, {shown(rule_name)}")
        return name


def _value(node: Node) -> object:
    """What a node stands for in JSON: texts, numbers, true, false, null, lists and mappings."""
    if isinstance(node, Items):
        return [_value(item) for item in node.items]
    if isinstance(node, Table):
        return {key.text: _value(below) for key, below in node.entries}
    if not isinstance(node, Text) or node.is_null:
        return None
    if node.plain and node.text in _BOOLEANS:
        return _BOOLEANS[node.text]
    return float(node.text) if node.plain and _NUMBER.fullmatch(node.text) else node.text


def _word(fields: Fields, key: str) -> str:
    """A text; empty where it was left out."""
    node = _node(fields, key, Text, "a text")
    return "" if node is None or node.is_null else node.text


def _items(fields: Fields, key: str) -> tuple[Node, ...]:
    """A list; empty where it was left out."""
    node = _node(fields, key, Items, "a list")
    return () if node is None else node.items


def _node(fields: Fields, key: str, kind: type[_Kind], what: str) -> _Kind | None:
    """The value of a key where it is of this kind; a fault for any other but null."""
    node = fields.node(key)
    if isinstance(node, kind):
        return node
    if node is not None and not isinstance(node, Unusable) and not (isinstance(node, Text) and node.is_null):
        fields.fault(key, f"expected {what}")
    return None
