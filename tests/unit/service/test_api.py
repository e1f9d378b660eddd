"""The verbs over HTTP: what is asked, what is answered, what is recorded."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kit.service import Service

from capline import ManualClock, Policy
from capline.service.verbs import batch

NOW_US = 1_763_700_000_000_000
DAY_S = 86_400.0
POLICIES = (
    Policy("promo", ["3/day"], by_segment={"active": ["5/day"]}, channels={"push": ["1/day"]}),
    Policy("psp", ["1/s"]),
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


@pytest.fixture(params=["memory", "lmdb"])
def service(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Service]:
    url = "memory://" if request.param == "memory" else f"lmdb://{tmp_path}/store"
    with Service(POLICIES, url, clock=clock) as asked:
        yield asked


def answered(service: Service, path: str, **form: Any) -> Any:
    answer = service.post(path, **form)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_a_decision_has_every_field_and_the_headers(service: Service) -> None:
    answer = service.post(
        "/v1/decide", policy="promo", subject="user:42", cost=1, id=None, segment=None, channel=None, zone=None
    )
    assert answer.json() == {
        "allowed": True,
        "policy": "promo",
        "limit": "3/day",
        "remaining": 2,
        "retry_after": 0,
        "reset_after": DAY_S,
        "hit": NOW_US,
        "segment": None,
        "origin": "store",
    }
    assert answer.headers["RateLimit-Policy"] == '"promo-day";q=3;w=86400'
    assert answer.headers["RateLimit"] == '"promo-day";r=2;t=86400'
    assert "Retry-After" not in answer.headers


def test_an_answer_has_the_usage_of_each_limit_where_it_is_asked_for(service: Service) -> None:
    fresh = {"limit": "1/second", "name": "psp", "used": 1, "remaining": 0, "past": 0, "frees_in": 1.0, "whole_in": 1.0}
    for path, form in (("decide", {}), ("peek", {}), ("schedule", {"max_wait": 0}), ("charge", {})):
        named = {"policy": "psp", "subject": path, "usage": True, **form}
        assert answered(service, f"/v1/{path}", **named)["usage"] == [fresh], path
    joint = {"attempts": [{"policy": "psp", "subject": "a"}, {"policy": "promo", "subject": "a"}]}
    assert [len(part) for part in answered(service, "/v1/schedule/all", **joint, usage=True)["usage"]] == [1, 1]
    assert "usage" not in answered(service, "/v1/decide/all", **joint)
    assert answered(service, "/v1/usage", policy="psp", subject="decide")["limits"] == [fresh]
    twice = b'{"policy": "psp", "subject": "u", "usage": true, "usage": true}'
    assert service.send("/v1/decide", twice).status_code == 422
    assert service.post("/v1/refund/all", **joint, hits=[1, 1], usage=True).status_code == 422


def test_a_refusal_is_an_answer(service: Service) -> None:
    for _ in range(3):
        assert answered(service, "/v1/decide", policy="promo", subject="u")["allowed"]
    refused = service.post("/v1/decide", policy="promo", subject="u")
    assert (refused.status_code, refused.json()["allowed"], refused.json()["hit"]) == (200, False, None)
    assert refused.json()["retry_after"] == DAY_S
    assert refused.headers["Retry-After"] == "86400"
    never = answered(service, "/v1/decide", policy="promo", subject="v", cost=4)
    assert (never["allowed"], never["retry_after"]) == (False, None)


def test_segment_channel_cost_and_id_are_passed_on(service: Service) -> None:
    first = answered(service, "/v1/decide", policy="promo", subject="u", cost=2, id="m1", segment="active")
    assert (first["limit"], first["remaining"], first["segment"]) == ("5/day", 3, "active")
    again = answered(service, "/v1/decide", policy="promo", subject="u", cost=2, id="m1", segment="active")
    assert again["hit"] == first["hit"]
    assert service.post("/v1/decide", policy="promo", subject="u", cost=1, id="m1").status_code == 409
    assert answered(service, "/v1/decide", policy="promo", subject="v", channel="push")["limit"] == "1/day"
    assert not answered(service, "/v1/decide", policy="promo", subject="v", channel="push")["allowed"]


def test_a_peek_consumes_nothing_and_a_refund_is_once(service: Service) -> None:
    assert answered(service, "/v1/peek", policy="promo", subject="u")["remaining"] == 2
    hit = answered(service, "/v1/decide", policy="promo", subject="u")["hit"]
    assert answered(service, "/v1/peek", policy="promo", subject="u")["remaining"] == 1
    assert answered(service, "/v1/refund", policy="promo", subject="u", hit=hit) == {"refunded": True}
    assert answered(service, "/v1/refund", policy="promo", subject="u", hit=hit, cost=1) == {"refunded": False}
    assert answered(service, "/v1/peek", policy="promo", subject="u")["remaining"] == 2


def test_a_hit_of_several_units_is_given_back_whole() -> None:
    with Service([Policy("api", ["3/day"], algorithm="gcra")], clock=ManualClock(NOW_US)) as asked:
        hit = answered(asked, "/v1/decide", policy="api", subject="u", cost=3)["hit"]
        assert answered(asked, "/v1/refund", policy="api", subject="u", hit=hit, cost=3) == {"refunded": True}
        assert answered(asked, "/v1/peek", policy="api", subject="u")["remaining"] == 2


def test_a_charge_counts_past_the_quota_and_a_settlement_corrects(service: Service) -> None:
    hit = answered(service, "/v1/decide", policy="promo", subject="u", id="m1")["hit"]
    charged = answered(service, "/v1/charge", policy="promo", subject="u", cost=4, id="m2")
    assert (charged["allowed"], charged["remaining"], charged["retry_after"]) == (True, 0, 0)
    assert answered(service, "/v1/charge", policy="promo", subject="u", cost=4, id="m2")["hit"] == charged["hit"]
    assert not answered(service, "/v1/peek", policy="promo", subject="u", cost=0)["allowed"]
    usage = answered(service, "/v1/usage", policy="promo", subject="u")
    assert usage == {
        "policy": "promo",
        "segment": None,
        "limits": [
            {
                "limit": "3/day",
                "name": "promo",
                "used": 5,
                "remaining": 0,
                "past": 2,
                "frees_in": pytest.approx(DAY_S),
                "whole_in": pytest.approx(DAY_S),
            }
        ],
    }
    assert answered(service, "/v1/settle", policy="promo", subject="u", hit=charged["hit"], cost=1) == {"settled": True}
    assert answered(service, "/v1/peek", policy="promo", subject="u", cost=0)["remaining"] == 1
    assert answered(service, "/v1/settle", policy="promo", subject="u", hit=hit, cost=0) == {"settled": True}
    assert answered(service, "/v1/settle", policy="promo", subject="u", hit=hit, cost=2) == {"settled": False}
    for path, form in (("charge", {"cost": 0}), ("peek", {"cost": 0, "id": "x"}), ("settle", {"hit": hit, "cost": -1})):
        assert service.post(f"/v1/{path}", policy="promo", subject="u", **form).status_code == 422


def test_a_reservation_is_committed_cancelled_or_expires() -> None:
    clock = ManualClock(NOW_US)
    with Service([Policy("jobs", ["2/day"], reservations=True), Policy("psp", ["1/s"])], clock=clock) as service:

        def verb(path: str, **form: object) -> Any:
            return answered(service, f"/v1/{path}", policy="jobs", subject="u", **form)

        kept, gone = verb("reserve", id="m1", ttl=30), verb("reserve")
        assert verb("reserve", id="m1")["hit"] == kept["hit"]
        assert (kept["allowed"], gone["remaining"], verb("reserve")["allowed"]) == (True, 0, False)
        assert [verb("cancel", hit=gone["hit"]) for _ in range(2)] == [{"cancelled": True}, {"cancelled": False}]
        assert [verb("commit", hit=kept["hit"]) for _ in range(2)] == [{"committed": True}] * 2
        assert verb("commit", hit=gone["hit"]) == {"committed": False}
        assert verb("reserve", ttl=1.5)["allowed"]
        assert verb("usage")["limits"][0]["used"] == 2
        clock.advance_us(30_000_000)
        assert verb("usage")["limits"][0]["used"] == 1
        for path, form in (
            ("reserve", {"ttl": 0}),
            ("reserve", {"ttl": "1"}),
            ("commit", {}),
            ("cancel", {"hit": 1.5}),
        ):
            assert service.post(f"/v1/{path}", policy="jobs", subject="u", **form).status_code == 422
        refused = service.post("/v1/reserve", policy="psp", subject="u")
        assert refused.status_code == 422
        assert "no reservations; give it reservations=True" in refused.json()["detail"]


def test_slots_follow_one_another(service: Service) -> None:
    waits = [answered(service, "/v1/schedule", policy="psp", subject="a")["wait"] for _ in range(3)]
    assert waits == pytest.approx([0, 1, 2], abs=1e-3)
    late = answered(service, "/v1/schedule", policy="psp", subject="a", max_wait=1)
    assert (late["allowed"], late["hit"]) == (False, None)
    assert answered(service, "/v1/schedule", policy="psp", subject="b", not_before=5.5)["wait"] == 5.5


def test_a_slot_asked_for_again_says_how_late_that_is(service: Service, clock: ManualClock) -> None:
    first = answered(service, "/v1/schedule", policy="psp", subject="c", id="x")
    clock.advance_us(250_000)
    again = answered(service, "/v1/schedule", policy="psp", subject="c", id="x")
    assert (first["late"], again["hit"], again["wait"], again["late"]) == (0, first["hit"], 0, 0.25)


def test_an_integer_is_not_its_text(service: Service) -> None:
    for subject, path in ((42, "i:42"), ("42", "s:42"), ("42", "42")):
        service("DELETE", "/v1/subjects/i:42")
        service("DELETE", "/v1/subjects/s:42")
        answered(service, "/v1/decide", policy="promo", subject=subject)
        why = service("GET", f"/v1/subjects/{path}?policy=promo").json()
        assert (why["subject"], len(why["hits"])) == (subject, 1)
        other = "s:42" if subject == 42 else "i:42"
        assert service("GET", f"/v1/subjects/{other}?policy=promo").json()["hits"] == []


def test_explain_and_erase(service: Service) -> None:
    hit = answered(service, "/v1/decide", policy="promo", subject="a/b ü", segment="active")["hit"]
    why = service("GET", "/v1/subjects/a%2Fb%20%C3%BC?policy=promo&segment=active").json()
    assert why["hits"] == [{"hit": hit, "units": 1}]
    assert why["decision"] == answered(service, "/v1/peek", policy="promo", subject="a/b ü", segment="active")
    (limit,) = why["limits"]
    assert limit == {
        "limit": "5/day",
        "log": "promo",
        "used": 1,
        "remaining": 4,
        "binds": True,
        "frees": [{"at_us": NOW_US + 86_400_000_000, "units": 1}],
    }
    assert service("DELETE", "/v1/subjects/a%2Fb%20%C3%BC").json() == {"erased_logs": 1}
    assert service("DELETE", "/v1/subjects/a%2Fb%20%C3%BC").json() == {"erased_logs": 0}


def test_a_batch_of_columns(service: Service) -> None:
    many = answered(service, "/v1/decide/batch", policy="promo", subjects=[1, "1", 1, 1, 1, -1], cost=1)
    assert many["allowed"] == [True, True, True, True, False, False]
    assert many["remaining"] == [2, 2, 1, 0, 0, 0]
    assert many["retry_after"] == [0, 0, 0, 0, pytest.approx(DAY_S, abs=1e-3), None]
    assert many["limit"] == ["3/day"] * 5 + [None]
    assert [stamp is not None for stamp in many["hit"]] == many["allowed"]
    assert list(many["errors"]) == ["5"]
    assert (many["origin"], many["origins"]) == ("store", {})
    for subject, left in ((1, 0), ("1", 1)):
        assert answered(service, "/v1/peek", policy="promo", subject=subject, cost=1)["remaining"] == left


def test_a_batch_by_segments_and_codes(service: Service) -> None:
    form = {"policy": "promo", "subjects": [1, 2, 3], "segments": [None, "active"], "codes": [1, 0, 1]}
    many = answered(service, "/v1/decide/batch", **form, receipt="r1")
    assert many["limit"] == ["5/day", "3/day", "5/day"]
    assert answered(service, "/v1/decide/batch", **form, receipt="r1")["hit"] == many["hit"]
    assert answered(service, "/v1/decide/batch", policy="promo", subjects=[4], segment="active")["limit"] == ["5/day"]
    assert answered(service, "/v1/decide/batch", policy="promo", subjects=[])["allowed"] == []


def test_a_batch_of_attempts_of_any_policies(service: Service) -> None:
    attempts = [
        {"policy": "psp", "subject": "a"},
        {"policy": "psp", "subject": "a"},
        {"policy": "nope", "subject": "a"},
        {"policy": "promo", "subject": "a", "cost": 2, "segment": "active"},
    ]
    many = answered(service, "/v1/decide/batch", attempts=attempts)
    assert many["allowed"] == [True, False, False, True]
    assert many["limit"] == ["1/second", "1/second", None, "5/day"]
    assert many["remaining"] == [0, 0, 0, 3]
    assert many["errors"] == {"2": "no policy 'nope'; there are: promo, psp"}


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("kind", ["columns", "attempts"])
def test_a_large_batch_is_read_and_answered_beside_the_loop(
    service: Service, kind: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[bool] = []

    def noting(work: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*values: Any) -> Any:
            beside.append(threading.current_thread() is not threading.main_thread())
            return work(*values)

        return noted

    monkeypatch.setattr(batch.BatchRequest, "check", noting(batch.BatchRequest.check))
    for name in ("columns_of", "columns_of_rows"):
        monkeypatch.setattr(batch, name, noting(getattr(batch, name)))
    names = [f"user:{row}" for row in range(4000 if large else 10)]
    attempts = [{"policy": "promo", "subject": name} for name in names]
    form: dict[str, Any] = {"attempts": attempts} if kind == "attempts" else {"policy": "promo", "subjects": names}
    assert answered(service, "/v1/decide/batch", **form)["allowed"] == [True] * len(names)
    assert beside == [large, large]


def test_one_answer_for_several_subjects(service: Service) -> None:
    attempts = [{"policy": "promo", "subject": "u"}, {"policy": "psp", "subject": "a"}]
    both = answered(service, "/v1/decide/all", attempts=attempts)
    assert (both["allowed"], len(both["hits"]), both["policy"], both["binds"]) == (True, 2, "psp", 1)
    refused = answered(service, "/v1/decide/all", attempts=attempts)
    assert (refused["allowed"], refused["hits"], refused["limit"]) == (False, [], "1/second")
    assert answered(service, "/v1/peek", policy="promo", subject="u")["remaining"] == 1
    assert service.post("/v1/decide/all", attempts=[]).status_code == 422


def test_hits_of_a_batch_are_given_back_each_once(service: Service) -> None:
    sent = answered(service, "/v1/decide/batch", policy="promo", subjects=["a", 7, "b"])
    hits = [sent["hit"][0], sent["hit"][1], 1]
    given_back = {"policy": "promo", "subjects": ["a", 7, "b"], "hits": hits}
    assert answered(service, "/v1/refund/batch", **given_back) == {"refunded": [True, True, False]}
    assert answered(service, "/v1/refund/batch", **given_back) == {"refunded": [False, False, False]}
    assert [
        answered(service, "/v1/usage", policy="promo", subject=name)["limits"][0]["used"] for name in ("a", "b")
    ] == [0, 1]
    for wrong in ({"hits": hits[:2]}, {"hits": [None, 1, 1]}, {"policy": "none"}, {"cost": 0}):
        assert service.post("/v1/refund/batch", **{**given_back, **wrong}).status_code in (404, 422), wrong


def test_a_slot_of_several_subjects_is_one_instant_and_is_given_back_whole(service: Service) -> None:
    attempts = [{"policy": "promo", "subject": "u"}, {"policy": "psp", "subject": "a"}]
    slots = [answered(service, "/v1/schedule/all", attempts=attempts) for _ in range(2)]
    assert [slot["wait"] for slot in slots] == pytest.approx([0, 1], abs=1e-3)
    assert [len(set(slot["hits"])) for slot in slots] == [1, 1]
    late = answered(service, "/v1/schedule/all", attempts=attempts, max_wait=1)
    assert (late["allowed"], late["hits"], late["wait"], late["policy"]) == (False, [], 0, "psp")
    given_back = {"attempts": attempts, "hits": slots[1]["hits"]}
    assert answered(service, "/v1/refund/all", **given_back) == {"refunded": 2}
    assert answered(service, "/v1/refund/all", **given_back) == {"refunded": 0}
    later = answered(service, "/v1/schedule/all", attempts=attempts, not_before=5.5)
    assert (later["wait"], answered(service, "/v1/peek", policy="promo", subject="u", cost=0)["remaining"]) == (5.5, 1)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("schedule", {"attempts": []}),
        ("schedule", {"attempts": attempts, "max_wait": -1}),
        ("refund", {"attempts": attempts, "hits": [1]}),
        ("refund", {"attempts": attempts * 9, "hits": [1] * 18}),
    ]
    for verb, form in wrong:
        assert service.post(f"/v1/{verb}/all", **form).status_code == 422


def test_the_policies_in_force(service: Service) -> None:
    told = service("GET", "/v1/policies").json()
    assert told["namespace"] == "capline"
    assert [policy["name"] for policy in told["policies"]] == ["promo", "psp"]
    assert told["policies"][0] == {
        "name": "promo",
        "limits": ["3/day"],
        "by_segment": {"active": ["5/day"]},
        "channels": {"push": ["1/day"]},
        "algorithm": "sliding_log",
        "count_denied": False,
        "log": "promo",
        "zone": "UTC",
        "reservations": False,
        "shadow": False,
    }
