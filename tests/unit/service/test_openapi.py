"""The description of the service: every route is in it, and it needs no internet to be read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.kit.service import Service

from capline import Policy
from capline.service.http.openapi import document
from capline.service.http.table import routes_of
from capline.service.probes import probes
from capline.service.verbs.campaigns import CampaignForm, campaign_routes
from capline.service.verbs.outcomes import OutcomeVerbs
from capline.service.verbs.routes import routes


@pytest.fixture
def service() -> Iterator[Service]:
    with Service([Policy("promo", ["3/day"])]) as asked:
        yield asked


def test_every_route_and_method_is_in_it(service: Service) -> None:
    told = service("GET", "/openapi.json").json()
    assert told["openapi"] == "3.1.0"
    served = routes(service.limiter) | probes(service.limiter)
    for path, route in served.items():
        found = next(methods for at, methods in told["paths"].items() if at == path)
        assert set(found) == {method.lower() for method in route.handlers}
        for operation in found.values():
            assert not operation["summary"].startswith(("GET ", "POST ", "DELETE ")), "a handler says what it does"
    assert {"/openapi.json", "/docs"} <= set(told["paths"])
    names = {operation["operationId"] for methods in told["paths"].values() for operation in methods.values()}
    assert len(names) == sum(len(methods) for methods in told["paths"].values())


def test_each_form_is_there(service: Service) -> None:
    told = service("GET", "/openapi.json").json()
    used = set(re.findall(r"#/components/schemas/(\w+)", service("GET", "/openapi.json").text))
    assert used <= set(told["components"]["schemas"])
    assert set(told["components"]["schemas"]["KeepingAttempt"]["properties"]) == {
        *("policy", "subject", "cost", "id", "segment", "channel", "zone", "keep_free")
    }


def test_each_example_is_of_its_form(service: Service) -> None:
    url = "redis://127.0.0.1:1/0"
    served = routes(service.limiter) | campaign_routes(url, "kept")
    served |= routes_of(OutcomeVerbs(url, "kept", create=False))
    examples = 0
    for path, route in served.items():
        assert set(route.examples) <= set(route.handlers), path
        for method, example in route.examples.items():
            form = route.gives[method] if route.takes is None or method in ("GET", "DELETE") else route.takes
            msgspec.convert(example, form)
            examples += 1
    told = document(served)["paths"]
    assert told["/v1/refund/batch"]["post"]["requestBody"]["content"]["application/json"]["example"]["hits"]
    assert told["/v1/campaigns/{name}"]["get"]["responses"]["200"]["content"]["application/json"]["example"]
    assert examples == sum('"example"' in json.dumps(op) for methods in told.values() for op in methods.values())


def test_the_page_needs_nothing_else(service: Service) -> None:
    answer = service("GET", "/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "/v1/decide/batch" in answer.text
    assert not re.search(r"<script|https?://|@import|url\(", answer.text)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_campaign_over_http_has_every_key_of_its_file() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/campaigns.md").read_text()
    told = re.findall(r"(?:^|`)([a-z_]+):", page.partition("### The audience")[0], re.MULTILINE)
    assert set(CampaignForm.__struct_fields__) == {*told, "only"}
    form = {"campaign": "c", "policies": "p.yaml", "policy": "p", "audience": {"csv": "u.csv", "zone_column": "zone"}}
    form |= {"sender": {"file": "out/"}, "send_at": "2030-01-01T00:00:00Z", "send_at_local": "16:00"}
    assert msgspec.convert(form, CampaignForm).file().local_minute == 960
