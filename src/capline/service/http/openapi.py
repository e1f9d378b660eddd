"""The service's own description: OpenAPI 3.1 made from the routes and their forms, and a page of it.

The page is HTML without scripts and without outside resources, so it works offline.
"""

import html
import inspect
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

import msgspec

from capline import __version__
from capline.model.limit import LARGEST_QUOTA
from capline.model.policy import POLICY_FORM
from capline.service.http.app import LIMIT_HEADERS, WITH_BODY, Reply, Request, Route
from capline.service.http.body import JSON, MSGPACK
from capline.service.http.forms import MEMBERS, MOST_MEMBERS
from capline.service.http.paths import names_of
from capline.service.http.problems import PROBLEM

_REFS = "#/components/schemas/{name}"
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "error": {"type": "string", "description": "The name of capline's error, where it is one"},
    },
}
_TEXT = {"type": "string", "minLength": 1}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "cost": {"type": "integer", "minimum": 0, "maximum": LARGEST_QUOTA, "default": 1},
    "if_version": {"type": "integer", "minimum": 0},
    "before": {"type": "integer", "minimum": 0},
    "policy": {"type": "string", "pattern": f"^{POLICY_FORM.pattern}$"},
    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_MEMBERS, "default": MEMBERS},
    "refuse": {"type": "integer", "enum": [403, 429], "default": 403},
    "who": {"type": "string", "default": "http"},
}
_ELSE = "Counts where the query does not have it"
_SAID = {
    "Content-Digest": "The body's digest, as in RFC 9530: sha-256=:BASE64:",
    "Idempotency-Key": "The same key with the same body gets the same answer",
    "subject": "Who is limited: i:42 is the integer, s:42 the text, any other word text",
    "subject_header": "Where there is no `subject`: the header whose text it is; X-Capline-Subject is not read then",
    "who": "Who makes the change; with tokens it is the token's name",
}
_HEADERS = {
    "RateLimit-Policy": "Every limit: its quota and window (draft-ietf-httpapi-ratelimit-headers-11)",
    "RateLimit": "Of every limit the units that are left, and the seconds until there are more",
    "Retry-After": "Whole seconds until it may be asked again",
    "X-RateLimit-Limit": "The quota of the limit that the answer names",
    "X-RateLimit-Remaining": "Units of it that are left",
    "X-RateLimit-Reset": "Seconds until all of it is back",
}
_STATUSES = {
    "400": "The body, path or query cannot be read",
    "401": "No token, or one that is not known",
    "403": "A token without the role, or for other policies",
    "404": "Nothing is at this path",
    "405": "Another method",
    "408": "The body came too slowly",
    "409": "The id came back with another cost, another change came first, or there is no configuration store",
    "413": "Too large",
    "429": "The token has created as many new subjects as it may",
    "415": "Neither JSON nor msgpack",
    "422": "What can never be answered",
    "500": "A fault of the service, or a damaged store",
    "503": "The store cannot answer now; ask again",
}


def document(routes: Mapping[str, Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    forms = [
        form
        for route in routes.values()
        for gives in (route.takes, *route.gives.values())
        for form in _several(gives)
        if form is not None and not isinstance(form, str)
    ]
    schemas, components = msgspec.json.schema_components(forms, ref_template=_REFS)
    by_form: dict[Any, Any] = dict(zip(forms, schemas, strict=True))
    by_form |= {
        gives: {"anyOf": [by_form[form] for form in _several(gives)]}
        for route in routes.values()
        for gives in route.gives.values()
        if isinstance(gives, tuple)
    }
    paths: dict[str, Any] = {}
    for path, route in routes.items():
        paths[path] = {method.lower(): _operation(path, method, route, by_form) for method in route.handlers}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "capline",
            "version": __version__,
            "description": "Exact sliding-window limits. A refusal is an answer: 200 with allowed false.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM},
            "headers": {
                name: {"description": said, "schema": {"type": "string" if name in LIMIT_HEADERS else "integer"}}
                for name, said in _HEADERS.items()
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "chosen": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _several(forms: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", forms) if isinstance(forms, tuple) else (forms,)


def described(routes: dict[str, Route]) -> dict[str, Route]:
    """These routes, and the two that describe them: /openapi.json and /docs."""
    described_here: dict[str, Route] = {}

    async def openapi(_request: Request) -> Reply:
        """This description, as OpenAPI 3.1."""
        return Reply(encoded)

    async def docs(_request: Request) -> Reply:
        """This description, to be read."""
        return Reply(shown, PAGE_HEADERS, type="text/html; charset=utf-8")

    described_here["/openapi.json"] = Route({"GET": openapi}, roles=(), gives={"GET": dict[str, Any]})
    described_here["/docs"] = Route({"GET": docs}, roles=(), gives={"GET": "text/html"})
    every = routes | described_here
    told = document(every)
    encoded = msgspec.json.encode(told)
    shown = page(told).encode()
    return every


PAGE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
"""Of a page that runs nothing and loads nothing."""


def _operation(path: str, method: str, route: Route, by_form: Mapping[Any, Any]) -> dict[str, Any]:
    handler = route.handlers[method]
    said = inspect.getdoc(handler) or f"{method} {path}"
    statuses = {"400", "404", "409", "422", "500", "503"}
    parameters: list[dict[str, Any]] = []
    parameters += [_parameter(name, "path", required=True) for name in names_of(path)]
    parameters += [_parameter(name, "query", required=name in route.needs) for name in route.query.get(method, ())]
    parameters += [
        {
            "name": name,
            "in": "header",
            "required": name in route.needs,
            "schema": _TEXT,
            "description": _SAID.get(name, _ELSE),
        }
        for name in (route.headers if method in WITH_BODY or len(route.handlers) == 1 else ())
    ]
    gives = route.gives.get(method)
    limits = route.sends
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}{re.sub('[^a-z0-9]+', '_', path).rstrip('_')}",
        "summary": said.split("\n", 1)[0],
        "parameters": parameters,
    }
    example = {"example": route.examples[method]} if method in route.examples else {}
    types = [JSON]
    if route.streamed and method in WITH_BODY:
        statuses |= {"408", "413"}
        binary = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": binary}}
    elif route.body_bytes and method in WITH_BODY:
        types = [JSON, MSGPACK]
        statuses |= {"408", "413", "415", "429"}
        body: dict[str, Any] = {} if route.takes is None else {"schema": by_form[route.takes]}
        content = (
            dict.fromkeys(types, body)
            | {JSON: body | example}
            | {kind: {"schema": {"type": "string"}} for kind in route.types or ()}
        )
        operation["requestBody"] = {"required": True, "content": content}
    if route.roles_of(method):
        statuses |= {"401", "403"}
        operation["security"] = [{}, {"token": []}, {"chosen": []}]
        operation["x-roles"] = sorted({*route.roles_of(method), "admin"})
    problem = {kind: {"schema": {"$ref": _REFS.format(name="Problem")}} for kind in (PROBLEM, *types[1:])}
    responses: dict[str, Any] = {
        status: {"description": _STATUSES[status], "content": problem} for status in sorted(statuses)
    }
    for status in {"429", "503"} & statuses:
        responses[status]["headers"] = _headers("Retry-After")
    if isinstance(gives, str):
        responses["200"] = {"description": "A page", "content": {gives: {"schema": {"type": "string"}}}}
    elif gives is not None:
        has_body = "requestBody" in operation and not route.streamed
        content = {kind: {"schema": by_form[gives], **({} if has_body else example)} for kind in types}
        content |= {kind: {"schema": {"type": "string"}} for kind in route.others}
        responses["200"] = {"description": "The answer", "content": content}
        if limits:  # a refusal is a 200 with Retry-After
            responses["200"]["headers"] = _headers(*limits, "Retry-After")
    for status, text in route.also.items():
        also = responses.setdefault(str(status), {})
        also["description"] = " ".join(filter(None, (text, also.get("description") and f"Or: {also['description']}")))
        if status >= HTTPStatus.BAD_REQUEST:  # with the answer as it is of 200, or with nothing
            plain = {"text/plain": {"schema": {"type": "string"}}}
            also["content"] = also.get("content", {}) | responses.get("200", {}).get("content", plain)
        also["headers"] = _headers(*limits, *(("Retry-After",) if status >= HTTPStatus.BAD_REQUEST else ()))
    operation["responses"] = dict(sorted(responses.items()))
    return operation


def _parameter(name: str, place: str, *, required: bool) -> dict[str, Any]:
    schema = _PARAMETERS.get(name, _TEXT)
    said = {"description": _SAID[name]} if name in _SAID else {}
    return {"name": name, "in": place, "required": required, "schema": schema, **said}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def page(told: Mapping[str, Any]) -> str:
    """The document as HTML."""
    parts: list[str] = []
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            rows = "".join(
                f"<tr><td><code>{html.escape(parameter['name'])}</code></td><td>{parameter['in']}</td></tr>"
                for parameter in operation["parameters"]
            )
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            answer = operation["responses"].get("200", {}).get("content", {}).get(JSON, {}).get("schema")
            roles = ", ".join(operation.get("x-roles", ["anybody"]))
            parts.append(
                f"<section><h2><b>{method.upper()}</b> <code>{html.escape(path)}</code></h2>"
                f"<p>{html.escape(operation['summary'])} <i>{html.escape(roles)}</i></p>"
                f"{rows and '<table>' + rows + '</table>'}{_form('takes', body)}{_form('gives', answer)}</section>"
            )
    forms = "".join(
        f"<section id='{html.escape(name)}'><h2><code>{html.escape(name)}</code></h2>"
        f"<p>{html.escape(str(schema.get('description', '')))}</p>"
        f"<pre>{html.escape(msgspec.json.format(msgspec.json.encode(schema)).decode())}</pre></section>"
        for name, schema in told["components"]["schemas"].items()
    )
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>capline</title>"
        "<meta name='viewport' content='width=device-width'><style>body{font:16px/1.5 system-ui,sans-serif;"
        "max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}h2{font-size:1.1rem}"
        "section{border-top:1px solid #ccc}pre{background:#f4f4f4;padding:1rem;overflow:auto}"
        "td{padding:0 1rem 0 0}</style>"
        f"<h1>capline {html.escape(told['info']['version'])}</h1><p>{html.escape(told['info']['description'])} "
        f"As <a href='/openapi.json'>OpenAPI 3.1</a>.</p>{''.join(parts)}<h1>Forms</h1>{forms}</html>"
    )


def _form(verb: str, schema: Any) -> str:
    if not schema:
        return ""
    names = [html.escape(kind.get("$ref", "").rpartition("/")[2]) for kind in schema.get("anyOf", [schema])]
    links = " or ".join(f"<a href='#{name}'><code>{name}</code></a>" for name in names)
    return f"<p>{verb} {links}</p>"
