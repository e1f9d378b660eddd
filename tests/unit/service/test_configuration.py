"""Policies and overrides over HTTP."""

# pyright: reportPrivateUsage=false
# An outage of the configuration is made by hand.

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.kit.service import Service

from capline import Configuration, ManualClock, Policy
from capline.model.errors import CaplineError, InvalidValueError, StoreUnavailableError
from capline.segment import FixedSegments, IdSet, Snapshot
from capline.service.metrics.registry import Metrics
from capline.service.run.server import check
from capline.service.settings.values import Settings

NOW_US = 1_800_000_000_000_000
AT = "2027-01-15T08:00:00.000Z"


@pytest.fixture
def service() -> Iterator[Service]:
    with Service([], clock=ManualClock(NOW_US), config="memory://") as made:
        yield made


def put(service: Service, path: str, **form: Any) -> Any:
    answer = service("PUT", path, json=form)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_policy_is_set_read_changed_rolled_back_and_deleted(service: Service) -> None:
    assert service("GET", "/v1/policies/promo").status_code == 404
    assert put(service, "/v1/policies/promo", limits=["3/day"], by_segment={"new": ["1/day"]}, who="ann") == {
        "version": 1
    }
    assert service.post("/v1/decide", policy="promo", subject="u").json()["remaining"] == 2
    told = service("GET", "/v1/policies/promo").json()
    assert (told["limits"], told["version"], told["at"], told["who"], told["next"]) == (["3/day"], 1, AT, "ann", None)
    put(service, "/v1/policies/promo", limits=["9/day"], if_version=1)
    late = service("PUT", "/v1/policies/promo", json={"limits": ["8/day"], "if_version": 1})
    assert (late.status_code, late.headers["content-type"]) == (409, "application/problem+json")
    versions = service("GET", "/v1/policies/promo/versions").json()["versions"]
    assert [(one["version"], one["who"], one["policy"]) for one in versions] == [
        (2, "http", {"limits": ["9/day"]}),
        (1, "ann", {"limits": ["3/day"], "by_segment": {"new": ["1/day"]}}),
    ]
    assert service.post("/v1/policies/promo/rollback", version=1).json() == {"version": 3}
    assert service.post("/v1/decide", policy="promo", subject="u").json()["remaining"] == 1
    assert service("DELETE", "/v1/policies/promo?who=bob&if_version=3").json() == {"version": 4}
    assert service("GET", "/v1/policies/promo").status_code == 404
    assert service("DELETE", "/v1/policies/promo").status_code == 404
    assert service.post("/v1/decide", policy="promo", subject="u").status_code == 422


def test_an_override_is_set_read_rolled_back_and_removed(service: Service) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    path = "/v1/overrides/promo/user:42"
    assert service("GET", path).status_code == 404
    assert put(service, path, limits=["10/day"], who="ann") == {"version": 2}
    assert service("GET", path).json() == {
        "policy": "promo",
        "subject": "user:42",
        "limits": ["10/day"],
        "version": 2,
        "at": AT,
        "who": "ann",
        "effective_at": None,
        "next": None,
    }
    assert service.post("/v1/decide", policy="promo", subject="user:42").json()["remaining"] == 9
    assert service("DELETE", path).json() == {"version": 3}
    assert service("DELETE", path).status_code == service("DELETE", f"{path}?if_version=3").status_code == 404
    assert service.post("/v1/decide", policy="promo", subject="user:42").json()["remaining"] == 1
    assert [one["limits"] for one in service("GET", f"{path}/versions").json()["versions"]] == [None, ["10/day"]]
    assert service.post(f"{path}/rollback", version=2).json() == {"version": 4}
    assert service.post("/v1/peek", policy="promo", subject="user:42").json()["remaining"] == 7


def test_a_batch_sent_again_after_a_change_gets_its_first_answers(service: Service) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    batch = {"policy": "promo", "subjects": ["a", "b"], "receipt": "r1"}
    first = service.post("/v1/decide/batch", **batch).json()
    put(service, "/v1/overrides/promo/a", limits=["1/day"])
    assert service.post("/v1/decide/batch", **batch).json() == first
    put(service, "/v1/policies/promo", limits=["2/week"])
    assert service.post("/v1/decide/batch", **batch).json() == first
    assert service.post("/v1/decide/batch", **{**batch, "subjects": ["a"]}).status_code == 409
    assert service.post("/v1/decide", policy="promo", subject="b").json()["remaining"] == 0


def test_many_overrides_at_once_and_page_by_page(service: Service) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    put(service, "/v1/overrides/promo/gone", limits=["9/day"])

    def patch(*rows: tuple[Any, Any]) -> Any:
        form = {"overrides": [{"subject": subject, "limits": limits} for subject, limits in rows], "who": "ann"}
        return service("PATCH", "/v1/overrides/promo", json=form)

    many = [(subject, ["10/day"]) for subject in (1, "1", "b", 2)]
    assert patch(("a", ["3/day", "20/week"]), *many, ("gone", None)).json() == {"version": 3}
    pages: list[Any] = []
    after = ""
    while after is not None:
        page = service("GET", f"/v1/overrides/promo?limit=2{after and '&after=' + after}").json()
        pages.append({one["subject"]: (one["limits"], one["who"]) for one in page["overrides"]})
        after = page["next"]
    assert [len(page) for page in pages] == [2, 2, 1]
    listed = {subject: found for page in pages for subject, found in page.items()}
    assert listed == {subject: (limits, "ann") for subject, limits in [("a", ["3/day", "20/week"]), *many]}
    assert service.post("/v1/decide", policy="promo", subject="b").json()["remaining"] == 9
    for wrong in (("d", ["soon"]), ("c", None), ("d", [""]), (-1, None)):
        assert patch(("c", ["4/day"]), wrong).status_code == 422
    assert service("GET", "/v1/overrides/promo/c").status_code == 404, "none of them"


CSV = "limits,subject,granularity\n5/s;90/min,user:42,100ms\n,gone,\n9/h,42,\n"
LINES = """{"subject": "user:42", "limits": ["5/s", "90/min"], "granularity": "100ms"}
{"subject": "gone", "limits": null}
{"subject": 42, "limits": ["9/h"]}
"""


@pytest.mark.parametrize(("kind", "text"), [("text/csv; charset=utf-8", CSV), ("application/x-ndjson", LINES)])
def test_many_overrides_as_csv_or_lines(service: Service, kind: str, text: str) -> None:
    put(service, "/v1/policies/sums", limits=["600/hour"], algorithm="bucketed", granularity="1min")
    put(service, "/v1/overrides/sums/gone", limits=["9/h"])
    path, headers = "/v1/overrides/sums", {"Content-Type": kind}
    told = service("PATCH", f"{path}?who=ann", headers=headers, content=text.encode()).json()
    assert told == {"version": 3}
    listed = service("GET", path).json()["overrides"]
    assert {one["subject"]: (one["limits"], one.get("granularity"), one["who"]) for one in listed} == {
        42: (["9/hour"], None, "ann"),
        "user:42": (["5/second", "90/minute"], "100000us", "ann"),
    }
    at = "2027-01-15T08:00:10Z"
    text = text.replace("9/h", "8/h")
    later = service("PATCH", f"{path}?effective_at={at}", headers=headers, content=text.encode()).json()
    assert (later["version"], "note" in later) == (4, True)
    again = {"overrides": [{"subject": 7, "limits": ["9/h"]}], "effective_at": at}
    service("PATCH", f"{path}?effective_at=2027-01-15T09:00:00Z", json=again)
    assert service("GET", f"{path}/i:7").json()["effective_at"] == "2027-01-15T09:00:00.000Z", "the query goes first"


@pytest.mark.parametrize(
    ("kind", "body", "status", "said"),
    [
        ("text/csv", b"subject,limits\nu,10/day\nv,soon\n", 422, "line 3: limit 'soon'"),
        ("text/csv", b"subject,limits,limits\n", 422, "line 1: the header names the columns"),
        ("text/csv", b"", 422, "line 1: the header names the columns"),
        ("application/x-ndjson", b'{"subject": "u", "limits": null}\n{}\n', 422, "line 2: Object missing"),
        ("application/x-ndjson", b'{"subject": 1, "limits": null, "limits": ["9/h"]}\n', 422, "line 1: a key twice"),
        ("application/x-ndjson", b'{"subject": "u", "limits": null}\n' * 2, 422, "line 2: u is there twice"),
        ("text/csv", b"\xff", 422, "the body is not UTF-8"),
        ("text/plain", b"subject,limits\nu,10/day\n", 415, "or text/csv, or application/x-ndjson"),
    ],
)
def test_lines_of_overrides_that_are_wrong_change_nothing(
    service: Service, kind: str, body: bytes, status: int, said: str
) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    answer = service("PATCH", "/v1/overrides/promo", headers={"Content-Type": kind}, content=body)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert service("GET", "/v1/overrides/promo").json()["overrides"] == []
    elsewhere = service("PUT", "/v1/overrides/promo/u", headers={"Content-Type": "text/csv"}, content=body)
    assert elsewhere.status_code == 415


def test_an_override_has_a_granularity_of_its_own(service: Service) -> None:
    put(service, "/v1/policies/sums", limits=["600/hour"], algorithm="bucketed", granularity="1min")
    path = "/v1/overrides/sums/u"
    assert service("PUT", path, json={"limits": ["5/s"]}).status_code == 422
    put(service, path, limits=["5/s"], granularity="100ms")
    put(service, path, limits=["9/s"], granularity="50ms", effective_at="2027-01-15T08:00:10Z")
    told = service("GET", path).json()
    assert (told["limits"], told["granularity"]) == (["5/second"], "100000us")
    assert (told["next"], told["next_granularity"]) == (["9/second"], "50000us")
    rows = [{"subject": "v", "limits": ["7/s"], "granularity": "100ms"}, {"subject": "w", "limits": ["9/h"]}]
    assert service("PATCH", "/v1/overrides/sums", json={"overrides": rows}).json() == {"version": 4}
    page = service("GET", "/v1/overrides/sums").json()["overrides"]
    assert {one["subject"]: one.get("granularity") for one in page} == {"u": "100000us", "v": "100000us", "w": None}
    versions = service("GET", f"{path}/versions").json()["versions"]
    assert [one["granularity"] for one in versions] == ["50000us", "100000us"]
    assert service.post("/v1/decide", policy="sums", subject="v").json()["remaining"] == 6


def test_subjects_are_reported_apart_in_the_path(service: Service) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    for path, subject in (("i:42", 42), ("42", "42"), ("a%2Fb", "a/b"), ("s:i:42", "i:42"), ("%C3%A9", "é")):
        put(service, f"/v1/overrides/promo/{path}", limits=["10/day"])
        assert service("GET", f"/v1/overrides/promo/{path}").json()["subject"] == subject
        assert service.post("/v1/peek", policy="promo", subject=subject).json()["remaining"] == 9
    assert service.post("/v1/peek", policy="promo", subject=43).json()["remaining"] == 2


def test_an_instant_to_come_is_shown_beside_what_is_in_force(service: Service) -> None:
    at = "2027-01-15T08:00:10Z"
    put(service, "/v1/policies/promo", limits=["3/day"])
    put(service, "/v1/policies/promo", limits=["5/day"], effective_at=at)
    told = service("GET", "/v1/policies/promo").json()
    assert (told["limits"], told["next"], told["effective_at"]) == (
        ["3/day"],
        {"limits": ["5/day"]},
        "2027-01-15T08:00:10.000Z",
    )
    told = put(service, "/v1/overrides/promo/u", limits=["9/day"], effective_at=at)
    assert "follows late" in told["note"], "no lead time beats an outage without end"
    told = service("GET", "/v1/overrides/promo/u").json()
    assert (told["limits"], told["next"]) == (None, ["9/day"])
    near = service("PUT", "/v1/overrides/promo/u", json={"limits": ["9/day"], "effective_at": AT})
    assert near.status_code == 422
    assert "too soon" in near.json()["detail"]


def test_limits_for_a_while_are_shown_in_every_answer(service: Service) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    until = "2027-01-15T08:00:10.000Z"
    assert put(service, "/v1/overrides/promo/u", limits=["9/day"], until=until) == {"version": 2}
    assert service.post("/v1/peek", policy="promo", subject="u").json()["remaining"] == 8
    told = service("GET", "/v1/overrides/promo/u").json()
    assert (told["limits"], told["effective_at"], told["next"]) == (["9/day"], until, None)
    (version,) = service("GET", "/v1/overrides/promo/u/versions").json()["versions"]
    assert (version["before"], version["effective_at"], version["limits"]) == (["9/day"], until, None)
    many = service(
        "PATCH", f"/v1/overrides/promo?until={until}", json={"overrides": [{"subject": 7, "limits": ["8/day"]}]}
    )
    assert many.json() == {"version": 3}
    page = service("GET", "/v1/overrides/promo").json()["overrides"]
    assert {one["subject"]: (one["limits"], one["next"]) for one in page} == {
        "u": (["9/day"], None),
        7: (["8/day"], None),
    }


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999Z"])
def test_an_instant_past_the_last_year(service: Service, at: str) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    far = service("PUT", "/v1/policies/promo", json={"limits": ["5/day"], "effective_at": at})
    assert (far.status_code, "9999" in far.json()["detail"]) == (422, True)
    put(service, "/v1/policies/promo", limits=["5/day"], effective_at="9999-12-31T23:59:59Z")
    assert service("GET", "/v1/policies/promo").json()["effective_at"] == "9999-12-31T23:59:59.000Z"


def test_a_policy_that_is_only_scheduled_can_be_withdrawn(service: Service) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"], effective_at="2027-01-15T08:00:10Z")
    assert service("GET", "/v1/policies/promo").json()["next"] == {"limits": ["3/day"]}
    assert service("DELETE", "/v1/policies/promo?who=ann").json() == {"version": 2}
    assert service("GET", "/v1/policies/promo").status_code == 404
    assert service("DELETE", "/v1/policies/promo").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/v1/policies/promo", b"{", 400),
        ("PUT", "/v1/policies/promo", b'{"limits":["many"]}', 422),
        ("PUT", "/v1/policies/promo", b'{"limits":["1/day"],"limit":1}', 422),
        ("PUT", "/v1/policies/promo", b'{"limits":["1/day"],"limits":["2/day"]}', 422),
        ("PUT", "/v1/policies/promo", b'{"limits":["1/day"],"by_segment":{"new":["1/day"],"new":["9/day"]}}', 422),
        ("PUT", "/v1/policies/promo", b'{"limits":["1/day"],"channels":{"push":["1/day"],"push":["9/day"]}}', 422),
        ("PUT", "/v1/policies/a b", b'{"limits":["1/day"]}', 422),
        ("PUT", "/v1/policies/promo", b"{}", 422),
        ("PUT", "/v1/policies/promo", b'{"limits":["3/day"],"wait_replicas":1}', 422),  # the store has no replicas
        ("PUT", "/v1/policies/promo/versions", b'{"limits":["1/day"]}', 405),
        ("POST", "/v1/policies/promo", b'{"version":1}', 405),
        ("POST", "/v1/policies/promo/rollback", b'{"version":99}', 422),
        ("POST", "/v1/policies/promo/rollback", b'{"version":"1"}', 422),
        ("GET", "/v1/policies/promo/nothing", b"", 404),
        ("GET", "/v1/policies/promo/versions/more", b"", 404),
        ("GET", "/v1/policies/nobody/versions", b"", 404),
        ("GET", "/v1/policies/%FF", b"", 400),
        ("PATCH", "/v1/policies/promo", b"{}", 405),
        ("PUT", "/v1/overrides/promo", b'{"limits":["1/day"]}', 405),
        ("PUT", "/v1/overrides/promo/u", b"{}", 422),
        ("PUT", "/v1/overrides/promo/u", b'{"limits":[]}', 422),
        ("PUT", "/v1/overrides/nobody/u", b'{"limits":["1/day"]}', 422),
        ("PUT", "/v1/overrides/promo/u", b'{"limits":["1/day"],"who":"a\\nb"}', 422),
        ("PUT", "/v1/overrides/promo/i:x", b'{"limits":["1/day"]}', 422),
        ("DELETE", "/v1/overrides/promo/u?if_version=x", b"", 422),
        ("DELETE", "/v1/overrides/promo/u?if_version=7", b"", 409),
    ],
)
def test_what_is_wrong_changes_nothing(service: Service, method: str, path: str, body: bytes, status: int) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    answer = service(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert service("GET", "/v1/policies/promo").json()["version"] == 1


def test_a_key_twice_in_a_map_of_msgpack(service: Service) -> None:
    segment = msgspec.msgpack.encode("new") + msgspec.msgpack.encode(["9/day"])
    before = b"\x82\xa6limits\x91\xa51/day\xaaby_segment"
    for body, status in ((before + b"\x82" + 2 * segment, 422), (before + b"\x81" + segment, 200)):
        answer = service("PUT", "/v1/policies/promo", content=body, headers={"Content-Type": "application/msgpack"})
        assert answer.status_code == status, answer.text


def test_without_a_configuration_store_policies_are_read_only() -> None:
    with Service([Policy("promo", ["3/day"])], clock=ManualClock(NOW_US)) as service:
        assert service("GET", "/v1/policies/promo").json()["limits"] == ["3/day"]
        answer = service("PUT", "/v1/policies/promo", json={"limits": ["4/day"]})
        assert answer.status_code == 409
        assert "--config-store" in answer.json()["detail"]
        assert service("GET", "/v1/overrides/promo/u").status_code == 409


def test_an_outage_of_the_configuration_is_said_and_serves_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, "/v1/policies/promo", limits=["3/day"])
    configuration = service.limiter.configuration
    metrics = Metrics()
    metrics.add(service.limiter)
    assert service("GET", "/readyz").json() == {"status": "ok"}
    assert metrics.asked.get_sample_value("capline_config_up") == 1
    assert metrics.asked.get_sample_value("capline_config_version") == 1

    def away(*_: object) -> Any:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(configuration._backend, "head", away)
    monkeypatch.setattr(configuration._backend, "shared", True)
    answer = service("PUT", "/v1/policies/promo", json={"limits": ["4/day"]})
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    with pytest.raises(StoreUnavailableError):
        configuration.refresh()
    assert service.post("/v1/decide", policy="promo", subject="u").json()["allowed"]
    assert "the last known serves" in service("GET", "/readyz").json()["configuration"]
    assert metrics.asked.get_sample_value("capline_config_up") == 0
    assert (metrics.asked.get_sample_value("capline_config_stale_seconds") or 0) > 0


def test_a_segment_that_is_not_there_is_named() -> None:
    segments = FixedSegments(Snapshot({"new": IdSet([1])}, "v1"))
    with Service([], clock=ManualClock(NOW_US), config="memory://", segments=segments) as service:
        metrics = Metrics()
        metrics.add(service.limiter, segments)
        put(service, "/v1/policies/a", limits=["3/day"], by_segment={"new": ["4/day"]})
        assert "missing_segments" not in service("GET", "/readyz").json()
        put(service, "/v1/policies/b", limits=["3/day"], by_segment={"nwe": ["5/day"]})
        put(service, "/v1/policies/a", limits=["2/day"])
        assert service.post("/v1/peek", policy="a", subject=7).json()["limit"] == "2/day", "others are in force"
        told = service("GET", "/v1/policies/b").json()
        assert (told["by_segment"], told["missing_segments"]) == ({"nwe": ["5/day"]}, ["nwe"])
        assert service("GET", "/readyz").json()["missing_segments"] == {"b": ["nwe"]}
        assert metrics.asked.get_sample_value("capline_missing_segments") == 1


def test_a_check_asks_no_server_and_makes_no_file(tmp_path: Path) -> None:
    missing = tmp_path / "configuration"
    for url in (f"lmdb://{missing}", "redis://127.0.0.1:1"):
        assert check(Settings(store="memory://", policies=None, config=url)) == 0
    assert not missing.exists()
    with Configuration(f"lmdb://{missing}") as made:
        made.set_policies([Policy("promo", ["3/day"])])
    assert check(Settings(store="memory://", policies=None, config=f"lmdb://{missing}")) == 1
    with pytest.raises(CaplineError, match="unknown kind"):
        check(Settings(store="memory://", policies=None, config="nowhere://x"))


def test_a_check_finds_a_policy_that_waits_for_replicas_where_there_are_none(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/config"
    with Configuration(url) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"], wait_replicas=1)], who="ann")
    with pytest.raises(InvalidValueError, match="'promo': wait_replicas needs a redis store"):
        check(Settings(store="memory://", policies=None, config=url))
