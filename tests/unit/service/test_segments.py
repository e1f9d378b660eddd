"""Segments over HTTP: who is in which, page by page; and decisions that look them up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.segments import directory_site, make, make_text
from tests.kit.service import Service

from capline import ManualClock, Policy
from capline.segment import FixedSegments, IdSet, Snapshot, load_snapshot

NOW_US = 1_763_700_000_000_000
PROMO = Policy("promo", ["3/day"], by_segment={"new": ["1/day"], "active": ["5/day"]})
PSP = Policy("psp", ["9/s"])
TOTAL = 2**32 - 1


@pytest.fixture
def service() -> Iterator[Service]:
    sets = {"active": IdSet([7, 9, TOTAL]), "new": IdSet([1, 2]), "vip": IdSet([2, 7, 50])}
    source = FixedSegments(Snapshot(sets, "monday", NOW_US, overlapping=["vip"]))
    with Service([PROMO, PSP], clock=ManualClock(NOW_US), segments=source) as asked:
        yield asked


@pytest.fixture
def texts(tmp_path: Path) -> Iterator[Service]:
    where = make_text(tmp_path, tmp_path / "ids", "v1", active=["42", "ann", "s:x", "i:7", "böb"])
    with Service([PSP], segments=FixedSegments(load_snapshot(where))) as asked:
        yield asked


def got(service: Service, path: str) -> Any:
    answer = service("GET", path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(service: Service, path: str, **form: Any) -> Any:
    answer = service.post(path, **form)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(service: Service, path: str, status: int = 422) -> str:
    answer = service("GET", path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    return answer.json()["detail"]


def test_what_there_is(service: Service) -> None:
    assert got(service, "/v1/segments") == {
        "ids": "uint32",
        "created_us": NOW_US,
        "segments": [
            {"name": "active", "count": 3, "overlapping": False},
            {"name": "new", "count": 2, "overlapping": False},
            {"name": "vip", "count": 3, "overlapping": True},
        ],
        "version": "monday",
    }
    assert got(service, "/v1/segments/new/count") == {"segment": "new", "count": 2, "version": "monday"}
    assert refused(service, "/v1/segments/nwe/count", 404) == "no segment 'nwe'; there are: active, new, vip"
    assert refused(service, "/v1/segments?limit=1").startswith("no parameter 'limit'")


def test_contains(service: Service) -> None:
    for word, one, is_in in (("7", 7, True), ("i:7", 7, True), ("1", 1, False), (str(TOTAL), TOTAL, True)):
        answer = got(service, f"/v1/segments/active/contains?id={word}")
        assert answer == {"segment": "active", "id": one, "contains": is_in, "version": "monday"}
    assert "the ids of these segments are numbers" in refused(service, "/v1/segments/active/contains?id=s:7")
    assert "the ids of these segments are numbers" in refused(service, "/v1/segments/active/contains?id=ann")
    assert "at most 4294967295" in refused(service, "/v1/segments/active/contains?id=4294967296")
    assert "id is empty" in refused(service, "/v1/segments/active/contains?id=")
    assert "add ?id=" in refused(service, "/v1/segments/active/contains")
    assert "is there twice" in refused(service, "/v1/segments/active/contains?id=1&id=7")


def test_members_page_by_page(service: Service) -> None:
    first = got(service, "/v1/segments/active/members?limit=2")
    assert first == {"segment": "active", "count": 3, "ids": [7, 9], "next": 9, "version": "monday"}
    last = got(service, f"/v1/segments/active/members?limit=2&after={first['next']}")
    assert (last["ids"], last["next"]) == ([TOTAL], None)
    assert got(service, f"/v1/segments/active/members?after={TOTAL}")["ids"] == []
    assert got(service, "/v1/segments/active/members")["next"] is None
    assert got(service, "/v1/segments/active/members?limit=3")["next"] is None
    assert got(service, "/v1/segments/active/members?limit=10000")["ids"] == [7, 9, TOTAL]
    for word in ("", "0", "-1", "10001", "1e3", "²", "9" * 5000):
        assert refused(service, f"/v1/segments/active/members?limit={word}").startswith("limit ")
    assert "after is empty" in refused(service, "/v1/segments/active/members?after=&limit=2")
    assert "numbers" in refused(service, "/v1/segments/active/members?after=ann")


def test_of_whom(service: Service) -> None:
    answer = told(service, "/v1/segments/of", ids=[1, 7, 8, "1", 2**32, 50, 7])
    assert answer["segments"] == ["new", "active", None, None, None, None, "active"]
    assert sorted(answer["errors"]) == ["3", "4"]
    assert answer["version"] == "monday"
    assert told(service, "/v1/segments/of", ids=[])["segments"] == []
    assert service.post("/v1/segments/of", ids=[0] * 100_000).status_code == 200
    assert service.post("/v1/segments/of", ids=[0] * 100_001).status_code == 413
    for wrong in ({"ids": [1.5]}, {"ids": [None]}, {"ids": 7}, {}, {"ids": [1], "id": 2}):
        assert service.post("/v1/segments/of", **wrong).status_code == 422, wrong
    answer = told(service, "/v1/segments/of", ids=[-1, 2**64, 1, "", "x" * 513])
    assert answer["segments"] == [None, None, "new", None, None]
    assert sorted(answer["errors"]) == ["0", "1", "3", "4"]


def test_expressions(service: Service) -> None:
    answer = told(service, "/v1/segments/evaluate", expression="(active | new) - vip")
    assert answer == {"expression": "(active | new) - vip", "count": 3, "version": "monday"}
    assert told(service, "/v1/segments/evaluate", expression="active | " * 31 + "new")["count"] == 5
    for wrong in ("", "active -", "activ", "(" * 100, "active | " * 32 + "new", "x" * 5000):
        assert service.post("/v1/segments/evaluate", expression=wrong).status_code == 422, wrong


def test_text_ids_stand_apart(texts: Service) -> None:
    answer = told(texts, "/v1/segments/of", ids=["42", 42, "Ann", "ann", "", "x" * 513])
    assert answer["segments"] == ["active", None, None, "active", None, None]
    assert sorted(answer["errors"]) == ["1", "4", "5"]
    for word, one in (("42", "42"), ("s:42", "42"), ("s:s:x", "s:x"), ("s:i:7", "i:7"), ("b%C3%B6b", "böb")):
        answer = got(texts, f"/v1/segments/active/contains?id={word}")
        assert (answer["id"], answer["contains"]) == (one, True)
    assert "are text" in refused(texts, "/v1/segments/active/contains?id=i:42")
    seen: list[str] = []
    after = ""
    while True:
        page = got(texts, f"/v1/segments/active/members?limit=1{after}")
        seen += page["ids"]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert sorted(seen) == ["42", "ann", "böb", "i:7", "s:x"]
    assert "is not in this snapshot" in refused(texts, "/v1/segments/active/members?after=nobody")


def test_a_decision_says_which_segment_was_looked_up(service: Service) -> None:
    for path in ("/v1/peek", "/v1/decide", "/v1/schedule"):
        answer = told(service, path, policy="promo", subject=7)
        assert (answer["limit"], answer["segment"]) == ("5/day", "active")
        assert told(service, path, policy="promo", subject=8)["segment"] is None
        assert told(service, path, policy="promo", subject=1, segment="active")["segment"] == "active"
        assert told(service, path, policy="psp", subject="ann")["segment"] is None
    why = got(service, "/v1/subjects/i:7?policy=promo")
    assert (why["segment"], why["decision"]["limit"]) == ("active", "5/day")
    attempts = [{"policy": "promo", "subject": 9}, {"policy": "psp", "subject": "ann"}]
    answer = told(service, "/v1/decide/all", attempts=attempts)
    assert (answer["limit"], answer["segment"]) == ("5/day", "active")
    many = told(service, "/v1/decide/batch", policy="promo", subjects=[2, 9, 8, "ann"])
    assert (many["limit"], list(many["errors"])) == (["1/day", "5/day", "3/day", None], ["3"])
    many = told(service, "/v1/decide/batch", attempts=attempts)
    assert many["limit"] == ["5/day", "9/second"]
    answer = service.post("/v1/decide", policy="promo", subject="ann")
    assert (answer.status_code, "name its segment" in answer.json()["detail"]) == (422, True)


def test_readiness_says_which_version_and_how_old(tmp_path: Path) -> None:
    site = directory_site(tmp_path)
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]), version="monday")
    watch = site.watch(tmp_path / "cache")
    watch.poll()
    with Service([PROMO], segments=watch) as service:
        ready = got(service, "/readyz")["segments"]
        assert (ready["version"], ready["error"]) == ("monday", None)
        assert min(ready["age"], ready["behind"]) >= 0
        site.delete("pointer.json")
        watch.poll()
        ready = got(service, "/readyz")["segments"]
        assert ready["version"] == "monday"
        assert "nothing is published there" in ready["error"]
        assert told(service, "/v1/decide", policy="promo", subject=2)["segment"] == "active"
        assert got(service, "/v1/segments")["version"] == "monday"
    watch.stop()


def test_without_segments_it_says_so() -> None:
    with Service([PSP]) as service:
        for path in ("", "/new/count", "/new/members", "/new/contains?id=1"):
            assert "start it with --segments" in refused(service, f"/v1/segments{path}", 404)
        assert service.post("/v1/segments/of", ids=[1]).status_code == 404
        assert got(service, "/readyz") == {"status": "ok"}


@pytest.mark.parametrize("path", ["/v1/segments/", "/v1/segments//count", "/v1/segments/a/b/count", "/v1/segments/new"])
def test_paths_that_there_are_not(service: Service, path: str) -> None:
    assert refused(service, path, 404).startswith("there is nothing at this path; /docs ")
