"""The campaigns of a store over HTTP: begun, looked at, steered; workers deliver them.

    GET | POST   /v1/campaigns                  a page of them; begin one, by the campaign file's own form as JSON
    POST         /v1/campaigns/plan             what it would send and refuse now
    GET | PATCH  /v1/campaigns/{name}           its report, as `capline campaign status --json`; change end or rate
    GET          /v1/campaign-conflicts         what those that wait do to each other
    POST         …/pause | resume | cancel | retry-failed
    GET          …/outcomes | outcomes/{id}     a page of them, in JSON, CSV or Parquet; of one recipient

Each request opens the store anew, in a thread, and at most two do so at once: decisions go on beside them. What a file
names is read here, below the working directory. A run that was begun under a key has an id made of that key, so the
same request finds its own run.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
import numpy as np

from capline.campaign import accept, begun_version, plan, prepare
from capline.campaign.conflicts.find import Conflicts, conflicts_in
from capline.campaign.file import CampaignFile, loads_campaign
from capline.campaign.ledger import Ledger, Settings
from capline.campaign.outcomes import (
    Outcome,
    outcome_at,
    outcome_of,
    recipients_outcome,
    tables_of,
    write_outcomes,
)
from capline.campaign.page import render
from capline.campaign.plan import Plan
from capline.campaign.queue.enqueue import Enqueued, begin, retry
from capline.campaign.queue.status import Listed, QueueReport, QueueStatus, every, listed
from capline.campaign.queue.watch import Workers, workers_of
from capline.campaign.report import Steering, state_now
from capline.campaign.senders.template import variables
from capline.campaign.store.open import open_store
from capline.campaign.store.protocol import CampaignStore, Change, UnreadableRunError
from capline.campaign.store.records import StoredRun
from capline.campaign.store.rows import RETRIED, BatchRows
from capline.model.errors import CampaignConflictError, CampaignError, CampaignStoreError, InvalidValueError, quoted
from capline.model.subject import Subject
from capline.segment.objects.address import open_objects
from capline.service.http.app import Reply, Request, Route
from capline.service.http.body import CSV
from capline.service.http.forms import described_as, page_limit
from capline.service.http.openapi import PAGE_HEADERS
from capline.service.http.table import get, patch, post, routes_of
from capline.service.verbs.audiences import AudienceVerbs

T = TypeVar("T")

HTML = "text/html"
PARQUET = "application/vnd.apache.parquet"
_COMPOSE, _STEER = ("compose",), ("steer",)
_KEY = "Idempotency-Key"
_NAMED = Path("campaign.json")
"""What a campaign's form is called in messages; its paths are those of the working directory."""
_AT_ONCE = 2
_PLACE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)
_VARIABLES = "CAPLINE_CAMPAIGN_"
"""What the variables begin with that workers fill in for who composes over HTTP: others may be their secrets."""
_BREAKS = {0x85: r"\u0085", 0x2028: r"\u2028", 0x2029: r"\u2029"}
"""Line breaks of YAML that stand in JSON as they are."""

_FORM = {
    "campaign": "summer-sale",
    "policies": "policies.yaml",
    "policy": "promo",
    "audience": {"csv": "users.csv", "column": "id"},
    "sender": {"webhook": {"url": "https://push.example.org/send", "batch": 500}},
}
_OUTCOME = msgspec.json.decode(
    b'{"campaign":"summer-sale","run":"4f0c6a1b22d3e4f5","subject":1001,"segment":"new","outcome":"refused",'
    b'"reason":null,"limit":"1/day","until_us":1795356000000000,"until":"2026-11-22T14:00:00Z","given_back":false,'
    b'"attempts":0,"decided_us":1795276800000000,"decided":"2026-11-21T16:00:00Z","hit_us":null,'
    b'"key":"summer-sale/4f0c6a1b22d3e4f5/1001"}'
)
_LISTED = msgspec.json.decode(
    b'{"campaign":"summer-sale","run":"4f0c6a1b22d3e4f5","state":"finished","policy":"promo","audience":3,"done":3,'
    b'"batches":1,"settled":1,"send_at":"2026-11-21T16:00:00Z"}'
)
_REPORT = msgspec.json.decode(
    b'{"campaign":"summer-sale","run":"4f0c6a1b22d3e4f5","state":"finished","policy":"promo","channel":null,"cost":1,'
    b'"total":{"segment":null,"audience":3,"sent":2,"refused":1,"refused_by":{"1/day":1},"failed":0,"not_known":0,'
    b'"pending":0,"undecided":0,"excluded":0,"held_out":0,"would_be_refused":0,"held":0,"delays":{"1 s":2}},'
    b'"segments":[{"segment":null,"audience":3,"sent":2,"refused":1,"refused_by":{"1/day":1},"failed":0,"not_known":0,'
    b'"pending":0,"undecided":0,"excluded":0,"held_out":0,"would_be_refused":0,"held":0,"delays":{"1 s":2}}],'
    b'"failures":{},"doubts":{},"next_eligible":null,"elapsed_s":0.1,"per_s":30.0,"store":null,'
    b'"steering":{"send_at":"2026-11-21T16:00:00Z","until":null,"version":1,"changed":null,"by":null,"speed":null},'
    b'"queue":{"url":"redis://127.0.0.1:6379/0","batches":1,"unqueued":0,"waiting":0,"settled":1,"in_work":[],'
    b'"set_aside":{},"refused":null}}'
)
_CONFLICTS = msgspec.json.decode(
    b'{"history":false,"campaigns":[{"policy":"promo","priority":50,"audience":3,"excluded":0,"held_out":0,"later":0,'
    b'"campaign":"summer-sale","due":"2027-01-01T09:00:00Z","sent":3,"refused":0,"losing":0},{"policy":"promo",'
    b'"priority":50,"audience":3,"excluded":0,"held_out":0,"later":0,"campaign":"newsletter",'
    b'"due":"2027-01-01T12:00:00Z","sent":1,"refused":2,"losing":2}],"conflicts":[{"campaign":"newsletter",'
    b'"taken_by":"summer-sale","limit":"1/day","segment":"new","users":2,"later":0}],"unread":{}}'
)
_EXAMPLES = {"GET": {"campaigns": [_LISTED], "next": None}, "POST": _FORM}

_Instant = Annotated[str, described_as(format="date-time")] | None


class CampaignForm(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A campaign as its file writes it."""

    campaign: str
    policy: str | list[str]
    policies: str
    audience: dict[str, Any]
    sender: dict[str, Any]
    channel: str | None = None
    store: str | None = None
    segments: str | None = None
    cost: int | None = None
    batch: int | None = None
    priority: int | None = None
    keep: str | None = None
    rate: str | None = None
    rate_key: str | None = None
    send_at: _Instant = None
    send_at_local: str | None = None
    until: _Instant = None
    as_of: _Instant = None
    rehearsal: bool | None = None
    transactional: bool | None = None
    over_cap: str | None = None
    quiet: str | None = None
    yields: bool | None = None
    exclude: dict[str, Any] | None = None
    holdout: str | None = None
    holdout_group: str | None = None
    only: list[str | int] | None = None
    retry: dict[str, int | float] | None = None

    def file(self, uploads: AudienceVerbs | None = None) -> CampaignFile:
        """The file that says the same; raises for what no file may say, and for a path or variable of others."""
        uploaded = ""
        if isinstance(name := self.audience.get("upload"), str):
            if uploads is None:
                raise CampaignError(f"{_NAMED}: upload: this service takes none; 'audiences:' in its file says where")
            kind, uploaded = uploads.named(name)
            rest = {key: value for key, value in self.audience.items() if key != "upload"}
            self = msgspec.structs.replace(self, audience={kind: uploaded, **rest})  # noqa: PLW0642 - as it is from here on
        text = msgspec.json.encode(self, order="sorted").decode().translate(_BREAKS)
        for name in variables(text):
            if not name.startswith(_VARIABLES):
                raise CampaignError(
                    f"{_NAMED}: ${{{name}}}: over HTTP only variables called {_VARIABLES}… have a value"
                )
        file = loads_campaign(text, _NAMED)
        here, out = os.path.realpath("."), getattr(file.sender.sender, "directory", None)
        sources = (file.audience, *(file.exclude.sources if file.exclude is not None else ()))
        paths = (path for source in sources for path in source.paths)
        for path in map(str, filter(None, (file.policies, *paths, file.segments, out))):
            if path != uploaded and "://" not in path and os.path.commonpath((here, os.path.realpath(path))) != here:
                raise CampaignError(f"{_NAMED}: {path} is not below the directory that the service works in")
        return file


class CampaignsPage(TypedDict):
    """Campaigns by name; `next` is sent back as `after`, until it is null."""

    campaigns: list[Listed]
    next: str | None


class Steered(TypedDict):
    """The campaign as it is now."""

    campaign: str
    state: str
    steering: Steering


class OutcomesPage(TypedDict):
    """Outcomes of those decided so far; `next` is sent back as `after`, until it is null.

    `ids`: uint32, uint64 or text.
    """

    outcomes: list[Outcome]
    next: str | None
    ids: str


class MessagesPage(TypedDict):
    """What became of one subject in some campaigns; `next` is sent back as `after`, until it is null."""

    messages: list[Outcome]
    next: str | None


def check_message(name: str, message: Mapping[str, Any]) -> None:
    """Raise for what no campaign could share with others."""
    try:
        msgspec.convert({"campaign": "", "policy": "", "audience": {}, **message}, CampaignForm, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidValueError(f"messages: {name}: {error}") from None


def campaign_routes(url: str, audiences: str | None = None, *, create: bool = True) -> dict[str, Route]:
    """The routes of the campaigns in this store, and of their uploads; raises for a URL that names none.

    With `create` a file is made.
    """
    if create or not url.startswith("sqlite:"):
        open_store(url, make=create).close()
    if audiences is None:
        return routes_of(CampaignVerbs(url, None))
    open_objects(audiences).close()
    uploads = AudienceVerbs(audiences)
    return routes_of(CampaignVerbs(url, uploads), uploads)


class CampaignVerbs:
    """The paths of the campaigns in the store of this URL, whose audiences may be among these uploads."""

    def __init__(self, url: str, uploads: AudienceVerbs | None) -> None:
        self._url, self._uploads = url, uploads
        self._turns = asyncio.Semaphore(_AT_ONCE)

    @get(
        "/v1/campaigns",
        CampaignsPage,
        query=("after", "limit"),
        roles={"POST": _COMPOSE},
        scoped=True,
        headers=(_KEY,),
        examples=_EXAMPLES,
    )
    async def campaigns(self, request: Request) -> CampaignsPage:
        """The campaigns, by name, and how far each is."""
        after, limit = _page_of_campaigns(request)

        def page(store: CampaignStore) -> CampaignsPage:
            names = store.page(after, limit)
            lines = [line for name in names if (line := listed(store, name)) and line.policy in request.scope]
            return {"campaigns": lines, "next": names[-1] if len(names) == limit else None}

        return await self._ask(page)

    @post("/v1/campaigns", CampaignForm, Enqueued, has_maps=True)
    async def create(self, request: Request, form: CampaignForm) -> Enqueued:
        """Begin a campaign, once under its name; workers deliver it."""
        key = next((value for name, value in request.headers if name == _KEY.lower().encode()), None)
        run_id = None if key is None else blake2b(request.who.encode() + b" " + key, digest_size=8).hexdigest()
        return await self._ask(lambda store: _create(store, form.file(self._uploads), run_id))

    @post("/v1/campaigns/plan", CampaignForm, Plan, has_maps=True, roles=_COMPOSE, examples={"POST": _FORM})
    async def plan(self, request: Request, form: CampaignForm) -> Plan:
        """What the campaign would send and refuse if it began now, and whose place it takes; nothing is begun."""
        shows_others = request.scope.is_all

        def planned(store: CampaignStore) -> Plan:
            return plan(prepare(form.file(self._uploads)), beside=store if shows_others else None)

        return await self._ask(planned)

    @get("/v1/campaign-conflicts", Conflicts, query=("history",), examples={"GET": _CONFLICTS})
    async def conflicts(self, request: Request) -> Conflicts:
        """Which campaign that waits takes whose place, on empty logs, or with `history` as they are now."""
        history = request.parameters.get("history", "false")
        if history not in ("true", "false"):
            raise InvalidValueError(f"history {quoted(history)}: give true or false")
        return await self._ask(lambda store: conflicts_in(store, history=history == "true"))

    @get("/v1/campaign-workers", Workers)
    async def workers(self, _request: Request) -> Workers:
        """Who has which batch of the campaigns that are due, and since when silent; of the 100 due longest."""
        return await self._ask(workers_of)

    @get(
        "/v1/campaigns/{name}",
        QueueReport,
        others=(HTML,),
        roles={"PATCH": _STEER},
        scoped=True,
        examples={"GET": _REPORT, "PATCH": {"until": "2027-01-01T20:00:00Z"}},
    )
    async def campaign(self, request: Request, name: str) -> QueueReport | Reply:
        """What became of a campaign so far, and which worker has which batch; by Accept as a page of HTML."""
        is_page = _accepted(request, HTML)

        def told(store: CampaignStore) -> QueueReport | Reply:
            report = QueueStatus(store, name).report()
            request.scope.check(report.policy)
            if not is_page:
                return report
            return Reply(render(report).encode(), PAGE_HEADERS, type=f"{HTML}; charset=utf-8")

        return await self._ask(told)

    @patch("/v1/campaigns/{name}", Settings, Steered, scoped=True)
    async def set(self, request: Request, name: str, form: Settings) -> Steered:
        """Change when a campaign is over, or due, or its rate: a new version, with who and when."""
        return await self._steer(request, name, form)

    @post("/v1/campaigns/{name}/pause", None, Steered, roles=_STEER, scoped=True)
    async def pause(self, request: Request, name: str) -> Steered:
        """Decide and send nothing more of a campaign until it is resumed."""
        return await self._steer(request, name, "pause")

    @post("/v1/campaigns/{name}/resume", None, Steered, roles=_STEER, scoped=True)
    async def resume(self, request: Request, name: str) -> Steered:
        """Go on with a campaign that was paused."""
        return await self._steer(request, name, "resume")

    @post("/v1/campaigns/{name}/cancel", None, Steered, roles=_STEER, scoped=True)
    async def cancel(self, request: Request, name: str) -> Steered:
        """End a campaign: what was sent stays sent, the rest is given back."""
        return await self._steer(request, name, "cancel")

    @post("/v1/campaigns/{name}/retry-failed", None, Enqueued, roles=_STEER, scoped=True)
    async def retry_failed(self, request: Request, name: str) -> Enqueued:
        """Decide and send again, once, to exactly those whose delivery failed."""

        def again(store: CampaignStore) -> Enqueued:
            run = ledger_of(request, store, name).run
            return retry(prepare(loads_campaign(run.text, Path(run.path)), begun_version(run.inputs)), store)

        return await self._ask(again)

    @get(
        "/v1/campaigns/{name}/outcomes",
        OutcomesPage,
        query=("after", "limit"),
        others=(CSV, PARQUET),
        scoped=True,
        examples={"GET": {"outcomes": [_OUTCOME], "next": "0-1000", "ids": "uint32"}},
    )
    async def outcomes(self, request: Request, name: str) -> Reply:
        """What became of each recipient, page by page: in JSON, or by Accept in CSV or Parquet."""
        limit = page_limit(request.parameters)
        found = _PLACE.fullmatch(after := request.parameters.get("after", "0-0"))
        if found is None:
            raise InvalidValueError(f"after {quoted(after)}: give back what 'next' was")
        kind = _accepted(request, CSV, PARQUET)

        def page(store: CampaignStore) -> Reply:
            run = ledger_of(request, store, name)
            batches, following = _rows(run, int(found[1]), int(found[2]), limit)
            if kind is None:
                rows = [
                    outcome_at(run.facts, batch, row)
                    for batch in batches
                    for row in np.flatnonzero(batch.state != RETRIED).tolist()
                ]
                return Reply({"outcomes": rows, "next": following, "ids": run.facts.ids})
            file = BytesIO()
            write_outcomes(tables_of(run.facts, batches), file, csv=kind == CSV)
            path = f"/v1/campaigns/{name}/outcomes?after={following}&limit={limit}"
            return Reply(file.getvalue(), {"Link": f'<{path}>; rel="next"'} if following else None, type=kind)

        return await self._ask(page)

    @get("/v1/campaigns/{name}/outcomes/{id}", Outcome, examples={"GET": _OUTCOME}, scoped=True)
    async def outcome(self, request: Request, name: str, recipient: str) -> Outcome:
        """What became of one recipient."""
        return await self._ask(lambda store: recipients_outcome(ledger_of(request, store, name), recipient))

    @get(
        "/v1/subjects/{subject}/messages",
        MessagesPage,
        query=("after", "limit"),
        scoped=True,
        examples={"GET": {"messages": [_OUTCOME], "next": None}},
    )
    async def messages(self, request: Request, subject: Subject) -> MessagesPage:
        """What became of the subject in each campaign that has decided it, by name of the campaign."""
        after, limit = _page_of_campaigns(request)

        def page(store: CampaignStore) -> MessagesPage:
            names = store.page(after, limit)
            found = (_message(request, store, name, subject) for name in names)
            return {
                "messages": [outcome for outcome in found if outcome is not None],
                "next": names[-1] if len(names) == limit else None,
            }

        return await self._ask(page)

    async def _steer(self, request: Request, name: str, change: Change | Settings) -> Steered:
        def steered(store: CampaignStore) -> Steered:
            run, by = ledger_of(request, store, name), request.who or request.client
            if isinstance(change, Settings):
                run.set(change, by)
            else:
                run.change(change, by)
            state = run.state()
            return {"campaign": name, "state": state_now(state), "steering": Steering.of(state)}

        return await self._ask(steered)

    async def _ask(self, what: Callable[[CampaignStore], T]) -> T:
        """The answer, found in a thread in its turn."""
        async with self._turns:
            return await asyncio.to_thread(ask_store, self._url, what)


def ledger_of(request: Request, store: CampaignStore, name: str) -> Ledger:
    """The ledger of a campaign, whose policy the caller may ask for."""
    ledger = Ledger.of(store, name)
    request.scope.check(ledger.facts.policy)
    return ledger


def _page_of_campaigns(request: Request) -> tuple[str, int]:
    """After which name a page begins, and how many it has."""
    after = request.parameters.get("after")
    if after == "":
        raise InvalidValueError("after '': give the name of a campaign, or leave it out")
    return after or "", page_limit(request.parameters)


def _message(request: Request, store: CampaignStore, name: str, subject: Subject) -> Outcome | None:
    with suppress(UnreadableRunError):
        run = store.find(name)
        if run is None or run.facts.policy not in request.scope:
            return None
        if (run.facts.ids == "text") == isinstance(subject, str):
            return outcome_of(Ledger(store, run, store.url), subject)
    return None


def ask_store(url: str, what: Callable[[CampaignStore], T]) -> T:
    """The answer of the campaign store of this URL."""
    try:
        store = open_store(url, make=True, patience_s=0.0)
    except CampaignError as error:
        raise CampaignStoreError(str(error)) from None
    with store:
        return what(store)


def _accepted(request: Request, *kinds: str) -> str | None:
    """The first of these types that the client takes; None where it names none of them."""
    accept = b",".join(value for header, value in request.headers if header == b"accept").decode("latin-1")
    return next((kind for kind in kinds if kind in accept), None)


def _create(store: CampaignStore, file: CampaignFile, run_id: str | None) -> Enqueued:
    begun = store.find(file.campaign)
    if begun is None and run_id is not None and any(line.run == run_id for line in every(store)):
        raise _other_body()
    if begun is not None and begun.facts.run_id != run_id:
        raise _other_run(begun)
    if begun is not None and begun.text != file.text:
        raise _other_body()
    if begun is None or not store.state(file.campaign).is_whole:
        run, how = begin(accept(file, None if begun is None else begun_version(begun.inputs)), store, run_id)
        if begun is None and how != "new" and run.facts.run_id != run_id:
            raise _other_run(run)
    else:
        run = begun
    return Enqueued(run.facts.campaign, run.facts.run_id, store.url, "new", None, None, 0)


def _other_run(run: StoredRun) -> CampaignConflictError:
    name = run.facts.campaign
    return CampaignConflictError(f"campaign {name!r} was begun before; a new one needs another name ('campaign')")


def _other_body() -> InvalidValueError:
    return InvalidValueError(f"this {_KEY} came with another body; a new campaign needs a new key")


def _rows(run: Ledger, number: int, row: int, limit: int) -> tuple[list[BatchRows], str | None]:
    """At most so many rows from this row of this batch on, and where the next page begins."""
    page: list[BatchRows] = []
    for batch in range(number, run.state().batches):
        for rows in run.store.steps(run.name, [batch]):
            page.append(rows.take(np.arange(row, min(row + limit, len(rows)))))
            limit -= len(page[-1])
            row += len(page[-1])
            if not limit:
                return page, f"{batch}-{row}"
        row = 0
    return page, None
