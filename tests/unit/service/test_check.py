"""`/check`: what a gateway asks by a subrequest, and the few statuses that it can take."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kit.service import Service

from capline import Policy

POLICIES = (Policy("api", ["2/minute"], by_segment={"paid": ["4/minute"]}), Policy("gold", ["9/minute"]))


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(POLICIES) as asked:
        yield asked


def status(service: Service, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return service("GET", path, headers=named).status_code


def test_a_refusal_is_403_or_by_choice_429(service: Service) -> None:
    asked = "/check?policy=api&subject=s:7"
    assert [status(service, asked) for _ in range(3)] == [204, 204, 403]
    assert status(service, f"{asked}&refuse=429") == 429
    assert status(service, f"{asked}&refuse=403") == 403
    assert status(service, f"{asked}&refuse=503") == 422


def test_every_answer_has_the_headers_of_both_forms(service: Service) -> None:
    allowed = service("GET", "/check?policy=api&subject=7")
    assert allowed.headers["RateLimit"] == '"api-minute";r=1;t=60'
    assert (allowed.headers["X-RateLimit-Limit"], allowed.headers["X-RateLimit-Remaining"]) == ("2", "1")
    assert "Content-Length" not in allowed.headers
    assert "Retry-After" not in allowed.headers
    service("GET", "/check?policy=api&subject=7")
    refused = service("GET", "/check?policy=api&subject=7")
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert refused.content == b""


def test_headers_say_it_and_a_parameter_wins_over_its_header(service: Service) -> None:
    said = {"X_Capline_Policy": "api", "X_Capline_Subject": "s:a&cost=9", "X_Capline_Cost": "2"}
    assert [status(service, "/check", **said) for _ in range(2)] == [204, 403]
    assert status(service, "/check", **said, X_Capline_Segment="paid") == 204
    assert status(service, "/check?policy=gold", **said) == 204
    assert status(service, "/check?cost=9&policy=gold&subject=b", **said) == 204
    assert status(service, "/check?cost=9&policy=gold&subject=b", **said) == 403


def test_a_header_of_the_gateways_own_is_the_subject_and_no_client_says_another(service: Service) -> None:
    asked = "/check?policy=api&cost=2&subject_header=X-Real-IP"
    for address in ("192.0.2.1", "192.0.2.2", "i:7"):
        said = {"X_Real_Ip": address, "X_Capline_Subject": "mine"}
        assert [status(service, asked, **said) for _ in range(2)] == [204, 403]
    assert status(service, "/check?policy=api&subject=s:192.0.2.1") == 403
    assert status(service, "/check?policy=api&subject=s:i:7") == 403
    assert status(service, "/check?policy=api&subject=s:other&subject_header=X-Real-IP") == 204


def test_the_integer_and_the_text_are_two_subjects(service: Service) -> None:
    for subject in ("i:42", "s:42"):
        assert [status(service, f"/check?policy=api&cost=2&subject={subject}") for _ in range(2)] == [204, 403]
    assert status(service, "/check?policy=api&cost=2&subject=42") == 403


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/check?subject=a", "which policy?"),
        ("/check?policy=api", "which subject?"),
        ("/check?policy=api&subject=", "1 to 512 bytes"),
        ("/check?policy=none&subject=a", "no policy"),
        ("/check?policy=api&subject=a&cost=x", "a cost is"),
        ("/check?policy=api&subject=a&cost=99999999999999999999", "a cost is"),
        ("/check?policy=api&subject=a&user=b", "no parameter"),
        ("/check?policy=api&subject=a&subject=b", "twice"),
        ("/check?policy=api&subject_header=X-Real-Ip", "no header 'X-Real-Ip'"),
    ],
)
def test_what_can_have_no_answer_is_422(service: Service, path: str, reason: str) -> None:
    answer = service("GET", path)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert reason in answer.json()["detail"]


def test_headers_that_are_no_text_or_there_twice_are_refused(service: Service) -> None:
    twice = service("GET", "/check?policy=api", headers=[("X-Capline-Subject", "a"), ("X-Capline-Subject", "b")])
    assert twice.status_code == 422
    bytes_ = service("GET", "/check?policy=api", headers=[(b"X-Capline-Subject", b"\xff")])
    assert bytes_.status_code == 400


@pytest.mark.parametrize(("choice", "expected"), [("raise", 503), ("deny", 503), ("allow", 204)])
def test_an_outage_is_never_a_refusal(choice: str, expected: int) -> None:
    with Service(POLICIES, "redis://127.0.0.1:1/0", on_store_error=choice) as service:
        answer: Any = service("GET", "/check?policy=api&subject=a&refuse=429")
        assert answer.status_code == expected
        assert answer.headers.get("Retry-After") == ("1" if expected == 503 else None)
