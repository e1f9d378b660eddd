"""Tokens for some policies: every operation of the service and every page of its console, for one's own and others."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.e2e.test_console import Visitor
from tests.kit.campaign_store import FACTS, RUN, filled
from tests.kit.cli import CommandLine
from tests.kit.segments import make
from tests.kit.serving import Serving

from capline import AsyncLimiter, Configuration, Policy
from capline.campaign.store.open import open_store
from capline.config.hours import open_hours
from capline.segment import Publisher
from capline.service.access.tokens import TokenFile
from capline.service.console.history import History
from capline.service.console.pages import Console
from capline.service.metrics.registry import Metrics

OWN, OTHER = "mine-a", "promo"
CAMPAIGN = {OWN: "my-sale", OTHER: "sale"}
JSON = {"Accept": "application/json"}
FORM = {"policies": "policies.yaml", "audience": {"csv": "ids.csv"}, "sender": {"file": {"path": "sent/"}}}
SETTINGS = """
record: {keep: 600}
audiences: kept
replies: back
grpc: {listen: '127.0.0.1:0', envoy: [envoy.yaml]}
"""


class Asked(NamedTuple):
    """A request for one policy."""

    path: str = ""
    json: object = None
    params: dict[str, str] | None = None


NOTHING = Asked()


def attempt(policy: str, **more: object) -> dict[str, object]:
    return {"policy": policy, "subject": "u", **more}


def one(**more: object) -> Callable[[str], Asked]:
    return lambda policy: Asked(json=attempt(policy, **more))


def several(**more: object) -> Callable[[str], Asked]:
    return lambda policy: Asked(json={"attempts": [{"policy": OWN, "subject": "v"}, attempt(policy)], **more})


def named(form: object = None) -> Callable[[str], Asked]:
    """The policy is in the path."""
    return lambda policy: Asked(policy, form)


def of_campaign(form: object = None) -> Callable[[str], Asked]:
    return lambda policy: Asked(CAMPAIGN[policy], form)


def composed(policy: str) -> Asked:
    return Asked(json={"campaign": f"new-{policy}", "policy": policy, **FORM})


LIMITS = {"limits": ["7/day"]}
OF_POLICY: dict[str, Callable[[str], Asked]] = {
    "POST /v1/decide": one(),
    "POST /v1/peek": one(),
    "POST /v1/charge": one(),
    "POST /v1/reserve": one(),
    "POST /v1/schedule": one(max_wait=0),
    "POST /v1/usage": one(),
    "POST /v1/settle": one(hit=1, cost=1),
    "POST /v1/commit": one(hit=1),
    "POST /v1/cancel": one(hit=1),
    "POST /v1/refund": one(hit=1),
    "POST /v1/decide/all": several(),
    "POST /v1/schedule/all": several(),
    "POST /v1/refund/all": several(hits=[1, 1]),
    "POST /v1/decide/batch": several(),
    "POST /v1/refund/batch": lambda policy: Asked(json={"policy": policy, "subjects": ["u"], "hits": [1]}),
    "GET /check": lambda policy: Asked(params={"policy": policy, "subject": "w"}),
    "GET /v1/policies/{name}": named(),
    "GET /v1/policies/{name}/versions": named(),
    "PUT /v1/policies/{name}": named({**LIMITS, "reservations": True}),
    "POST /v1/policies/{name}/try": named(LIMITS),
    "POST /v1/policies/{name}/suggest": named({"refuse_at_most": "1%"}),
    "POST /v1/policies/{name}/rollback": lambda policy: Asked(policy, {"version": 1 if policy == OWN else 3}),
    "GET /v1/overrides/{policy}": named(),
    "PATCH /v1/overrides/{policy}": named({"overrides": [{"subject": "u", **LIMITS}]}),
    "GET /v1/overrides/{policy}/{subject}": named(),
    "GET /v1/overrides/{policy}/{subject}/versions": named(),
    "PUT /v1/overrides/{policy}/{subject}": named(LIMITS),
    "POST /v1/overrides/{policy}/{subject}/rollback": lambda policy: Asked(
        policy, {"version": 2 if policy == OWN else 4}
    ),
    "DELETE /v1/overrides/{policy}/{subject}": named(),
    "POST /v1/campaigns": composed,
    "POST /v1/campaigns/plan": composed,
    "GET /v1/campaigns/{name}": of_campaign(),
    "GET /v1/campaigns/{name}/outcomes": of_campaign(),
    "GET /v1/campaigns/{name}/outcomes/{id}": of_campaign(),
    "GET /v1/campaigns/{name}/response": of_campaign(),
    "PATCH /v1/campaigns/{name}": of_campaign({"until": "2099-01-01T00:00:00Z"}),
    "POST /v1/campaigns/{name}/pause": of_campaign(),
    "POST /v1/campaigns/{name}/resume": of_campaign(),
    "POST /v1/campaigns/{name}/cancel": of_campaign(),
    "POST /v1/campaigns/{name}/retry-failed": of_campaign(),
    "DELETE /v1/policies/{name}": named(),
}
"""Asked in this order, as the last change what others look at."""
EMPTY = ("GET /v1/campaigns/{name}/outcomes/{id}", "GET /v1/campaigns/{name}/response", "retry-failed")
"""Nothing of these campaigns was decided, and their file has gone: 404, 409 and 422 are answers that others get too."""
LISTS = (
    *("GET /v1/policies", "GET /v1/subjects/{subject}", "GET /v1/commits", "GET /v1/limited"),
    *("GET /v1/campaigns", "GET /v1/subjects/{subject}/attempts"),
)
OF_NONE = ("GET /v1/subjects/{subject}/messages",)
"""The subject is in no campaign: that it keeps to a scope is shown in test_console.py."""
FOR_ALL = (
    *("DELETE /v1/subjects/{subject}", "POST /json", "POST /v1/outcomes", "GET /v1/campaign-conflicts"),
    "GET /v1/campaign-workers",
    *("GET /v1/audiences", "PUT /v1/audiences/{name}", "DELETE /v1/audiences/{name}"),
    *("GET /v1/segments", "GET /v1/segments/{name}/count", "GET /v1/segments/{name}/contains"),
    *("GET /v1/segments/{name}/members", "POST /v1/segments/of", "POST /v1/segments/evaluate"),
    *("GET /v1/segments/versions", "POST /v1/segments/rollback"),
)
FREE = "GET /healthz", "GET /readyz", "GET /openapi.json", "GET /docs"


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, str]:
    file = TokenFile(tmp_path / "tokens.json", create=True)
    every = ("decide", "read", "compose", "steer", "reply", "admin")
    return {"all": file.create("all", every), "some": file.create("some", every, policies=["mine-*", "later"])}


@pytest.fixture
def service(tmp_path: Path, tokens: dict[str, str]) -> Iterator[Serving]:
    """With all parts, and for each of both policies an override, decisions and a campaign."""
    store = f"lmdb://{tmp_path}/configuration"
    with Configuration(store) as configuration:
        for name in (OWN, OTHER):
            configuration.set_policies([Policy(name, ["3/day"], reservations=True)])
            configuration.override(name, "u", ["5/day"])
    with Publisher(tmp_path / "published") as publisher:
        publisher.publish(make(tmp_path, "v1", active=range(9)), version="v1")
    with closing(open_store(f"sqlite://{tmp_path}/queue.sqlite", make=True)) as queue:
        filled(queue)
        assert queue.begin(replace(RUN, facts=replace(FACTS, campaign=CAMPAIGN[OWN], policy=OWN)))
    (tmp_path / "ids.csv").write_text("id\n1\n", encoding="utf-8")
    (tmp_path / "policies.yaml").write_text("policies: {mine-a: {limits: [3/day]}, promo: {limits: [3/day]}}\n")
    (tmp_path / "envoy.yaml").write_text("domain: api\ndescriptors: []\n", encoding="utf-8")
    (tmp_path / "capline.yaml").write_text(SETTINGS, encoding="utf-8")
    words = (
        "--config-store",
        store,
        "--segments",
        f"{tmp_path}/published",
        "--queue",
        f"sqlite://{tmp_path}/queue.sqlite",
    )
    with Serving(
        tmp_path, "--config", "capline.yaml", "--tokens", "tokens.json", "--store", "memory://", *words
    ) as one:
        for name in (OWN, OTHER):
            for _ in range(6):
                one.client.post("/v1/decide", json=attempt(name), headers=shown(tokens["all"]))
        yield one


def shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def ask(service: Serving, token: str, label: str, asked: Asked = NOTHING) -> Any:
    method, _, path = label.partition(" ")
    for name, word in (("{name}", asked.path or "active"), ("{policy}", asked.path), ("{subject}", "u"), ("{id}", "1")):
        path = path.replace(name, word)
    return service.client.request(method, path, json=asked.json, params=asked.params, headers=shown(token))


def test_every_operation_is_for_ones_own_policies(service: Serving, tokens: dict[str, str]) -> None:
    told = service.client.get("/openapi.json").json()["paths"]
    there = {f"{method.upper()} {path}" for path, methods in told.items() for method in methods}
    assert there == {*OF_POLICY, *LISTS, *OF_NONE, *FOR_ALL, *FREE}, "a new one has its place in one of these"
    for label in LISTS:
        seen, every = (ask(service, tokens[name], label) for name in ("some", "all"))
        assert (seen.status_code, every.status_code) == (200, 200), label
        assert (OTHER in every.text, OTHER in seen.text) == (True, False), label
        assert OWN in seen.text, label
    for label, made in OF_POLICY.items():
        refused = ask(service, tokens["some"], label, made(OTHER))
        said = "token some is for policies mine-*, later, not for promo"
        assert (refused.status_code, refused.json()["detail"]) == (403, said), label
        for token, policy in (("some", OWN), ("all", OTHER)):
            answer = ask(service, tokens[token], label, made(policy))
            assert answer.status_code < 300 or (label.endswith(EMPTY) and answer.status_code in (404, 409, 422)), (
                label,
                answer.text,
            )
    for label in FOR_ALL:
        refused, other = (ask(service, tokens[name], label) for name in ("some", "all"))
        assert (refused.status_code, "needs a token for all policies" in refused.text) == (403, True), label
        assert other.status_code != 403, label
    assert [ask(service, tokens["some"], label).status_code for label in FREE] == [200] * len(FREE)


def test_no_other_form_of_a_request_gets_around_it(service: Serving, tokens: dict[str, str]) -> None:
    client, headers = service.client, shown(tokens["some"])
    for path, form in (
        ("/v1/decide/batch", {"policy": OTHER, "subjects": ["u"]}),
        ("/v1/decide/batch", {"attempts": [attempt(OWN)] * 3000 + [attempt(OTHER)]}),
        ("/v1/decide", attempt(OTHER)),
    ):
        assert client.post(path, json=form, headers=headers).status_code == 403
        packed = {**headers, "Content-Type": "application/msgpack"}
        assert client.post(path, content=msgspec.msgpack.encode(form), headers=packed).status_code == 403
    assert client.get("/check?subject=u", headers={**headers, "X-Capline-Policy": OTHER}).status_code == 403
    for query in (f"policy={OTHER}", f"policy={OTHER}&limit=1"):
        assert client.get(f"/v1/subjects/u?{query}", headers=headers).status_code == 403
    assert client.get(f"/v1/limited?policy={OTHER}", headers=headers).status_code == 403
    assert OTHER not in client.get("/v1/policies?limit=10", headers=headers).text
    assert client.get("/v1/policies/pro%6Do", headers=headers).status_code == 403
    path, own = f"/v1/policies/{OWN}", {"limits": ["9/day"]}
    reached = client.put(path, json={**own, "log": OTHER}, headers=headers)
    assert (reached.status_code, OTHER in reached.text) == (403, True), "by its log it would reach others' hits"
    assert client.put(path, json={**own, "log": "mine-b"}, headers=headers).status_code == 200
    versions: list[int] = []
    for log in (OTHER, OWN):
        changed = client.put(path, json={**own, "log": log, "reservations": True}, headers=shown(tokens["all"])).json()
        assert "version" in changed, changed
        versions.append(changed["version"])
    back = client.post(f"{path}/rollback", json={"version": versions[0]}, headers=headers)
    assert (back.status_code, OTHER in back.text) == (403, True), "nor by the log of an old version"
    plan = {"campaign": "new", "policy": OWN, **FORM}
    planned = client.post("/v1/campaigns/plan", json=plan, headers=headers)
    assert (planned.status_code, planned.json()["conflicts"]) == (200, [])
    for several, status in (([OWN, OTHER], 403), ([OWN, "later"], 422)):  # of which there is none
        assert (
            client.post("/v1/campaigns/plan", json={**plan, "policy": several}, headers=headers).status_code == status
        )
    left = client.get("/v1/policies/promo", headers=shown(tokens["all"])).json()
    assert (left["limits"], left["version"]) == (["3/day"], 3)


def test_a_receipt_taken_by_one_token_hinders_no_other(service: Serving, tokens: dict[str, str]) -> None:
    form = {"policy": OWN, "subjects": ["v"], "receipt": "night-1"}
    hits: list[object] = []
    for name, policy in (("some", OWN), ("all", OTHER), ("some", OWN), ("all", OTHER)):
        answer = service.client.post("/v1/decide/batch", json={**form, "policy": policy}, headers=shown(tokens[name]))
        assert (answer.status_code, answer.json().get("errors")) == (200, {}), answer.text
        hits.append(answer.json()["hit"])
    assert hits[:2] == hits[2:], "and each counts once"


SEEN = {"id": "u", "name": OWN}
PAGES: dict[str, dict[str, str] | None] = {
    "": {},
    "/subject": {"id": "u"},
    "/policies": {},
    "/policy": {"name": OWN},
    "/try": {"name": OWN, "limits": "1/day"},
    "/suggest": {"name": OWN, "refuse_at_most": "1%"},
    "/limited": {},
    "/audit": {},
    "/campaigns": {},
    "/campaigns/waiting": None,
    "/campaigns/new": {},
    "/campaign": {"name": CAMPAIGN[OWN]},
    "/response": {"name": CAMPAIGN[OWN]},
    "/segments": None,
}
"""What of one's own they show; None is what is of all policies."""
OTHERS = {
    "policy": OTHER,
    "try": OTHER,
    "suggest": OTHER,
    "campaign": CAMPAIGN[OTHER],
    "response": CAMPAIGN[OTHER],
    "limited": OTHER,
}
FORMS: dict[str, dict[str, str]] = {
    "/subject/refund": {"id": "u", "policy": OTHER, "hit": "1", "units": "1"},
    "/subject/erase": {"id": "u"},
    "/subject/override": {"id": "u", "policy": OTHER, "limits": "9/day", "hours": "1"},
    "/try/set": {"name": OTHER, "limits": "9/day", "version": "3", "reason": "why"},
    "/segments/rollback": {"version": "v1", "current": "v1"},
    **{f"/campaign/{action}": {"name": CAMPAIGN[OTHER]} for action in ("pause", "resume", "cancel", "retry-failed")},
}


async def test_every_page_and_form_of_the_console_is_known_here() -> None:
    hours = open_hours("memory://", 3600)
    async with AsyncLimiter("memory://") as limiter:
        metrics = Metrics()
        routes = Console({}, limiter, None, metrics, None, history=History(metrics, hours)).routes()
    there = {path.removeprefix("/console") for path in routes if path.startswith("/console") and "." not in path}
    assert there == {*PAGES, *FORMS, "/campaigns/audience", "/sign-in", "/sign-out", "/link"}


def test_a_session_shows_what_its_token_is_for(service: Serving, tokens: dict[str, str]) -> None:
    with Visitor(service) as some, Visitor(service) as every:
        some.sign_in(tokens["some"])
        every.sign_in(tokens["all"])
        for page, query in PAGES.items():
            for headers in ({}, JSON):
                answer = some.get(f"/console{page}", params=query, headers=headers)
                assert answer.status_code == (403 if query is None else 200), page
                assert OTHER not in answer.text, page
                assert every.get(f"/console{page}", params=query, headers=headers).status_code == 200, page
        assert OTHER in every.get("/console", headers=JSON).text
        links = ['href="/console/segments"' in visitor.get("/console").text for visitor in (some, every)]
        assert links == [False, True]
        told = [visitor.get("/console", headers=JSON).json() for visitor in (some, every)]
        assert [one["policy_count"] for one in told] == [1, 2]
        counted = [sum(sum(one["history"][verdict]) for verdict in ("allowed", "refused")) for one in told]
        assert counted == [6, 12]
        for page, other in OTHERS.items():
            answer = some.get(f"/console/{page}", params={"policy" if page == "limited" else "name": other})
            assert (answer.status_code, "token some is for policies" in answer.text) == (403, True), page
        form = {"forgery": some.forgery()}
        for path, typed in FORMS.items():
            assert some.post(f"/console{path}", data={**form, **typed}).status_code == 403, path
        sent = some.post("/console/campaigns/audience", data=form, files={"file": ("ids.csv", b"id\n1\n")})
        assert (sent.status_code, "needs a token for all policies" in sent.text) == (403, True)
        assert "Forget" not in some.get("/console/subject?id=u").text
        own = {"id": "u", "policy": OWN, "limits": "9/day", "hours": "1"}
        assert some.post("/console/subject/override", data={**form, **own}).status_code == 303
    left = service.client.get("/v1/overrides/promo/u", headers=shown(tokens["all"])).json()
    assert left["limits"] == ["5/day"]
    assert service.client.get("/v1/campaigns/sale", headers=shown(tokens["all"])).json()["steering"]["changed"] is None


def test_a_scope_that_is_wrong_is_refused_at_the_start(tmp_path: Path, capline: CommandLine) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [1/day]}}\n", encoding="utf-8")
    assert (
        capline("token", "create", "ann", "--role", "read", "--policy", "promo", "--policy", "push-*").returncode == 0
    )
    assert "promo,push-*" in capline("token", "list").stdout
    check = ("serve", "--check", "--tokens", "tokens.json", "--store", "memory://")
    assert capline(*check).returncode == 0
    file = tmp_path / "tokens.json"
    for wrong, said in (
        ('["prmo"]', "tokens.json: token ann: no policy prmo is in the policy file"),
        ("[]", "token ann: policies is empty"),
        ('["*"]', "token ann: '*' is no policy's name"),
        ('["a*b"]', "token ann: 'a*b' is no policy's name"),
        ('"promo"', "tokens.json: not a tokens file"),
    ):
        text = file.read_text(encoding="utf-8")
        begin = text.index('"policies":') + len('"policies":')
        file.write_text(text[:begin] + wrong + text[text.index("}", begin) :], encoding="utf-8")
        for words in (check, check[:1] + check[2:]):
            done = capline(*words)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
            assert said in done.stderr
    file.unlink()
    refused = capline("token", "create", "bob", "--policy", "")
    assert (refused.returncode, "is no policy's name" in refused.stderr) == (2, True), refused.stderr
