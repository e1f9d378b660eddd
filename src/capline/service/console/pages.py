"""The console's pages and what their forms do; `routes` has the paths, each module what a page asks.

A page is a view, plain values, in a template; a form is a POST that leads back to its page. An error is a page too.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from capline.model.errors import CaplineError
from capline.service.access.guard import check_role
from capline.service.console import campaigns, compose, segments, settings, subject, suggest
from capline.service.console.compose import Composing
from capline.service.console.overview import Overview, chart
from capline.service.console.render import files, link, moved, problem_page, shown, wants_json
from capline.service.console.segments import SegmentPages
from capline.service.console.sessions import READ, Caller, Sessions, check_form
from capline.service.console.settings import A_PAGE, SettingsPages
from capline.service.console.subject import SubjectPage
from capline.service.console.suggest import SuggestPages
from capline.service.console.verbs import Verbs
from capline.service.http.app import AUDIENCE_BYTES, Reply, Route
from capline.service.http.forms import query_of
from capline.service.http.multipart import Multipart
from capline.service.http.problems import Problem, problem_of
from capline.service.record.counted import SPANS
from capline.service.record.instances import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.policies.segments import SegmentSource
    from capline.service.access.guard import Guard
    from capline.service.console.history import History
    from capline.service.http.app import Request
    from capline.service.metrics.registry import Metrics

    Asked = dict[str, str]
    Faults = dict[str, str]
    """What is wrong with what was typed, by its field."""
    Answer = Reply | tuple[str, dict[str, Any], dict[str, Any]]
    """A template, its view, and what only the template needs; in that too a `status` other than 200."""
    Handler = Callable[[Request], Awaitable[Reply]]

TOP = "/console"
SUBJECT, CAMPAIGNS, CAMPAIGN = f"{TOP}/subject", f"{TOP}/campaigns", f"{TOP}/campaign"
COMPOSE, UPLOAD, WAITING = (f"{CAMPAIGNS}/{name}" for name in ("new", "audience", "waiting"))
POLICIES, POLICY, TRY, LIMITED, SEGMENTS, AUDIT = (
    f"{TOP}/{name}" for name in ("policies", "policy", "try", "limited", "segments", "audit")
)
LINK = f"{TOP}/link"
_FORM_BYTES = 8192
_OF_CHANGE = (*settings.TYPED, "shadow", "reason")
_OF_UPLOAD = ("forgery", "typed", "column", "replaces")
_AT_ONCE = 4
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
_DONE = {
    "refunded": "It is given back: others may use it now.",
    "not refunded": "Nothing is given back: it was given back before, or no limit counts it any more.",
    "erased": "The subject is forgotten.",
    "overridden": "It has limits of its own for a while.",
    "set": "These limits are in force.",
    "rolled": "It is served; other instances follow within seconds.",
    "conflict": "It was changed meanwhile: look at what is in force now, and decide again.",
    "uploaded": "The file is uploaded; each row has an id.",
    "begun": "It is begun: workers send it when it is due.",
    "pause": "Nothing more of it is sent until it is resumed.",
    "resume": "It goes on.",
    "cancel": "It is cancelled.",
    "retry-failed": "Those whose message failed are asked again.",
}
"""What a page says after a form has brought one back to it."""
_NAV = (
    ("Overview", TOP),
    ("Policies", POLICIES),
    ("Limited", LIMITED),
    ("Campaigns", CAMPAIGNS),
    ("Segments", SEGMENTS),
    ("Audit", AUDIT),
)


class Console:
    """The pages over these routes of the service; `follow` keeps their history while it runs."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        limiter: AsyncLimiter,
        source: SegmentSource | None,
        metrics: Metrics,
        guard: Guard | None,
        *,
        history: History,
        secure: bool = False,
        messages: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.verbs = Verbs(routes)
        self._sessions = Sessions(guard, secure=secure)
        self._overview = Overview(limiter, source, metrics, history, self.verbs)
        self._subjects = SubjectPage(self.verbs)
        self._to_come = campaigns.ToCome(self.verbs)
        self._composing = Composing(self.verbs, messages or {})
        self._has_configuration = limiter.configuration is not None
        self._settings = SettingsPages(self.verbs, self._overview, has_store=self._has_configuration)
        self._suggesting = SuggestPages(self.verbs, self._settings)
        self._segment_pages = SegmentPages(self.verbs, is_here=source is not None)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self.follow = history.follow

    def routes(self) -> dict[str, Route]:
        """The routes: who may ask is looked up here, since a browser is led to the sign-in."""

        def route(**handlers: Any) -> Route:
            return Route(handlers, _FORM_BYTES if "POST" in handlers else 0, types=None, roles=())

        pages = {
            "/": route(GET=_to_the_top),
            TOP: route(GET=self._page(self._home, "over")),
            SUBJECT: route(GET=self._page(self._subject, "id", "after")),
            f"{SUBJECT}/refund": route(POST=self._form(self._refund, "id", "policy", "hit", "units")),
            f"{SUBJECT}/erase": route(POST=self._form(self._erase, "id")),
            f"{SUBJECT}/override": route(POST=self._form(self._override, "id", "policy", "limits", "hours")),
            POLICIES: route(GET=self._page(self._policies, "contains", "after")),
            POLICY: route(GET=self._page(self._policy, "name", "after", of=POLICIES)),
            TRY: route(GET=self._page(self._try, "name", *_OF_CHANGE, of=POLICIES)),
            f"{TRY}/set": route(POST=self._form(self._set, "name", *_OF_CHANGE, "version")),
            f"{TOP}/suggest": route(GET=self._page(self._suggest, "name", *suggest.TYPED, of=POLICIES)),
            LIMITED: route(GET=self._page(self._limited, "policy")),
            SEGMENTS: route(GET=self._page(self._segments, "left", "right")),
            f"{SEGMENTS}/rollback": route(POST=self._form(self._rollback, "version", "current")),
            AUDIT: route(GET=self._page(self._audit, "before")),
            CAMPAIGNS: route(GET=self._page(self._list_campaigns, "after")),
            WAITING: route(GET=self._page(self._waiting, "history", "after", of=CAMPAIGNS, asks=campaigns.CONFLICTS)),
            CAMPAIGN: route(GET=self._page(self._campaign, "name", of=CAMPAIGNS, asks=campaigns.ONE)),
            f"{TOP}/response": route(GET=self._page(self._response, "name", of=CAMPAIGNS, asks=campaigns.RESPONSE)),
            COMPOSE: route(
                GET=self._page(self._compose, *compose.TYPED, of=CAMPAIGNS),
                POST=self._form(self._begin, *compose.TYPED, "key"),
            ),
            UPLOAD: Route({"POST": self._answer(self._upload)}, AUDIENCE_BYTES, types=None, roles=(), streamed=True),
            f"{TOP}/sign-in": route(GET=self._sign_in_page, POST=self._sign_in),
            LINK: route(GET=self._follow, POST=self._link),
            f"{TOP}/sign-out": route(POST=self._answer(self._sign_out)),
        }
        steered = {
            f"{CAMPAIGN}/{action}": route(POST=self._form(partial(self._steer, action), "name"))
            for action in campaigns.ACTIONS
        }
        return pages | steered | {path: route(GET=_file(kind, data)) for path, (kind, data) in files().items()}

    def _page(
        self, page: Callable[[Caller, Asked], Awaitable[Answer]], *fields: str, of: str = "", asks: str = ""
    ) -> Handler:
        """Of a query with these fields, and what was done by a form that led here.

        A page of one name leads to the list `of` them if there is no name, or if the service has not what it `asks`.
        """

        async def answer(request: Request, caller: Caller) -> Answer:
            asked = query_of(request.query, (*fields, "done"))
            if of and (("name" in fields and not asked.get("name")) or (asks and not self.verbs.has(asks))):
                return moved(of)
            told = await page(caller, asked)
            if not isinstance(told, Reply):
                told[2].update(done=_DONE.get(asked.get("done", "")), section=of)
            return told

        return self._answer(answer)

    def _form(self, act: Callable[[Caller, Asked], Awaitable[Answer]], *fields: str) -> Handler:
        async def answer(request: Request, caller: Caller) -> Answer:
            form = query_of(request.body, ("forgery", *fields))
            check_form(request, caller, form.get("forgery", ""))
            return await act(caller, form)

        return self._answer(answer)

    def _answer(self, act: Callable[[Request, Caller], Awaitable[Answer]]) -> Handler:
        async def answer(request: Request) -> Reply:
            caller: Caller | None = None
            try:
                caller = await self._sessions.caller(request)
                if caller is None:
                    return self._unknown(request)
                check_role(caller.token, READ)
                async with self._turns:
                    told = await act(request, caller)
                    return told if isinstance(told, Reply) else self._shown(request, caller, *told)
            except (Problem, CaplineError) as error:
                return self._problem(request, caller, error)

        return answer

    def _unknown(self, request: Request) -> Reply:
        if wants_json(request):
            raise Problem(HTTPStatus.UNAUTHORIZED, "who asks? send Authorization: Bearer, and a token")
        there = request.path + (b"?" + request.query if request.query else b"")
        return moved(self._sign_in_at(there.decode("latin-1") if request.method != "POST" else TOP))

    @staticmethod
    def _sign_in_at(then: str) -> str:
        return f"{TOP}/sign-in?{urlencode({'then': then})}"

    def _problem(self, request: Request, caller: Caller | None, error: Problem | CaplineError) -> Reply:
        problem = error if isinstance(error, Problem) else problem_of(error)
        page = problem_page(request, problem, **self._around(request, caller))
        if page is None:
            raise problem
        return page

    def _shown(
        self, request: Request, caller: Caller | None, template: str, view: dict[str, Any], around: dict[str, Any]
    ) -> Reply:
        status = around.pop("status", 200)
        return shown(request, template, view, status=status, **around, **self._around(request, caller))

    def _around(self, request: Request, caller: Caller | None) -> dict[str, Any]:
        sees_segments = not caller or self.verbs.may(caller.token, "GET", segments.LIST)
        nav = _NAV if sees_segments else [page for page in _NAV if page[1] != SEGMENTS]
        return {"who": caller, "has_tokens": self._sessions.has_tokens, "nav": nav, "path": request.route}

    # --- signing in ---------------------------------------------------------------------------------------------

    async def _sign_in_page(self, request: Request) -> Reply:
        return self._asked_in(request, query_of(request.query, ("then",)).get("then", TOP))

    def _asked_in(self, request: Request, then: str, problem: Problem | None = None) -> Reply:
        view = {"then": then, "detail": str(problem or "")}
        return self._shown(request, None, "sign_in.html", view, {"status": problem.status.value if problem else 200})

    async def _sign_in(self, request: Request) -> Reply:
        form = query_of(request.body, ("name", "secret", "then"))
        then = form.get("then", "")
        try:
            cookie = await self._sessions.sign_in(request, form.get("name", "").strip(), form.get("secret", "").strip())
        except Problem as problem:
            return self._asked_in(request, then, problem)
        here = then == TOP or then.startswith((f"{TOP}/", f"{TOP}?"))
        return moved(then if here and then.isprintable() and then.isascii() else TOP, {"Set-Cookie": cookie})

    async def _link(self, request: Request) -> Reply:
        """For who has a token in a terminal, and wants a browser to be signed in."""
        return Reply(msgspec.json.encode({"link": link(LINK, key=await self._sessions.link(request))}), status=201)

    async def _follow(self, request: Request) -> Reply:
        key = query_of(request.query, ("key",)).get("key", "")
        if request.method == "HEAD":  # of a preview, which must not use it up
            return moved(TOP)
        try:
            return moved(TOP, {"Set-Cookie": self._sessions.follow(request, key)})
        except Problem as problem:
            return self._asked_in(request, TOP, problem)

    async def _sign_out(self, request: Request, caller: Caller) -> Reply:
        check_form(request, caller, query_of(request.body, ("forgery",)).get("forgery", ""))
        return moved(f"{TOP}/sign-in", {"Set-Cookie": self._sessions.sign_out(request)})

    # --- pages --------------------------------------------------------------------------------------------------

    async def _home(self, caller: Caller, asked: Asked) -> Answer:
        view = await self._overview.view(asked.get("over", "hour"), caller.token)
        return (
            "overview.html",
            view,
            {
                "chart": chart(view),
                "spans": SPANS,
                "kinds": KINDS,
                "kind_heads": [f".{kind.capitalize()}" for kind in KINDS],
            },
        )

    async def _subject(self, caller: Caller, asked: Asked, faults: Faults | None = None) -> Answer:
        word = asked.get("id", "")
        word = word if word.startswith("s:") else word.strip()
        if not word:
            return "find.html", {}, {}
        view = await self._subjects.view(caller.token, word, asked.get("after"))
        may = {
            "refund": self._may(caller, "POST", subject.REFUND),
            "erase": self._may(caller, "DELETE", subject.PATH),
            "override": self._has_configuration and self._may(caller, "PUT", subject.OVERRIDE),
        }
        view["faults"] = faults or {}
        first = next((policy["policy"] for policy in view["policies"]), "")
        return (
            "subject.html",
            view,
            {
                "may": may,
                "drawings": [subject.drawn(policy) for policy in view["policies"]],
                "form": {"policy": first, "limits": "", "hours": "24"} | (asked if faults else {}),
                "status": 422 if faults else 200,
                "done": None,
            },
        )

    def _may(self, caller: Caller, method: str, path: str) -> bool:
        return caller.changes and self.verbs.may(caller.token, method, path)

    async def _refund(self, caller: Caller, form: Asked) -> Reply:
        words = (form.get(name, "") for name in ("id", "policy", "hit", "units"))
        is_refunded = await self._subjects.refund(caller.token, *words)
        return moved(link(SUBJECT, id=form["id"], done="refunded" if is_refunded else "not refunded"))

    async def _erase(self, caller: Caller, form: Asked) -> Reply:
        await self._subjects.erase(caller.token, form.get("id", ""))
        return moved(link(SUBJECT, id=form["id"], done="erased"))

    async def _override(self, caller: Caller, form: Asked) -> Answer:
        words = (form.get(name, "") for name in ("id", "policy", "limits", "hours"))
        faults = await self._subjects.override(caller.token, *words)
        if faults:
            return await self._subject(caller, form, faults)
        return moved(link(SUBJECT, id=form["id"], done="overridden"))

    async def _list_campaigns(self, caller: Caller, asked: Asked) -> Answer:
        view: dict[str, Any] = {"is_here": self.verbs.has(campaigns.LIST), "campaigns": [], "next": None}
        if view["is_here"]:
            view |= await self.verbs(caller.token, "GET", campaigns.LIST, after=asked.get("after"), limit=A_PAGE)
        may = {
            "may_compose": self._may(caller, "POST", compose.CREATE),
            "may_wait": self.verbs.may(caller.token, "GET", campaigns.CONFLICTS),
        }
        return "campaigns.html", view, {"after": asked.get("after"), **may}

    async def _waiting(self, caller: Caller, asked: Asked) -> Answer:
        view = await self._to_come.view(caller.token, asked.get("after"), asked.get("history", "false"))
        return "waiting.html", view, {"days": groupby(view["campaigns"], key=lambda each: each["due"][:10])}

    async def _compose(self, caller: Caller, typed: Asked) -> Answer:
        return self._composed(caller, await self._composing.view(caller.token, typed))

    async def _upload(self, request: Request, caller: Caller) -> Answer:
        form = Multipart(request.headers, request.pieces())
        said: dict[str, str] = {}
        while (part := await form.part()) and part[1] is None:
            said[part[0]] = await form.text()
            if len(said) > len(_OF_UPLOAD) or part[0] not in _OF_UPLOAD:
                raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "this form has other fields")
        check_form(request, caller, said.get("forgery", ""))
        typed = query_of(said.get("typed", "").lstrip("?").encode(), (*compose.TYPED, "done"))
        named, faults = await self._composing.upload(
            caller.token, {"message": typed.get("message", ""), **said}, (part and part[1]) or "", form.file
        )
        if not faults:
            return moved(link(COMPOSE, **(typed | named | {"done": "uploaded"})))
        return self._composed(caller, await self._composing.view(caller.token, typed, faults), status=422)

    async def _begin(self, caller: Caller, form: Asked) -> Answer:
        faults = await self._composing.begin(caller.token, form, form.get("key", ""))
        if not faults:
            return moved(link(CAMPAIGN, name=form["campaign"].strip(), done="begun"))
        return self._composed(caller, await self._composing.view(caller.token, form, faults), status=422)

    def _composed(self, caller: Caller, view: dict[str, Any], **around: Any) -> Answer:
        around = {"drawn": campaigns.drawn, "key": secrets.token_hex(16), "done": None} | around
        around["may_upload"] = self._may(caller, "PUT", compose.UPLOAD)
        around["typed"] = urlencode({name: word for name, word in view["form"].items() if word})
        return "compose.html", view, around

    async def _campaign(self, caller: Caller, asked: Asked) -> Answer:
        from capline.campaign.store.protocol import SILENT_S  # noqa: PLC0415 - few services have campaigns

        view = await self.verbs(caller.token, "GET", campaigns.ONE, asked["name"])
        return (
            "campaign.html",
            view,
            {
                "actions": campaigns.actions(self.verbs, caller.token, view) if caller.changes else [],
                "drawn": campaigns.drawn,
                "at": time.time(),
                "silent_s": SILENT_S,
                "has_response": self.verbs.has(campaigns.RESPONSE),
            },
        )

    async def _response(self, caller: Caller, asked: Asked) -> Answer:
        told, why_not = await self.verbs.or_why(caller.token, "GET", campaigns.RESPONSE, asked["name"])
        return "response.html", {"campaign": asked["name"], "why_not": why_not, **(told or {})}, {}

    async def _steer(self, action: str, caller: Caller, form: Asked) -> Reply:
        if not self.verbs.has(campaigns.ONE):
            raise Problem(HTTPStatus.NOT_FOUND, "this service has no campaign store")
        await self.verbs(caller.token, "POST", f"{campaigns.ONE}/{action}", form.get("name", ""))
        return moved(link(CAMPAIGN, name=form["name"], done=action))

    async def _policies(self, caller: Caller, asked: Asked) -> Answer:
        view = await self._settings.policies(caller.token, asked.get("contains"), asked.get("after"))
        return "policies.html", view, {"contains": asked.get("contains", "")}

    async def _policy(self, caller: Caller, asked: Asked) -> Answer:
        return "policy.html", await self._settings.policy(caller.token, asked["name"], asked.get("after")), {}

    async def _try(self, caller: Caller, typed: Asked, faults: Faults | None = None) -> Answer:
        view = await self._settings.tried(caller.token, typed["name"], typed, faults or {})
        may_set = "version" in view["policy"] and self._may(caller, "PUT", settings.ONE)
        return "try.html", view, {"may_set": may_set, "status": 422 if view["faults"] else 200, "done": None}

    async def _suggest(self, caller: Caller, asked: Asked) -> Answer:
        typed = {name: word for name, word in asked.items() if name in suggest.TYPED}
        return "suggest.html", await self._suggesting.view(caller.token, asked["name"], typed), {"curve": suggest.curve}

    async def _set(self, caller: Caller, form: Asked) -> Answer:
        name = form.setdefault("name", "")
        faults = await self._settings.change(caller.token, name, form)
        if not faults:
            return moved(link(POLICY, name=name, done="set"))
        if "version" not in faults:
            return await self._try(caller, form, faults)
        typed = {key: form.get(key, "") for key in _OF_CHANGE}
        return moved(link(TRY, name=name, **typed, done="conflict"))

    async def _limited(self, caller: Caller, asked: Asked) -> Answer:
        policy = asked.get("policy") or None
        told, why_not = await self.verbs.or_why(caller.token, "GET", settings.LIMITED, policy=policy)
        return "limited.html", {"is_here": not why_not, **(told or {"policies": []})}, {"policy": policy}

    async def _segments(self, caller: Caller, asked: Asked) -> Answer:
        view = await self._segment_pages.view(caller.token, asked.get("left", ""), asked.get("right", ""))
        return "segments.html", view, {"may_roll_back": self._may(caller, "POST", segments.ROLLBACK)}

    async def _rollback(self, caller: Caller, form: Asked) -> Reply:
        words = form.get("version", ""), form.get("current", "")
        is_done = await self._segment_pages.rollback(caller.token, *words)
        return moved(link(SEGMENTS, done="rolled" if is_done else "conflict"))

    async def _audit(self, caller: Caller, asked: Asked) -> Answer:
        query = {"before": asked.get("before"), "limit": A_PAGE}
        told, why_not = await self.verbs.or_why(caller.token, "GET", "/v1/commits", **query)
        return "audit.html", {"is_here": not why_not, **(told or {"commits": [], "next": None})}, {}


async def _to_the_top(_request: Request) -> Reply:
    return moved(TOP)


def _file(kind: str, data: bytes) -> Handler:
    async def answer(_request: Request) -> Reply:
        return Reply(data, _FOREVER, type=kind)

    return answer
