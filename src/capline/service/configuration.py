"""The configuration over HTTP: policies, overrides, their versions; who changes what.

    GET | PUT | DELETE  /v1/policies/{name}              /v1/overrides/{policy}/{subject}
    GET | PATCH         /v1/overrides/{policy}           a page of them; many at once
    GET                 …/versions
    POST                …/rollback {"version": n}

A change is at once in force in this process, and elsewhere within two seconds. Without a configuration store policies
are read only, and there are no overrides: 409 says so. The store is asked in a thread, as its client blocks.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict, get_type_hints

import msgspec
from prometheus_client.core import GaugeMetricFamily

from capline.config.document import document_of, own_facts, policy_of
from capline.config.open import open_backend
from capline.config.shown import entry_facts
from capline.limiter.rules import DEFAULT_NAMESPACE
from capline.model.errors import InvalidValueError, NoStoreError, quoted
from capline.model.policy import ALGORITHMS, LAYOUTS, check_no_replicas
from capline.model.subject import Subject, check_subject, parse_subject, subject_text
from capline.service import answers
from capline.service.forms import Reader, SubjectForm, described_as, number_of, query_of, subject_of, word_of
from capline.service.http import BATCH_BYTES, ONE_BODY_BYTES, Reply, Request, Route
from capline.service.problems import Problem
from capline.service.segments import MEMBERS, page_limit
from capline.store.redis.io.url import parse_url, server_schemes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from capline.config.configuration import Configuration
    from capline.config.records import Entry
    from capline.limiter.aio import AsyncLimiter
    from capline.model.policy import Policy

__all__ = ["ConfigurationMetrics", "check_address", "configuration_routes", "configuration_state"]

WHO = "http"
"""The author of a change that names none."""
ADMIN = ("admin",)
_LATE = (
    "a process that does not reach the configuration store until then follows late: one whose "
    "capline_config_known_version is lower has not heard of it"
)


_Version = Annotated[int, described_as(minimum=0)]


class _Change(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    who: str = WHO
    effective_at: Annotated[str, described_as(format="date-time")] | None = None
    if_version: _Version | None = None


class PolicyForm(_Change, forbid_unknown_fields=True, kw_only=True):
    """A policy as a policy file writes it, and when it is to be in force."""

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
    granularity: str | msgspec.UnsetType | None = msgspec.UNSET

    def document(self) -> dict[str, Any]:
        """The policy itself, without its author and times."""
        every = msgspec.structs.asdict(self)
        apart = _Change.__struct_fields__
        return {key: value for key, value in every.items() if key not in apart and value is not msgspec.UNSET}


class OverrideForm(_Change, forbid_unknown_fields=True, kw_only=True):
    """Limits of one subject; `granularity` is of a `bucketed` policy."""

    limits: list[str]
    granularity: str | None = None


class OverrideRow(msgspec.Struct, forbid_unknown_fields=True):
    """A subject and its limits; null removes them."""

    subject: SubjectForm
    limits: list[str] | None
    granularity: str | None = None


class OverridesForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Limits of many subjects; others stay as they are."""

    overrides: list[OverrideRow]
    who: str = WHO
    effective_at: Annotated[str, described_as(format="date-time")] | None = None


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
    """What a subject's own limits were, null where there were none; a `granularity` where it had one."""

    limits: list[str] | None
    granularity: NotRequired[str]


class PolicyVersions(TypedDict):
    """Versions, newest first."""

    versions: list[PolicyVersion]


class OverrideVersions(TypedDict):
    """Versions, newest first."""

    versions: list[OverrideVersion]


class OverrideNow(OverrideVersion):
    """A subject's own limits now, and what they will be at `effective_at`."""

    policy: str
    subject: Subject
    next: list[str] | None
    next_granularity: NotRequired[str]


class OverridesPage(TypedDict):
    """Overrides of a policy; `next` is sent back as `after`, until it is null."""

    overrides: list[OverrideNow]
    next: str | None


PolicyNow = msgspec.defstruct(
    "PolicyNow",
    [
        ("name", str),
        *(
            (key, kind | msgspec.UnsetType, msgspec.UNSET)
            for key, kind in get_type_hints(answers.PolicyFacts).items() | get_type_hints(VersionFacts).items()
            if key != "name"
        ),
        ("next", dict[str, Any] | None | msgspec.UnsetType, msgspec.UNSET),
        ("missing_segments", list[str] | msgspec.UnsetType, msgspec.UNSET),
    ],
    namespace={
        "__doc__": "A policy in force, its version where a store has it, and what it will be at `effective_at`."
    },
)


def configuration_routes(limiter: AsyncLimiter, *, local: bool = False) -> dict[str, Route]:
    """The paths of one policy and of overrides; `local` as of `api.routes`."""
    of = _Paths(limiter, local=local)
    changed = ("who", "if_version")
    return {
        "/v1/policies/{name}": Route(
            {"GET": of.policy, "PUT": of.set_policy, "DELETE": of.delete_policy},
            ONE_BODY_BYTES,
            takes=PolicyForm,
            gives={"GET": PolicyNow, "PUT": Changed, "DELETE": Changed},
            query={"DELETE": changed},
        ),
        "/v1/policies/{name}/versions": Route({"GET": of.policy_versions}, gives=PolicyVersions),
        "/v1/policies/{name}/rollback": Route(
            {"POST": of.roll_back_policy}, ONE_BODY_BYTES, roles=ADMIN, takes=RollbackForm, gives=Changed
        ),
        "/v1/overrides/{policy}": Route(
            {"GET": of.overrides, "PATCH": of.set_overrides},
            BATCH_BYTES,
            takes=OverridesForm,
            gives={"GET": OverridesPage, "PATCH": Changed},
            query={"GET": ("after", "limit")},
        ),
        "/v1/overrides/{policy}/{subject}": Route(
            {"GET": of.override, "PUT": of.set_override, "DELETE": of.delete_override},
            ONE_BODY_BYTES,
            takes=OverrideForm,
            gives={"GET": OverrideNow, "PUT": Changed, "DELETE": Changed},
            query={"DELETE": changed},
        ),
        "/v1/overrides/{policy}/{subject}/versions": Route({"GET": of.override_versions}, gives=OverrideVersions),
        "/v1/overrides/{policy}/{subject}/rollback": Route(
            {"POST": of.roll_back_override}, ONE_BODY_BYTES, roles=ADMIN, takes=RollbackForm, gives=Changed
        ),
    }


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


class ConfigurationMetrics:
    """Gauges of the configuration that this process serves, read on demand."""

    def __init__(self, registry: CollectorRegistry, configuration: Configuration) -> None:
        self._configuration = configuration
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """For the registry."""
        figures = self._configuration.stats()
        for name, what in (
            ("up", "Whether the configuration store answered when it was last asked."),
            ("version", "The version of the configuration in force."),
            ("stale_seconds", "Seconds since the configuration store last answered; 0 while it answers."),
            ("policies", "Policies in the configuration."),
            ("overrides", "Overrides in the configuration."),
        ):
            yield GaugeMetricFamily(f"capline_config_{name}", what, value=figures[name])


class _Paths:
    def __init__(self, limiter: AsyncLimiter, *, local: bool) -> None:
        self._limiter, self._local = limiter, local
        self._policy = Reader(PolicyForm, has_maps=True)
        self._override, self._rollback = Reader(OverrideForm), Reader(RollbackForm)
        self._overrides = Reader(OverridesForm, has_maps=True)

    async def policy(self, request: Request) -> Reply:
        """A policy, its version, and what it will be at an instant to come."""
        query_of(request.query, ())
        name = word_of(request.names[0])
        configuration = self._limiter.configuration
        policy = self._limiter.policies.get(name)
        entry = None if configuration is None else configuration.view.entries.get(name)
        if policy is None and (entry is None or entry.value is None):
            raise _nothing(f"no policy {quoted(name)}")
        body: dict[str, Any] = {"name": name} if policy is None else {**answers.policy(policy)}
        if missing := self._limiter.missing_segments.get(name):
            body["missing_segments"] = missing
        if entry is not None and configuration is not None:
            next_value: Policy | None = entry.value
            is_next = entry.effective_us > configuration.view.now_us()
            body |= entry_facts(entry)
            body["next"] = document_of(next_value) if is_next and next_value is not None else None
        return Reply(body)

    async def policy_versions(self, request: Request) -> Reply:
        """What the policy was, newest first, and who changed it."""
        query_of(request.query, ())
        name = word_of(request.names[0])
        entries = await asyncio.to_thread(self._store().policy_versions, name)
        if not entries:
            raise _nothing(f"no policy {quoted(name)}")
        return Reply({"versions": [{**entry_facts(entry), "policy": entry.value} for entry in entries]})

    async def set_policy(self, request: Request) -> Reply:
        """Make or change a policy."""
        form: PolicyForm = self._policy(request.body, request.packed)
        policy = policy_of(word_of(request.names[0]), form.document())
        if self._local:
            check_no_replicas(policy)
        who = _who(request, form.who)
        return await self._changed(
            lambda: self._store().set_policies(
                [policy], who=who, effective_at=form.effective_at, if_version=form.if_version
            ),
            form.effective_at,
        )

    async def delete_policy(self, request: Request) -> Reply:
        """Delete a policy; its logs stay until they expire."""
        name = word_of(request.names[0])
        who, if_version = _of_query(request)
        configuration = self._limiter.configuration
        entry = None if configuration is None else configuration.view.entries.get(name)
        if name not in self._limiter.policies and (entry is None or entry.value is None):
            raise _nothing(f"no policy {quoted(name)}")
        return await self._changed(lambda: self._store().delete_policy(name, who=who, if_version=if_version))

    async def roll_back_policy(self, request: Request) -> Reply:
        """Make the policy what it was at a version."""
        name = word_of(request.names[0])
        form: RollbackForm = self._rollback(request.body, request.packed)
        who = _who(request, form.who)
        return await self._changed(lambda: self._store().roll_back_policy(name, form.version, who=who))

    async def overrides(self, request: Request) -> Reply:
        """The overrides of a policy, page by page."""
        named = query_of(request.query, ("after", "limit"))
        policy, configuration = word_of(request.names[0]), self._store()
        limit = page_limit(named["limit"]) if "limit" in named else MEMBERS
        after = parse_subject(named["after"]) if "after" in named else None
        # One more than is shown says whether there is a next page.
        page = await asyncio.to_thread(lambda: [*islice(configuration.overrides(policy, after), limit + 1)])
        now_us = configuration.view.now_us()
        following = subject_text(page[limit - 1][0]) if len(page) > limit else None
        return Reply({"overrides": [_now(policy, *one, now_us) for one in page[:limit]], "next": following})

    async def set_overrides(self, request: Request) -> Reply:
        """Give many subjects limits of their own, or the policy's again."""
        form: OverridesForm = self._overrides(request.body, request.packed)
        policy, who = word_of(request.names[0]), _who(request, form.who)
        wanted = {check_subject(one.subject): one.limits for one in form.overrides}
        spans = {one.subject: one.granularity for one in form.overrides if one.granularity is not None}
        if len(wanted) < len(form.overrides):
            raise InvalidValueError("a subject is there twice; give it once")
        return await self._changed(
            lambda: self._store().override_many(
                policy, wanted, granularity=spans, who=who, effective_at=form.effective_at
            ),
            form.effective_at,
        )

    async def override(self, request: Request) -> Reply:
        """The limits that a subject has of its own."""
        query_of(request.query, ())
        policy, subject = _override(request)
        configuration = self._store()
        entries = await asyncio.to_thread(configuration.override_versions, policy, subject)
        now_us = configuration.view.now_us()
        if not entries or (entries[0].value is None and entries[0].at(now_us) is None):
            raise _nothing(f"no override of this subject under policy {quoted(policy)}")
        return Reply(_now(policy, subject, entries[0], now_us))

    async def override_versions(self, request: Request) -> Reply:
        """What the subject's own limits were, newest first, and who changed them."""
        query_of(request.query, ())
        policy, subject = _override(request)
        entries = await asyncio.to_thread(self._store().override_versions, policy, subject)
        if not entries:
            raise _nothing(f"no override of this subject under policy {quoted(policy)}")
        return Reply({"versions": [{**entry_facts(entry), **own_facts(entry.value)} for entry in entries]})

    async def set_override(self, request: Request) -> Reply:
        """Give a subject limits of its own."""
        policy, subject = _override(request)
        form: OverrideForm = self._override(request.body, request.packed)
        who = _who(request, form.who)
        return await self._changed(
            lambda: self._store().override(
                policy,
                subject,
                form.limits,
                granularity=form.granularity,
                who=who,
                effective_at=form.effective_at,
                if_version=form.if_version,
            ),
            form.effective_at,
        )

    async def delete_override(self, request: Request) -> Reply:
        """Give a subject the policy's limits again."""
        policy, subject = _override(request)
        who, if_version = _of_query(request)
        entry = await asyncio.to_thread(self._store().override_of, policy, subject)
        is_gone = entry is None or (entry.value is None and entry.before is None)
        if is_gone and if_version in (None, 0 if entry is None else entry.version):
            raise _nothing(f"no override of this subject under policy {quoted(policy)}")
        return await self._changed(
            lambda: self._store().override(policy, subject, None, who=who, if_version=if_version)
        )

    async def roll_back_override(self, request: Request) -> Reply:
        """Make the subject's own limits what they were at a version."""
        policy, subject = _override(request)
        form: RollbackForm = self._rollback(request.body, request.packed)
        who = _who(request, form.who)
        return await self._changed(lambda: self._store().roll_back_override(policy, subject, form.version, who=who))

    def _store(self) -> Configuration:
        if self._limiter.configuration is None:
            raise Problem(
                HTTPStatus.CONFLICT,
                "this service has no configuration store; name one: config: in its settings, or --config-store URL",
            )
        return self._limiter.configuration

    async def _changed(self, change: Callable[[], int], effective_at: str | None = None) -> Reply:
        version = await asyncio.to_thread(change)
        return Reply({"version": version} | ({} if effective_at is None else {"note": _LATE}))


def _now(policy: str, subject: Subject, entry: Entry, now_us: int) -> dict[str, Any]:
    later = own_facts(entry.value if entry.effective_us > now_us else None)
    body = {"policy": policy, "subject": subject, **own_facts(entry.at(now_us)), **entry_facts(entry)}
    body["next"] = later["limits"]
    return body | ({"next_granularity": later["granularity"]} if "granularity" in later else {})


def _override(request: Request) -> tuple[str, Subject]:
    policy, subject = request.names
    return word_of(policy), subject_of(subject)


def _who(request: Request, said: str) -> str:
    """Who changes it: the token's name where there are tokens, else what the caller says."""
    return request.who or said


def _of_query(request: Request) -> tuple[str, int | None]:
    named = query_of(request.query, ("who", "if_version"))
    version = number_of(named.get("if_version", ""), 15)  # as many digits as any has
    if version is None and "if_version" in named:
        raise InvalidValueError("if_version is the number of a version")
    return _who(request, named.get("who", WHO)), version


def _nothing(what: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, what)
