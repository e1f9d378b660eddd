"""The form of a policy file: from the tree of its text to policies, or to faults that each know their line.

The rule: nothing is guessed or skipped. The model (`capline.model`) decides what a limit, a name or an option may be:
each piece is tried alone, and the model's message is reported with the line of the piece. Only the shape of the file is
checked here.
"""

from typing import Any

from capline.forms.fields import BOOLEANS, WHOLE, Fields, misshapen
from capline.forms.tree import Fault, Items, Node, Table, Text, clipped, shown
from capline.model.errors import CaplineError
from capline.model.limit import Limit
from capline.model.policy import POLICY_KEYS, Policy, check_name
from capline.policy.shared_log import differing_option

DEFAULT_NAMESPACE = "capline"

_FILE_KEYS = ("namespace", "policies")
_FLAGS = ("count_denied", "reservations", "shadow")
_NUMBERS = ("wait_replicas", "population")
_STAND_IN = "_"
"""The name under which a piece is tried, so that a bad name does not hide other faults."""

_TRIED_AS = f"policy {_STAND_IN!r}"


def read_form(root: Node | None, faults: list[Fault]) -> tuple[str, tuple[Policy, ...]]:
    """The namespace and policies of a tree; adds to `faults`. If there are faults, do not use the result.

    Costs O(nodes): about 15 microseconds for each limit.
    """
    return _Form(faults).file(root)


class _Form:
    """One pass over the tree. Each method returns what it read, or None after noting a fault."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults

    def file(self, root: Node | None) -> tuple[str, tuple[Policy, ...]]:
        namespace = DEFAULT_NAMESPACE
        if root is None or (isinstance(root, Text) and root.is_null):
            if not self.faults:
                self._fault(0, "", "the file is empty; begin it with 'policies:'")
            return namespace, ()
        if not isinstance(root, Table):
            self._misshapen(root, "", "the file", "a mapping, like policies: {promo: {limits: [3/day]}}")
            return namespace, ()
        file = Fields(root, "", self.faults)
        file.only(_FILE_KEYS)
        named = file.node("namespace")
        if named is not None:
            namespace = self._name(named, "", "namespace") or namespace
        node = file.node("policies")
        if node is None:
            self._fault(root.line, "", "no 'policies:' in the file; add it, with a policy below it")
            return namespace, ()
        return namespace, self._policies(node)

    def _policies(self, node: Node) -> tuple[Policy, ...]:
        named = Fields(node, "policies: ", self.faults, like="promo: {limits: [3/day]}")
        if named.is_mapping and not named.keys():
            self._fault(node.line, "", "policies: there is none; define one, like promo: {limits: [3/day]}")
        policies: list[Policy] = []
        first: dict[str, Policy] = {}
        for name, line, value in named.lines():
            policy = self._policy(name, line, value)
            if policy is not None:
                self._check_shared_log(policy, first.setdefault(policy.log, policy), line)
                policies.append(policy)
        return tuple(policies)

    def _policy(self, name: str, line: int, node: Node) -> Policy | None:
        where = f"policy {shown(name)}"
        faults_before = len(self.faults)
        self._check_name(name, "policy", line, "")
        fields = Fields(node, f"{where}: ", self.faults, like="{limits: [3/day]}")
        if not fields.is_mapping:
            return None
        fields.only(POLICY_KEYS)
        parts: dict[str, Any] = {"limits": ()}
        for key, _, value in fields.lines():
            match key:
                case "limits":
                    limits = parts[key] = self._limits(value, where)
                    if limits:
                        self._try(value.line, where, limits=limits)
                case "by_segment" | "channels":
                    parts[key] = self._named_limits(value, where, key, "segment" if key == "by_segment" else "channel")
                case _:
                    parts[key] = self._option(value, where, key)
        if len(self.faults) > faults_before:
            return None
        # Each piece is good; a fault in their combination is reported on the policy's own line.
        return self._try(line, where, where, name, **parts)

    def _limits(self, node: Node, where: str) -> tuple[Limit, ...] | None:
        """A list of limits, each tried alone; None after a fault."""
        if not isinstance(node, Items):
            fix = f"; write [{node.text}]" if isinstance(node, Text) and _is_limit(node.text) else ""
            self._misshapen(node, where, "limits", "a list of limits, like [3/day, 10/week]", fix)
            return None
        limits: list[Limit] = []
        for item in node.items:
            if not isinstance(item, Text) or item.is_null:
                self._misshapen(item, where, "a limit", "text, like 3/day")
                continue
            try:
                limits.append(Limit.parse(item.text))
            except CaplineError as error:
                self._fault(item.line, where, str(error))
        return tuple(limits) if len(limits) == len(node.items) else None

    def _named_limits(self, node: Node, where: str, key: str, what: str) -> dict[str, tuple[Limit, ...]]:
        fields = Fields(node, f"{where}: {key}: ", self.faults, like=f"{what}_1: [3/day]")
        named: dict[str, tuple[Limit, ...]] = {}
        for name, line, value in fields.lines():
            self._check_name(name, what, line, where)
            within = f"{where}, {what} {shown(name)}"
            limits = self._limits(value, within)
            if limits is not None:
                option: dict[str, Any] = {key: {_STAND_IN: limits}}
                self._try(value.line, within, f"{_TRIED_AS}, {what} {_STAND_IN!r}", limits=["1/day"], **option)
                named[name] = limits
        return named

    def _option(self, node: Node, where: str, key: str) -> str | bool | int | None:
        if key == "log":
            return self._name(node, where, key)
        if not isinstance(node, Text) or node.is_null:
            self._misshapen(node, where, key, "one word")
            return None
        value: str | bool | int = node.text
        if key in _FLAGS:
            if not node.plain or value.lower() not in BOOLEANS:
                self._misshapen(node, where, key, "true or false")
                return None
            value = BOOLEANS[value.lower()]
        elif key in _NUMBERS:
            if not WHOLE.fullmatch(value):
                self._misshapen(node, where, key, "a whole number, like 2 or 10_000_000")
                return None
            value = int(value)
        else:
            value = clipped(value)
        option: dict[str, Any] = {key: value}
        if key == "granularity":
            # With this algorithm only the text itself can be wrong.
            option |= {"algorithm": "bucketed"}
        self._try(node.line, where, limits=["1/3660 days"], **option)
        return value

    def _name(self, node: Node, where: str, what: str) -> str | None:
        if not isinstance(node, Text) or node.is_null:
            self._misshapen(node, where, what, "a name, or leave it out")
            return None
        self._check_name(node.text, what, node.line, where)
        return node.text

    def _check_name(self, name: str, what: str, line: int, where: str) -> None:
        try:
            check_name(clipped(name), what)
        except CaplineError as error:
            self._fault(line, where, str(error))

    def _check_shared_log(self, policy: Policy, other: Policy, line: int) -> None:
        option = differing_option(policy, other)
        if option is not None:
            shared = f"shares log {policy.log!r} with policy {other.name!r} but not its {option}"
            self._fault(line, f"policy {policy.name!r}", f"{shared}; give both the same")

    def _try(
        self, line: int, where: str, tried_as: str = _TRIED_AS, name: str = _STAND_IN, **parts: Any
    ) -> Policy | None:
        """Make a policy of these parts; the model's objection is a fault at `where`."""
        try:
            return Policy(name, **parts)
        except CaplineError as error:
            said = str(error)
            if said.startswith(tried_as):
                self.faults.append((line, where + said.removeprefix(tried_as)))
            else:
                self._fault(line, where, said)
            return None

    def _misshapen(self, node: Node, where: str, what: str, wanted: str, fix: str = "") -> None:
        places = "".join(f"{place}: " for place in (where, what) if place)
        misshapen(node, self.faults, places, wanted, fix)

    def _fault(self, line: int, where: str, problem: str) -> None:
        self.faults.append((line, f"{where}: {problem}" if where else problem))


def _is_limit(text: str) -> bool:
    try:
        Limit.parse(text)
    except CaplineError:
        return False
    return True
