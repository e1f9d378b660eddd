"""ShouldRateLimit over a real gRPC server: what is counted, what is answered, what an error is."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.envoy import OK, OVER, EnvoyService, codes_of, grpc
from tests.kit.server import soon

from capline import ManualClock
from capline.model.errors import CaplineError
from capline.service.envoy import server
from capline.service.envoy.messages import SERVICE, part
from capline.service.envoy.plan import LARGEST_REMAINING, subject_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW_US = 1_763_700_000_000_000
MINUTE_US = 60_000_000
FILE = """
domain: edge
descriptors:
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 20, name: path}}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3, name: user}}
  - {key: vip, rate_limit: {unit: minute, requests_per_unit: 5, name: vip, replaces: [{name: user}]}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: files, value: f*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_US)


@pytest.fixture
def service(tmp_path: Path, clock: ManualClock) -> Iterator[EnvoyService]:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with EnvoyService(tmp_path, clock=clock, look_every_s=0.01) as asked:
        yield asked


def test_twenty_of_twenty_five_are_ok(service: EnvoyService) -> None:
    assert "".join(service.codes("path=/a")[0] for _ in range(25)) == "+" * 20 + "-" * 5
    assert service.codes("path=/b") == "++"
    assert (service.counted("edge.path", "ok"), service.counted("edge.path", "over_limit")) == (21, 5)


def test_a_status_says_the_limit_what_is_left_and_when_more_is(service: EnvoyService, clock: ManualClock) -> None:
    status = service.ask("user=7").statuses[0]
    assert (status.current_limit.name, status.current_limit.requests_per_unit, status.current_limit.unit) == (
        "user",
        3,
        2,
    )
    assert (status.limit_remaining, status.duration_until_reset.seconds) == (2, 60)
    clock.advance_us(15_500_000)
    status = service.ask("user=7", hits_addend=2).statuses[0]
    assert (status.limit_remaining, status.duration_until_reset.ToMicroseconds()) == (0, 44_500_000)
    clock.advance_us(40_000_000)
    refused = service.ask("user=7").statuses[0]
    assert (refused.code, refused.limit_remaining, refused.duration_until_reset.seconds) == (OVER, 0, 4)
    clock.advance_us(4_500_000)
    assert service.codes("user=7", hits_addend=2) == "--"
    assert service.codes("user=7") == "++"


def test_a_descriptor_of_two_entries_has_not_the_limit_of_one(service: EnvoyService) -> None:
    assert [service.codes("banned=1"), service.codes("banned=1 user=7")] == ["--", "++"]
    status = service.ask("banned=1 user=7").statuses[0]
    assert (status.HasField("current_limit"), status.limit_remaining) == (False, 0)
    assert service.counted("", "no_limit") == 2


def test_shadow_mode_is_ok_and_counted(service: EnvoyService) -> None:
    assert [service.codes("shadow=1") for _ in range(3)] == ["++"] * 3
    assert (service.counted("edge.shadow", "ok"), service.counted("edge.shadow", "shadow")) == (1, 2)


def test_what_is_unknown_is_ok_and_counted(service: EnvoyService) -> None:
    assert service.codes("path=/a", domain="other") == "++"
    assert service.codes("nothing=1", "path=/a") == "+++"
    assert service.codes(*["other=1"] * 64, domain="third") == "+" * 65, "as many as there may be"
    assert (service.counted("", "no_domain", ""), service.counted("", "no_limit")) == (65, 1)


def test_unlimited_has_the_largest_remaining(service: EnvoyService) -> None:
    status = service.ask("free=1").statuses[0]
    assert (status.code, status.limit_remaining, status.HasField("current_limit")) == (OK, LARGEST_REMAINING, False)


def test_a_refusal_by_one_descriptor_consumes_none(service: EnvoyService) -> None:
    assert service.codes("path=/a", "user=1", hits_addend=3) == "+++"
    assert service.codes("path=/a", "shadow=9", "user=1", "quota=9") == "-++-+"
    answer = service.ask("path=/a", "shadow=9", "nothing=1", "quota=9")
    assert [status.limit_remaining for status in answer.statuses] == [16, 0, 0, 1]
    assert codes_of(answer) == [OK] * 4


def test_two_descriptors_on_one_log_add_up(service: EnvoyService) -> None:
    assert service.codes("files=fa", "files=fb") == "+++"
    assert service.codes("files=fc") == "--"
    assert service.codes("user=1", "user=1", "user=1", "user=1") == "-----"
    assert service.codes("user=1", "user=1", "user=1") == "++++"


def test_two_limits_on_one_log_are_the_smaller_one(service: EnvoyService) -> None:
    few, many = ({"entries": "user=1", "limit": {"requests_per_unit": quota, "unit": 2}} for quota in (3, 9))
    assert service.codes(few, many, hits_addend=2) == service.codes(many, few, hits_addend=2) == "---"
    assert service.codes(few, many) == "+++"
    assert service.codes(many, few) == "---", "one is left"


def test_a_descriptor_that_replaces_another_counts_in_its_stead(service: EnvoyService) -> None:
    assert [service.codes("user=1", "vip=1") for _ in range(6)] == ["+++"] * 5 + ["-+-"]
    assert not service.ask("user=1", "vip=2").statuses[0].HasField("current_limit")
    assert service.ask("user=1").statuses[0].limit_remaining == 2


def test_quota_mode_is_over_only_if_all_of_it_are_or_any_other_is(service: EnvoyService) -> None:
    assert service.codes("quota=a", hits_addend=2) == "++"
    assert service.codes("quota=a") == "--"
    assert service.codes("quota=a", "quota=b") == "+-+"
    assert service.codes("quota=a", "quota=b", "banned=1") == "--+-"
    assert service.codes("user=1", "quota=a", "quota=b") == "++-+"
    assert service.codes("user=1", "quota=a", "quota=b") == "-+--"
    assert service.ask("user=1").statuses[0].limit_remaining == 1  # given back


def test_the_addend_is_one_unless_said_and_a_descriptors_own_wins(service: EnvoyService) -> None:
    assert service.ask("path=/a").statuses[0].limit_remaining == 19
    assert service.ask("path=/a", hits_addend=4).statuses[0].limit_remaining == 15
    own = {"entries": "path=/a", "hits_addend": {"value": 5}}
    assert service.ask(own, hits_addend=9).statuses[0].limit_remaining == 10
    look = {"entries": "path=/a", "hits_addend": {"value": 0}}
    assert [service.ask(look).statuses[0].limit_remaining for _ in range(2)] == [10, 10]
    assert service.codes("path=/a", hits_addend=10) == "++"
    assert service.codes(look) == "++"  # exactly full


def test_a_token_quota_is_looked_at_before_and_debited_after_past_its_quota_too(
    service: EnvoyService, clock: ManualClock
) -> None:
    look = {"entries": "quota=a", "hits_addend": {"value": 0}}
    debit = {"entries": "quota=a", "hits_addend": {"value": 1}}
    assert [service.codes(look) + service.codes(debit) for _ in range(2)] == ["++++"] * 2
    assert service.codes(look) == "++"  # exactly full: as upstream, one more goes on
    assert service.codes(debit) == "--"  # and is counted past the quota
    assert service.codes(look) == "--"
    assert service.codes(look, "quota=b") == "+-+"
    clock.advance_us(MINUTE_US)
    assert service.codes(look) == "++"
    assert service.codes({"entries": "user=1", "hits_addend": {"value": 9}}) == "--"
    assert service.codes({"entries": "user=1", "hits_addend": {"value": 0}}, "path=/a") == "--+"
    assert service.ask("path=/a").statuses[0].limit_remaining == 19


def test_the_requests_own_limit_wins(service: EnvoyService) -> None:
    own = {"entries": "user=1", "limit": {"requests_per_unit": 2, "unit": 4}}
    assert [service.codes(own) for _ in range(3)] == ["++", "++", "--"]
    status = service.ask(own).statuses[0]
    assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (2, 4)
    assert service.codes(own, domain="other") == "++"
    assert service.ask("user=1").statuses[0].limit_remaining == 2
    with pytest.raises(grpc.RpcError) as refused:
        service.ask({"entries": "user=1", "limit": {"requests_per_unit": 2}})
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("descriptors", "request_", "reason"),
    [
        (["path=/a"], {"domain": ""}, "domain must not be empty"),
        ([], {}, "descriptor list must not be empty"),
        (["path=/a"] * 65, {}, "at most 64"),
        ([" ".join(["path=/a"] * 65)], {}, "at most 64"),
        ([{"entries": "path=/a", "hits_addend": {"value": 1 << 60}}], {}, "a cost is"),
    ],
)
def test_a_request_without_an_answer_is_an_error(
    service: EnvoyService, descriptors: list[Any], request_: dict[str, Any], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        service.ask(*descriptors, **request_)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert reason in refused.value.details()
    assert service.codes("path=/a") == "++"


def test_more_calls_than_it_takes_at_once_are_turned_away(
    service: EnvoyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.codes("path=/a") == "++"
    monkeypatch.setattr(server, "MOST_CALLS", 0)
    with pytest.raises(grpc.RpcError) as refused:
        service.ask("path=/a")
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    monkeypatch.setattr(server, "MOST_CALLS", 1)
    assert service.codes("path=/a") == "++"  # none of those before is still counted
    with pytest.raises(grpc.RpcError):
        service.ask("path=/a", domain="")
    assert service.ask("path=/a").statuses[0].limit_remaining == 17


def test_an_outage_is_unavailable_and_503(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with EnvoyService(tmp_path, "redis://127.0.0.1:1/0") as service:
        for descriptors in (["path=/a"], ["path=/a", "user=1"], ["shadow=1"], ["quota=1"]):
            with pytest.raises(grpc.RpcError) as outage:
                service.ask(*descriptors)
            assert outage.value.code() == grpc.StatusCode.UNAVAILABLE
        answer = service.json('{"domain":"edge","descriptors":[{"entries":[{"key":"path","value":"/a"}]}]}')
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert service.codes("free=1") == "++"


def test_json_is_answered_as_upstream_does(service: EnvoyService) -> None:
    body = '{"domain":"edge","hitsAddend":3,"descriptors":[{"entries":[{"key":"user","value":"1"}]}]}'
    allowed = service.json(body, **{"Content-Type": "application/x-www-form-urlencoded"})
    assert (allowed.status_code, allowed.headers["Content-Type"]) == (200, "application/json")
    assert allowed.json() == {
        "overallCode": "OK",
        "statuses": [
            {
                "code": "OK",
                "currentLimit": {"name": "user", "requestsPerUnit": 3, "unit": "MINUTE"},
                "durationUntilReset": "60s",
            }
        ],
    }
    refused = service.json(body)
    assert (refused.status_code, refused.json()["overallCode"]) == (429, "OVER_LIMIT")
    for wrong in ("", "{", "[]", '{"domain":"edge"}', '{"domain":""}', '{"domains":"edge"}', b"\xff", "[" * 5000):
        answer = service.json(wrong)
        assert (answer.status_code, answer.text) == (400, "Bad Request\n")


def test_the_page_shows_what_is_answered(tmp_path: Path, clock: ManualClock) -> None:
    page = (Path(__file__).parents[4] / "docs" / "envoy.md").read_text(encoding="utf-8")
    form = re.findall(r"--json '(.*)'", page)
    answers = re.findall(r"```json\n(.*?)\n```", page)
    (file,) = re.findall(r"<<'EOF'\n(.*?)EOF", page, re.DOTALL)
    (tmp_path / "edge.yaml").write_text(file, encoding="utf-8")
    with EnvoyService(tmp_path, clock=clock) as service:
        assert [service.json(one).json() for one in form] == [json.loads(one) for one in answers]
    assert len(answers) == 1


def test_files_are_followed_and_a_broken_one_is_refused(service: EnvoyService, tmp_path: Path) -> None:
    def reloads(outcome: str) -> float:
        service.run(_sleep())
        return service.registry.get_sample_value("capline_envoy_reloads_total", {"outcome": outcome}) or 0.0

    assert service.codes("user=1", hits_addend=3) == "++"
    (tmp_path / "edge.yaml").write_text(
        FILE.replace("requests_per_unit: 3,", "requests_per_unit: 4,"), encoding="utf-8"
    )
    (tmp_path / "other.yaml").write_text(FILE.replace("edge", "other"), encoding="utf-8")
    # A file may be read before it is whole, which is refused as well.
    assert soon(lambda: reloads("taken") >= 1 and service.codes("banned=1", domain="other") == "--", 60)
    assert soon(lambda: service.ask("user=1").statuses[0].current_limit.requests_per_unit == 4, 60)
    assert service.codes("user=1") == "--"  # what was counted under the limit of before still counts
    before = reloads("refused")
    (tmp_path / "broken.yaml").write_text("domain: edge", encoding="utf-8")
    assert soon(lambda: reloads("refused") > before, 60)
    assert service.codes("banned=1", domain="other") == "--"


def test_health_and_reflection(service: EnvoyService) -> None:
    health = part("grpc_health.v1.health_pb2")
    stub = part("grpc_health.v1.health_pb2_grpc").HealthStub(service.channel)
    for name in ("", SERVICE):
        answer = service.run(_awaited(stub.Check, health.HealthCheckRequest(service=name)))
        assert answer.status == health.HealthCheckResponse.SERVING
    reflection = part("grpc_reflection.v1alpha.reflection_pb2")
    reflected = part("grpc_reflection.v1alpha.reflection_pb2_grpc").ServerReflectionStub(service.channel)
    asked = iter([reflection.ServerReflectionRequest(list_services="")])
    answer = service.run(_first(reflected.ServerReflectionInfo, asked))
    assert SERVICE in [one.name for one in answer.list_services_response.service]


def test_it_does_not_start_where_it_cannot(tmp_path: Path, service: EnvoyService) -> None:
    with pytest.raises(CaplineError, match="cannot be read"), EnvoyService(tmp_path / "missing"):
        pass
    (tmp_path / "faulty").write_text("domain: [", encoding="utf-8")
    with pytest.raises(CaplineError, match=r"faulty:[0-9]+: not YAML"), EnvoyService(tmp_path / "faulty"):
        pass


def test_different_descriptors_are_different_subjects() -> None:
    subjects = [
        subject_of("d", [("a", "b"), ("c", "d")]),
        subject_of("d", [("a", "b|c=d")]),
        subject_of("d", [("a=b|c", "d")]),
        subject_of("d|a=b", [("c", "d")]),
        subject_of("d", [("a", "b\\"), ("c", "d")]),
        subject_of("d", [("a", "x" * 600)]),
        subject_of("d", [("a", "x" * 601)]),
    ]
    assert len(set(subjects)) == len(subjects)
    assert max(len(subject) for subject in subjects) <= 512


async def _sleep() -> None:
    await asyncio.sleep(0.05)


async def _awaited(method: Any, request: Any) -> Any:
    return await method(request)


async def _first(method: Any, requests: Any) -> Any:
    async for one in method(requests):
        return one
    return None
