"""What came back after messages: kept for `capline response`, measured, and heeded by campaigns.

    POST   /v1/outcomes                       some events, as a provider's webhook sends them
    GET    /v1/campaigns/{name}/response      what they say of a campaign, as `capline response --json`

    optouts.csv    in the folder of replies: numbers that unsubscribed, which campaigns exclude; optouts-text.csv: texts

The rule: what was answered is on disk, each line whole; sent twice, it counts once. Who unsubscribed is excluded from
the next batch on. A key opts nobody out whose campaign is not here. Looking at a response reads the campaigns of one
policy, at most so many messages, one look at a time.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypedDict
from urllib.parse import unquote

import msgspec

from capline.campaign.ledger import Ledger
from capline.campaign.outcomes import tables_of
from capline.campaign.queue.status import every
from capline.campaign.response.folder import KINDS, add_replies, reply_files
from capline.campaign.response.measure import facts, measure
from capline.campaign.response.messages import gathered, messages_of_tables
from capline.campaign.response.opt_outs import add_opt_outs
from capline.campaign.response.replies import EventColumns, Replies
from capline.campaign.store.protocol import CampaignStore
from capline.model.errors import CampaignStoreError, InvalidValueError, SegmentError, quoted
from capline.model.subject import LARGEST_ID, Subject, check_subject
from capline.service.http.app import BATCH_BYTES, Request
from capline.service.http.forms import SubjectForm, number_of
from capline.service.http.problems import Problem
from capline.service.http.table import get, post
from capline.service.verbs.campaigns import ask_store, ledger_of
from capline.support.instant import instant_text, zoned_instant_us

MOST_ROWS = 1_000
"""Events in one call."""
MOST_MESSAGES = 5_000_000
_WITHIN_US = _WINDOW_US = 7 * 86_400_000_000
_AHEAD_US = 60_000_000
"""Clocks differ."""
_OPT_OUTS = {False: "optouts.csv", True: "optouts-text.csv"}
_ROWS = [
    {"key": "summer-sale/4f0c6a1b22d3e4f5/1001", "event": "opened"},
    {"id": 1002, "event": "unsubscribed", "time": "2026-11-21T16:00:00Z"},
]
_SHARE = {"of": 900, "responded": 90, "rate": 0.1, "low": 0.08, "high": 0.12}
_RESPONSE = {
    "events": 90,
    "never_sent": 0,
    "outside_window": 0,
    "by_number": [{"event": "opened", "number": 1, **_SHARE}],
    "campaigns": [{"event": "opened", "campaign": "summer-sale", **_SHARE}],
    "regret": [],
    "intervals": "95 %",
    "compared": 0,
    "apart": 0,
    "apart_by_chance": 0.0,
    "cannot_tell": "…",
    "told": [],
}


class Event(msgspec.Struct, forbid_unknown_fields=True):
    """Something that came back: of the message of this key, or of this recipient at a time, by default now."""

    event: Literal["opened", "clicked", "bought", "unsubscribed"]
    key: str | None = None
    id: SubjectForm | None = None
    time: str | None = None


class Events(msgspec.Struct, forbid_unknown_fields=True):
    """Some of them."""

    outcomes: list[Event]


class Taken(TypedDict):
    """How many were kept, how many opted out that had not, and how many keys are of no campaign here."""

    taken: int
    opted_out: int
    unknown: int


class ResponseFacts(TypedDict):
    """Shares with their bounds, by kind of event: of a campaign and its segments, and by number in the window."""

    events: int
    never_sent: int
    outside_window: int
    campaigns: list[dict[str, Any]]
    by_number: list[dict[str, Any]]
    regret: list[dict[str, Any]]
    intervals: str
    compared: int
    apart: int
    apart_by_chance: float
    cannot_tell: str
    told: list[str]


class OutcomeVerbs:
    """The paths of what came back, in this folder; the campaigns are in the store of this URL.

    With `create` the folder is made, and the files that campaigns exclude.
    """

    def __init__(self, url: str, folder: str, *, create: bool = True) -> None:
        self._url, self._folder = url, Path(folder)
        self._turns, self._looks = asyncio.Semaphore(2), asyncio.Semaphore(1)
        if create:
            with _writing():
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for name in _OPT_OUTS.values():
                    add_opt_outs(self._folder / name, ())

    @post(
        "/v1/outcomes", Events, Taken, body_bytes=BATCH_BYTES, roles=("reply",), examples={"POST": {"outcomes": _ROWS}}
    )
    async def outcomes(self, _request: Request, form: Events) -> Taken:
        """Keep what came back; who unsubscribed gets nothing of the next batches."""
        if len(form.outcomes) > MOST_ROWS:
            said = f"{len(form.outcomes)} outcomes; at most {MOST_ROWS} a call"
            raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, said)
        now_us = time.time_ns() // 1000
        events = [_checked(place, event, now_us) for place, event in enumerate(form.outcomes)]
        async with self._turns:
            return await asyncio.to_thread(self._keep, events, instant_text(now_us)[:10])

    @get("/v1/campaigns/{name}/response", ResponseFacts, examples={"GET": _RESPONSE}, scoped=True)
    async def response(self, request: Request, name: str) -> dict[str, object]:
        """What came back after a campaign's messages, within 7 days, and by the number of a message in a week."""
        async with self._looks:
            return await asyncio.to_thread(ask_store, self._url, lambda store: self._measured(request, store, name))

    def _keep(self, events: list[Event], day: str) -> Taken:
        opted_out = [event for event in events if event.event == "unsubscribed"]
        who = ask_store(self._url, lambda store: _recipients(store, opted_out))
        with _writing():
            for kind in KINDS:
                words = [(str(word), event) for event in events if (word := getattr(event, kind)) is not None]
                replies = [{kind: word, "time": str(event.time), "event": event.event} for word, event in words]
                if replies:
                    add_replies(self._folder, day, kind, replies)
            added = 0
            for is_text, name in _OPT_OUTS.items():
                some = {str(each) for each in who if isinstance(each, str) == is_text}
                added += add_opt_outs(self._folder / name, some) if some else 0
        return {"taken": len(events), "opted_out": added, "unknown": len(opted_out) - len(who)}

    def _measured(self, request: Request, store: CampaignStore, name: str) -> dict[str, object]:
        policy, told, count = ledger_of(request, store, name).facts.policy, list[str](), 0
        parts: list[Any] = []
        lines = sorted(every(store), key=lambda line: line.campaign != name)  # itself first, whatever is left out
        for line in lines:
            if line.policy != policy or not line.done:
                continue
            if count + line.done > MOST_MESSAGES:
                told.append(f"{line.campaign} is left out: more than {MOST_MESSAGES:,} messages")
                continue
            run = Ledger.of(store, line.campaign)
            if not run.facts.is_test:
                count += line.done
                parts += messages_of_tables(tables_of(run.facts, run.batches()), Path(line.campaign))
        if not parts:
            raise Problem(HTTPStatus.CONFLICT, f"nothing of {name} was decided yet")
        messages = gathered(parts)
        replies = Replies(messages, _WITHIN_US)
        if files := reply_files(self._folder):
            replies.read([*map(str, files)], EventColumns(), lambda _: None)
        found = facts(measure(messages, replies, _WINDOW_US), told + replies.told)
        own: Any = found["campaigns"]
        return found | {"campaigns": [group for group in own if group["campaign"] == name]}


def _checked(place: int, event: Event, now_us: int) -> Event:
    """The event with its time; raises for one that no reader of the files would take."""
    word = event.key if event.id is None else check_subject(event.id)
    if word is None or (event.key is not None and event.id is not None):
        raise InvalidValueError(f"outcomes[{place}]: name the key of a message, or the id of a recipient")
    if not str(word).isprintable() or not str(word).strip():
        raise InvalidValueError(f"outcomes[{place}]: {quoted(word)} has characters that a file of outcomes cannot have")
    try:
        at_us = now_us if event.time is None else zoned_instant_us(event.time)
    except ValueError as error:
        raise InvalidValueError(f"outcomes[{place}]: time: {error}") from None
    if at_us > now_us + _AHEAD_US:
        raise InvalidValueError(f"outcomes[{place}]: time {quoted(event.time)} is still to come")
    return Event(event.event, event.key, event.id, instant_text(at_us))


def _recipients(store: CampaignStore, events: list[Event]) -> list[Subject]:
    """Whose these are; of a key only where its run is in the store."""
    runs: dict[str, tuple[str, bool] | None] = {}
    found: list[Subject] = []
    for event in events:
        if event.id is not None:
            found.append(event.id)
            continue
        campaign, _, rest = (event.key or "").partition("/")
        run_id, _, subject = rest.partition("/")
        if campaign not in runs:
            run = store.find(campaign)
            runs[campaign] = run and (run.facts.run_id, run.facts.ids == "text")
        known = runs[campaign]
        if known is None or known[0] != run_id or not subject:
            continue
        if known[1]:
            found.append(unquote(subject))
        elif (number := number_of(subject, len(str(LARGEST_ID)))) is not None:
            found.append(number)
    return found


@contextmanager
def _writing() -> Generator[None]:
    """What cannot be written is to be sent again."""
    try:
        yield
    except (OSError, SegmentError) as error:
        raise CampaignStoreError(f"replies: {getattr(error, 'strerror', None) or error}") from None
