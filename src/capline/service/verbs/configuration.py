"""The configuration over HTTP: policies, overrides, their versions; who changes what.

    GET | PUT | DELETE  /v1/policies/{name}              /v1/overrides/{policy}/{subject}
    GET | PATCH         /v1/overrides/{policy}           a page of them; many at once
    GET                 /v1/commits                      who changed what
    GET                 …/versions
    POST                …/rollback {"version": n}

A change is at once in force in this process, and elsewhere within two seconds. Without a configuration store policies
are read only, and there are no overrides: 409 says so. The store is asked in a thread, as its client blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from io import StringIO
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, cast, get_type_hints
from urllib.parse import unquote

import msgspec

from capline.config.bulk import read_overrides
from capline.config.document import document_of, entry_facts, every_key, own_facts, policy_of
from capline.config.open import open_backend
from capline.config.records import Totals
from capline.limiter.policies.rules import DEFAULT_NAMESPACE
from capline.model.errors import InvalidValueError, NoStoreError, quoted
from capline.model.policy import ALGORITHMS, LAYOUTS, check_no_replicas
from capline.model.subject import Subject, check_subject, parse_subject
from capline.service.http.app import BATCH_BYTES
from capline.service.http.body import CSV, LINES, has_type
from capline.service.http.forms import Reader, SubjectForm, described_as, number_of, page_limit, page_of
from capline.service.http.problems import Problem
from capline.service.http.table import delete, get, patch, post, put
from capline.store.redis.io.url import parse_url, server_schemes
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from capline.config.configuration import Configuration
    from capline.config.records import Entry
    from capline.limiter.aio import AsyncLimiter
    from capline.model.policy import Policy
    from capline.service.http.app import Request

WHO = "http"
"""The author of a change that names none."""
ADMIN = ("admin",)
_LATE = (
    "a process that does not reach the configuration store until then follows late: one whose "
    "capline_config_known_version is lower has not heard of it"
)


_Version = Annotated[int, described_as(minimum=0)]
_Instant = Annotated[str, described_as(format="date-time")]


class _Change(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    who: str = WHO
    effective_at: _Instant | None = None
    if_version: _Version | None = None


_CHANGED = ("who", "if_version")
_BULK = ("who", "effective_at", "until")


class PolicyForm(_Change, forbid_unknown_fields=True, kw_only=True):
    """A policy as a policy file writes it, why, and when it is to be in force."""

    reason: str = ""
    limits: list[str] = []
    by_segment: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET
    channels: dict[str, list[str]] | msgspec.UnsetType = msgspec.UNSET
    algorithm: Annotated[str, described_as(enum=ALGORITHMS)] | msgspec.UnsetType = msgspec.UNSET
    count_denied: bool | msgspec.UnsetType = msgspec.UNSET
    layout: Annotated[str, described_as(enum=LAYOUTS)] | msgspec.UnsetType = msgspec.UNSET
    log: str | msgspec.UnsetType = msgspec.UNSET
    wait_replicas: int | msgspec.UnsetType = msgspec.UNSET
    population: int | msgspec.UnsetType = msgspec.UNSET
    zone: str | msgspec.UnsetType = msgspec.UNSET
    reservations: bool | msgspec.UnsetType = msgspec.UNSET
    shadow: bool | msgspec.UnsetType = msgspec.UNSET
    granularity: str | msgspec.UnsetType | None = msgspec.UNSET

    def document(self) -> dict[str, Any]:
        """The policy itself, without its author, reason and times."""
        every = msgspec.structs.asdict(self)
        apart = (*_Change.__struct_fields__, "reason")
        return {key: value for key, value in every.items() if key not in apart and value is not msgspec.UNSET}


class OverrideForm(_Change, forbid_unknown_fields=True, kw_only=True):
    """Limits of one subject, for good or `until` an instant; `granularity` is of a `bucketed` policy."""

    limits: list[str]
    granularity: str | None = None
    until: _Instant | None = None


class OverrideRow(msgspec.Struct, forbid_unknown_fields=True):
    """A subject and its limits; null removes them."""

    subject: SubjectForm
    limits: list[str] | None
    granularity: str | None = None


class OverridesForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Limits of many subjects, for good or `until` an instant; others stay as they are."""

    overrides: list[OverrideRow]
    who: str = WHO
    effective_at: _Instant | None = None
    until: _Instant | None = None


_read_bulk = Reader(OverridesForm, has_maps=True)


class RollbackForm(msgspec.Struct, forbid_unknown_fields=True):
    """A version to go back to."""

    version: _Version
    who: str = WHO


class Changed(TypedDict):
    """The configuration's version after a change; `note` of one that is to come."""

    version: int
    note: NotRequired[str]


class VersionFacts(TypedDict):
    """A version: when it was made, by whom, and the instant from which it is in force, null for at once."""

    version: int
    at: str
    who: str
    effective_at: str | None


class PolicyVersion(VersionFacts):
    """What a policy was, null where it was deleted."""

    policy: dict[str, Any] | None


class OverrideVersion(VersionFacts):
    """What a subject's own limits were, null where there were none; a `granularity` where it had one.

    With an `effective_at` they hold from then on, and those of `before` until then.
    """

    limits: list[str] | None
    granularity: NotRequired[str]
    before: NotRequired[list[str] | None]
    before_granularity: NotRequired[str]


class PolicyVersions(TypedDict):
    """Versions, newest first."""

    versions: list[PolicyVersion]


class OverrideVersions(TypedDict):
    """Versions, newest first."""

    versions: list[OverrideVersion]


class OverrideNow(VersionFacts):
    """A subject's own limits now, and what they will be at `effective_at`."""

    policy: str
    subject: Subject
    limits: list[str] | None
    granularity: NotRequired[str]
    next: list[str] | None
    next_granularity: NotRequired[str]


class OverridesPage(TypedDict):
    """Overrides of a policy, of `count` in all; `next` is sent back as `after`, until it is null."""

    overrides: list[OverrideNow]
    count: int
    next: str | None


class PolicyFacts(TypedDict):
    """A policy in force, with what it leaves to defaults."""

    name: str
    limits: list[str]
    by_segment: dict[str, list[str]]
    channels: dict[str, list[str]]
    algorithm: str
    count_denied: bool
    log: str
    zone: str | None
    reservations: bool
    shadow: bool


class Policies(TypedDict):
    """Policies in force; of a page `next` is sent back as `after`, until it is null."""

    namespace: str
    policies: list[PolicyFacts]
    next: NotRequired[str | None]


class ChangedName(TypedDict):
    """What a commit changed: a policy, an override of it, or many of them."""

    policy: str
    subject: Subject | None
    many: bool


class CommitFacts(TypedDict):
    """One change of the configuration."""

    version: int
    at: str
    who: str
    verb: str
    reason: str
    changes: list[ChangedName]


class Commits(TypedDict):
    """Changes, newest first; `next` is sent back as `before`, until it is null."""

    commits: list[CommitFacts]
    next: int | None


PolicyNow = msgspec.defstruct(
    "PolicyNow",
    [
        ("name", str),
        *(
            (key, kind | msgspec.UnsetType, msgspec.UNSET)
            for key, kind in (get_type_hints(PolicyFacts) | get_type_hints(VersionFacts)).items()
            if key != "name"
        ),
        ("next", dict[str, Any] | None | msgspec.UnsetType, msgspec.UNSET),
        ("missing_segments", list[str] | msgspec.UnsetType, msgspec.UNSET),
    ],
    namespace={
        "__doc__": "A policy in force, its version where a store has it, and what it will be at `effective_at`."
    },
)


def check_address(url: str) -> str:
    """The URL that `--check` opens in place of this one: an empty store for a server, or if there is no file yet.

    Asks no server and makes no file. Raises for a URL that names none, and for a file that is damaged.
    """
    if url.partition("://")[0].lower() in server_schemes():
        parse_url(url)
        return "memory://"
    try:
        open_backend(url, DEFAULT_NAMESPACE, create=False).close()
    except NoStoreError:
        return "memory://"
    return url


def configuration_state(limiter: AsyncLimiter) -> dict[str, object]:
    """What `/readyz` says: that the last known configuration serves, and for how long; which segments are not there."""
    configuration = limiter.configuration
    stale_s = 0.0 if configuration is None else configuration.stale_s
    said: dict[str, object] = {"missing_segments": limiter.missing_segments}
    if stale_s:
        said["configuration"] = f"the last known serves: its store has been away for {stale_s:.0f} s"
    return {key: what for key, what in said.items() if what}


class ConfigurationVerbs:
    """The paths of policies and of overrides; `local` as of `routes`."""

    def __init__(self, limiter: AsyncLimiter, *, local: bool) -> None:
        self._limiter, self._local = limiter, local

    @get("/v1/policies", Policies, query=("contains", "after", "limit"), scoped=True)
    async def policies(self, request: Request) -> Policies:
        """All policies in force; with parameters a page of them, by name, of those whose name contains a text."""
        named, policies = request.parameters, self._limiter.policies
        if not named:
            listed = [_facts_of(policy) for policy in policies.values() if policy.name in request.scope]
            return {"namespace": self._limiter.namespace, "policies": listed}
        if "" in named.values():
            raise InvalidValueError("leave out a parameter that is empty")
        names, following = page_of(request.scope.of(policies.names), named)
        page = [_facts_of(policies[name]) for name in names]
        return {"namespace": self._limiter.namespace, "policies": page, "next": following}

    @get("/v1/commits", Commits, query=("before", "limit"), scoped=True)
    async def commits(self, request: Request) -> Commits:
        """Who changed what in the configuration, newest first: the last 1,024 changes."""
        named, limit = request.parameters, page_limit(request.parameters)
        older = await asyncio.to_thread(self._store().commits, _version_of(named, "before"), limit + 1)
        page: list[CommitFacts] = [
            {
                "version": commit.version,
                "at": instant_text(commit.at_us),
                "who": commit.who,
                "verb": commit.verb.partition(": ")[0],
                "reason": commit.verb.partition(": ")[2],
                "changes": [{"policy": one.policy, "subject": one.subject, "many": one.many} for one in changes],
            }
            for commit in older[:limit]
            if (changes := [one for one in commit.changes if one.policy in request.scope]) or request.scope.is_all
        ]
        return {"commits": page, "next": older[limit - 1].version if len(older) > limit else None}

    @get("/v1/policies/{name}", PolicyNow)
    async def policy(self, _request: Request, name: str) -> dict[str, Any]:
        """A policy, its version, and what it will be at an instant to come."""
        configuration = self._limiter.configuration
        policy = self._limiter.policies.get(name)
        entry = None if configuration is None else configuration.view.entries.get(name)
        _check_found(policy or (entry and entry.value), f"policy {quoted(name)}")
        body: dict[str, Any] = {"name": name} if policy is None else {**_facts_of(policy)}
        if missing := self._limiter.missing_segments.get(name):
            body["missing_segments"] = missing
        if entry is not None and configuration is not None:
            next_value: Policy | None = entry.value
            is_next = entry.effective_us > configuration.view.now_us()
            body |= entry_facts(entry)
            body["next"] = document_of(next_value) if is_next and next_value is not None else None
        return body

    @get("/v1/policies/{name}/versions", PolicyVersions)
    async def policy_versions(self, _request: Request, name: str) -> dict[str, Any]:
        """What the policy was, newest first, and who changed it."""
        entries = await asyncio.to_thread(self._store().policy_versions, name)
        _check_found(entries, f"policy {quoted(name)}")
        return {"versions": [{**entry_facts(entry), "policy": entry.value} for entry in entries]}

    @put("/v1/policies/{name}", PolicyForm, Changed, has_maps=True)
    async def set_policy(self, request: Request, name: str, form: PolicyForm) -> Changed:
        """Make or change a policy."""
        policy = policy_of(name, form.document())
        if form.log is not msgspec.UNSET:
            self._check_log(request, name, form.log)
        if self._local:
            check_no_replicas(policy)
        return await self._changed(request, form, self._store().set_policies, [policy], reason=form.reason)

    def _check_log(self, request: Request, name: str, log: str) -> None:
        """Refuse a token for some policies a log that its policy has not now: it could reach the hits of another."""
        now = self._limiter.policies.get(name)
        if now is None or now.log != log:
            request.scope.check(unquote(log))

    @delete("/v1/policies/{name}", Changed, query=_CHANGED)
    async def delete_policy(self, request: Request, name: str) -> Changed:
        """Delete a policy; its logs stay until they expire."""
        configuration = self._limiter.configuration
        entry = None if configuration is None else configuration.view.entries.get(name)
        _check_found(name in self._limiter.policies or (entry and entry.value), f"policy {quoted(name)}")
        return await self._changed(request, _change_of(request), self._store().delete_policy, name)

    @post("/v1/policies/{name}/rollback", RollbackForm, Changed, roles=ADMIN)
    async def roll_back_policy(self, request: Request, name: str, form: RollbackForm) -> Changed:
        """Make the policy what it was at a version."""
        versions = () if request.scope.is_all else await asyncio.to_thread(self._store().policy_versions, name)
        for entry in versions:
            if entry.version == form.version and entry.value is not None:
                self._check_log(request, name, entry.value.get("log", name))
        return await self._changed(request, form, self._store().roll_back_policy, name, form.version)

    @get("/v1/overrides/{policy}", OverridesPage, query=("after", "limit"), body_bytes=BATCH_BYTES, types=(CSV, LINES))
    async def overrides(self, request: Request, policy: str) -> dict[str, Any]:
        """The overrides of a policy, page by page."""
        named, configuration = request.parameters, self._store()
        limit = page_limit(named)
        after = parse_subject(named["after"]) if "after" in named else None
        page, following = await asyncio.to_thread(configuration.overrides_page, policy, after, limit)
        now_us, total = configuration.view.now_us(), configuration.view.totals.get(policy, Totals())
        is_all = after is None and following is None
        count = len(page) if is_all else total.count_at(now_us)
        return {"overrides": [_now(policy, *each, now_us) for each in page], "count": count, "next": following}

    @patch("/v1/overrides/{policy}", OverridesForm, Changed, query=_BULK, reads=True)
    async def set_overrides(self, request: Request, policy: str) -> Changed:
        """Give many subjects limits of their own, or the policy's again."""
        form, limits, spans = _bulk(request)
        return await self._changed(request, form, self._store().override_many, policy, limits, granularity=spans)

    @get("/v1/overrides/{policy}/{subject}", OverrideNow)
    async def override(self, _request: Request, policy: str, subject: Subject) -> dict[str, Any]:
        """The limits that a subject has of its own."""
        configuration = self._store()
        entries = await asyncio.to_thread(configuration.override_versions, policy, subject)
        now_us = configuration.view.now_us()
        there = entries and (entries[0].value is not None or entries[0].at(now_us) is not None)
        _check_found(there, _override_under(policy))
        return _now(policy, subject, entries[0], now_us)

    @get("/v1/overrides/{policy}/{subject}/versions", OverrideVersions)
    async def override_versions(self, _request: Request, policy: str, subject: Subject) -> dict[str, Any]:
        """What the subject's own limits were, newest first, and who changed them."""
        entries = await asyncio.to_thread(self._store().override_versions, policy, subject)
        _check_found(entries, _override_under(policy))
        return {"versions": [*map(_version_facts, entries)]}

    @put("/v1/overrides/{policy}/{subject}", OverrideForm, Changed)
    async def set_override(self, request: Request, policy: str, subject: Subject, form: OverrideForm) -> Changed:
        """Give a subject limits of its own."""
        override = partial(self._store().override, granularity=form.granularity)
        return await self._changed(request, form, override, policy, subject, form.limits)

    @delete("/v1/overrides/{policy}/{subject}", Changed, query=_CHANGED)
    async def delete_override(self, request: Request, policy: str, subject: Subject) -> Changed:
        """Give a subject the policy's limits again."""
        change = _change_of(request)
        entry = await asyncio.to_thread(self._store().override_of, policy, subject)
        is_gone = entry is None or (entry.value is None and entry.before is None)
        is_meant = change.if_version in (None, 0 if entry is None else entry.version)
        _check_found(not (is_gone and is_meant), _override_under(policy))
        return await self._changed(request, change, self._store().override, policy, subject, None)

    @post("/v1/overrides/{policy}/{subject}/rollback", RollbackForm, Changed, roles=ADMIN)
    async def roll_back_override(self, request: Request, policy: str, subject: Subject, form: RollbackForm) -> Changed:
        """Make the subject's own limits what they were at a version."""
        return await self._changed(request, form, self._store().roll_back_override, policy, subject, form.version)

    def _store(self) -> Configuration:
        if self._limiter.configuration is None:
            raise Problem(
                HTTPStatus.CONFLICT,
                "this service has no configuration store; name one: config: in its settings, or --config-store URL",
            )
        return self._limiter.configuration

    async def _changed(
        self,
        request: Request,
        form: _Change | OverridesForm | RollbackForm,
        change: Callable[..., int],
        *what: Any,
        **how: Any,
    ) -> Changed:
        """Make the change, in a thread. Its author is the token's name, or without tokens what the caller says."""
        how |= {name: getattr(form, name) for name in ("effective_at", "until", "if_version") if hasattr(form, name)}
        version = await asyncio.to_thread(change, *what, who=request.who or form.who, **how)
        return {"version": version, "note": _LATE} if how.get("effective_at") is not None else {"version": version}


def _now(policy: str, subject: Subject, entry: Entry, now_us: int) -> dict[str, Any]:
    body = {"policy": policy, "subject": subject, **own_facts(entry.at(now_us)), **entry_facts(entry)}
    return body | _beside("next", entry.value if entry.effective_us > now_us else None)


def _version_facts(entry: Entry) -> dict[str, Any]:
    before = _beside("before", entry.before) if entry.effective_us else {}
    return entry_facts(entry) | own_facts(entry.value) | before


def _beside(name: str, value: Any) -> dict[str, Any]:
    """Limits at another time than those of `limits`."""
    facts = own_facts(value)
    spans = {f"{name}_granularity": facts["granularity"]} if "granularity" in facts else {}
    return {name: facts["limits"]} | spans


def _bulk(request: Request) -> tuple[OverridesForm, dict[Subject, list[str] | None], dict[Subject, str]]:
    """The change, by the query too, as lines cannot say it; and the limits and the granularity of each subject."""
    is_csv = has_type(request.headers, CSV)
    if is_csv or has_type(request.headers, LINES):
        try:
            lines = StringIO(request.body.decode("utf-8-sig"), newline="")
        except UnicodeDecodeError as error:
            raise InvalidValueError(f"the body is not UTF-8: {error}") from None
        return OverridesForm(overrides=[], **request.parameters), *read_overrides(lines, is_csv=is_csv)
    form = msgspec.structs.replace(_read_bulk(request.body, request.packed), **request.parameters)
    limits = {check_subject(row.subject): row.limits for row in form.overrides}
    if len(limits) < len(form.overrides):
        raise InvalidValueError("a subject is there twice; give it once")
    return form, limits, {row.subject: row.granularity for row in form.overrides if row.granularity is not None}


def _change_of(request: Request) -> _Change:
    return _Change(who=request.parameters.get("who", WHO), if_version=_version_of(request.parameters, "if_version"))


def _version_of(named: dict[str, str], parameter: str) -> int | None:
    """The version that a parameter of the query says, if it is there."""
    version = number_of(named.get(parameter, ""), 15)  # as many digits as any has
    if version is None and parameter in named:
        raise InvalidValueError(f"{parameter} is the number of a version")
    return version


def _facts_of(policy: Policy) -> PolicyFacts:
    every = {"name": policy.name} | every_key(policy)
    return cast("PolicyFacts", {key: every[key] for key in PolicyFacts.__annotations__})


def _check_found(there: object, what: str) -> None:
    if not there:
        raise Problem(HTTPStatus.NOT_FOUND, f"no {what}")


def _override_under(policy: str) -> str:
    return f"override of this subject under policy {quoted(policy)}"
