"""The campaigns of a service: what the command line asks of a campaign store, asked over HTTP.

Each answer is the value that the store itself would have given, so that it is printed by the same code.
"""

# ruff: noqa: PLC0415 - imports inside functions: `--help` stays instant

from __future__ import annotations

from base64 import b64encode
from hashlib import file_digest, sha256
from importlib import import_module
from os import fstat
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlencode

import msgspec

from capline.forms.tree import Items, Table, Text, in_one_line, read_tree
from capline.limiter.over_http.clients import BlockingClient
from capline.limiter.over_http.exchange import Exchange, with_token
from capline.limiter.steps import run
from capline.model.errors import CampaignError, InvalidValueError
from capline.segment.files import opened, os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from capline.campaign.conflicts.find import Conflicts
    from capline.campaign.ledger import Settings
    from capline.campaign.outcomes import Outcome
    from capline.campaign.plan import Plan
    from capline.campaign.queue.enqueue import Enqueued
    from capline.campaign.queue.status import Listed, QueueReport
    from capline.campaign.store.protocol import Change
    from capline.forms.tree import Node
    from capline.service.verbs.audiences import Verified
    from capline.service.verbs.campaigns import CampaignForm

T = TypeVar("T")

_PAGE = 10_000
_DEADLINE = "deadline=300s"
"""A report reads all outcomes."""


def exchange_of(url: str, token_file: Path | None) -> Exchange:
    """The way to the service at this URL; the token is the one line of a file, or in the URL."""
    token = None
    if token_file is not None:
        try:
            token = token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"{token_file}: the token cannot be read: {error}") from None
    return Exchange(with_token(url, token), BlockingClient)


class ServedCampaigns:
    """The campaigns behind a service's URL; the token is the one line of a file, or in the URL."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        self._exchange = exchange_of(url if "?" in url else f"{url}?{_DEADLINE}", token_file)

    def plan(self, form: CampaignForm) -> Plan:
        """What this campaign file would send and refuse now; its paths are the service's."""
        from capline.campaign.plan import Plan

        return _as(Plan, self._ask("POST", "/v1/campaigns/plan", form))

    def create(self, form: CampaignForm) -> Enqueued:
        """Begin the campaign of this file; the same file again finds its own run."""
        from capline.campaign.queue.enqueue import Enqueued

        key = sha256(msgspec.json.encode(form)).hexdigest()
        return _as(Enqueued, self._ask("POST", "/v1/campaigns", form, key=key))

    def upload(self, file: Path, column: str | None, ids: str | None) -> Verified:
        """Upload an audience under the file's name, in place of the one there is."""
        from capline.service.verbs.audiences import Verified

        with os_errors("read it", file), opened(file, file) as source:
            digest = b64encode(file_digest(cast("Any", source), "sha256").digest()).decode()
            source.seek(0)
            headers = {"Content-Digest": f"sha-256=:{digest}:", "Content-Length": str(fstat(source.fileno()).st_size)}
            query = urlencode({key: word for key, word in (("column", column), ("ids", ids)) if word})
            path = f"/v1/audiences/{quote(file.name, safe='')}?{query}".rstrip("?")
            return _as(Verified, run(self._exchange.send("PUT", path, source, headers)))

    def retry_failed(self, name: str) -> Enqueued:
        """Decide and send again to those whose delivery failed."""
        from capline.campaign.queue.enqueue import Enqueued

        return _as(Enqueued, self._ask("POST", f"{_path(name)}/retry-failed"))

    def report(self, name: str) -> QueueReport:
        """The report of a campaign and the progress of its queue."""
        from capline.campaign.queue.status import QueueReport

        return _as(QueueReport, self._ask("GET", _path(name)))

    def change(self, name: str, change: Change) -> None:
        """Pause, resume or cancel a campaign."""
        self._ask("POST", f"{_path(name)}/{change}")

    def set(self, name: str, settings: Settings) -> None:
        """Set something of a campaign."""
        self._ask("PATCH", _path(name), settings)

    def outcome(self, name: str, recipient: str) -> Outcome:
        """What became of one recipient."""
        from capline.campaign.outcomes import Outcome

        return _as(Outcome, self._ask("GET", f"{_path(name)}/outcomes/{quote(recipient, safe='')}"))

    def tables(self, name: str) -> Callable[[Callable[[str], Any], Callable[[str], str]], Iterator[Any]]:
        """The outcomes as tables, a page each; see `campaign.outcomes.Tables`."""
        return lambda schema_of, cell: (
            _table(page, schema_of(page["ids"]), cell) for page in self._pages(f"{_path(name)}/outcomes")
        )

    def every(self) -> Iterator[Listed]:
        """All campaigns, by name."""
        from capline.campaign.queue.status import Listed

        for page in self._pages("/v1/campaigns"):
            yield from _as(list[Listed], page["campaigns"])

    def conflicts(self, *, history: bool) -> Conflicts:
        """What the campaigns that wait do to each other."""
        from capline.campaign.conflicts.find import Conflicts

        path = f"/v1/campaign-conflicts?history={str(history).lower()}"
        return _as(Conflicts, self._ask("GET", path))

    def _pages(self, path: str) -> Iterator[Any]:
        following: str | None = ""
        while following is not None:
            after = f"&after={quote(following)}" if following else ""
            page = self._ask("GET", f"{path}?limit={_PAGE}{after}")
            yield page
            following = page["next"]

    def _ask(self, method: str, path: str, form: object = None, *, key: str = "") -> Any:
        return run(self._exchange.ask(method, path, form, again=method == "GET" or bool(key), key=key))


def form_of(file: Path, only: Sequence[str] = ()) -> CampaignForm:
    """A campaign file, or a test send of it, as a service takes it; `CampaignError` for what no campaign file has."""
    from capline.campaign.file import text_of
    from capline.service.verbs.campaigns import CampaignForm

    root, faults = read_tree(text_of(file, only))
    if faults:
        raise CampaignError(in_one_line(str(file), faults))
    try:
        return msgspec.convert(_value_of(root), CampaignForm, strict=False)  # in YAML each value is text
    except msgspec.ValidationError as error:
        raise CampaignError(f"{file}: {error}") from None


def _value_of(node: Node | None) -> Any:
    match node:
        case Table():
            return {key.text: _value_of(value) for key, value in node.entries}
        case Items():
            return [_value_of(item) for item in node.items]
        case Text() if not node.is_null:
            return node.text
        case _:
            return ""


def _path(name: str) -> str:
    return f"/v1/campaigns/{quote(name, safe='')}"


def _as(kind: type[T], answer: Any) -> T:
    try:
        return msgspec.convert(answer, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise CampaignError(f"the service's answer is not one of this version: {error}") from None


def _table(page: Any, schema: Any, cell: Callable[[str], str]) -> Any:
    """A page of outcomes as a table, written as those of a batch are."""
    from capline.campaign.outcomes import Outcome

    pa: Any = import_module("pyarrow")
    columns = {
        field.name: [_cell_value(each, field.name, cell) for each in _as(list[Outcome], page["outcomes"])]
        for field in schema
    }
    return pa.table({name: pa.array(column, schema.field(name).type) for name, column in columns.items()}, schema)


def _cell_value(outcome: Outcome, column: str, cell: Callable[[str], str]) -> Any:
    name = {"id": "subject", "until": "until_us", "decided": "decided_us"}.get(column, column)
    value = getattr(outcome, name)
    return cell(value or "") if column == "segment" else cell(value) if isinstance(value, str) else value
