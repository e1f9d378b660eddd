"""ShouldRateLimit over a real gRPC server: what is counted, what is answered, what an error is."""

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kit.envoy import OK, OVER, EnvoyService, codes_of, grpc
from tests.kit.server import soon

from capline import ManualClock
from capline.model.errors import CaplineError
from capline.service.envoy import server
from capline.service.envoy.messages import SERVICE, part
from capline.service.envoy.plan import LARGEST_REMAINING, subject_of
from capline.service.settings.values import Modes

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
    with EnvoyService(tmp_path, clock=clock) as asked:
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


@pytest.mark.parametrize("store", ["memory://", "lmdb"])
def test_as_many_descriptors_as_there_may_be_refuse_together(tmp_path: Path, store: str) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    url = f"lmdb://{tmp_path}/store" if store == "lmdb" else store
    each = [f"user={number}" for number in range(64)]
    with EnvoyService(tmp_path / "edge.yaml", url) as service:
        assert service.codes("user=63", hits_addend=2) == "++"
        assert service.codes(*each) == "+" * 65
        assert service.codes(*each) == "-" + "+" * 63 + "-", "the last one is full"
        assert [status.limit_remaining for status in service.ask(*each).statuses] == [2] * 63 + [0]


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


@pytest.mark.parametrize(
    ("addend", "codes", "left"),
    [(0, "++", 20), (20, "++", 0), (21, "--", 0), (2**32 - 1, "--", 0), (2**53 - 1, "--", 0)],
)
def test_a_descriptors_addend_of_any_size_is_counted(service: EnvoyService, addend: int, codes: str, left: int) -> None:
    own = {"entries": "path=/a", "hits_addend": {"value": addend}}
    assert service.codes(own) == codes
    assert service.ask({"entries": "path=/a", "hits_addend": {"value": 0}}).statuses[0].limit_remaining == left
    too_large = {"entries": "path=/a", "hits_addend": {"value": 2**53}}
    with pytest.raises(grpc.aio.AioRpcError, match="a cost is 0 to 9007199254740991 units, not 9007199254740992"):
        service.ask(too_large)
    refused = service.codes("path=/b", "path=/c", hits_addend=2**32 - 1)
    assert (refused, service.ask("path=/b").statuses[0].limit_remaining) == ("---", 19), "a refusal counts nothing"


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


def told(answer: Any) -> Any:
    """The dynamic metadata of a response."""
    return part("google.protobuf.json_format").MessageToDict(answer.dynamic_metadata)


def test_metadata_of_the_descriptors_that_have_room_is_told(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "edge.yaml").write_text(
        """
domain: edge
descriptors:
  - key: service
    value: a
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
    metadata: {name: a, price: 2, tags: [x, "1", 1.5, true, "true", null], at: {zone: one, host: h}}
  - key: service
    value: b
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 2}
    metadata: {name: b, only: b, at: {zone: two, rack: 7}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 9}}
""",
        encoding="utf-8",
    )
    of_a = {"name": "a", "price": 2, "tags": ["x", "1", 1.5, True, "true", None], "at": {"zone": "one", "host": "h"}}
    of_b = {"name": "b", "only": "b", "at": {"zone": "two", "rack": 7}}
    both = {**of_a, "only": "b", "at": {"zone": "one", "host": "h", "rack": 7}}
    with EnvoyService(tmp_path, clock=clock) as service:
        asked = {
            "domain": "edge",
            "descriptors": [{"entries": ["service=a"]}, {"entries": ["service=b"]}, {"entries": ["path=/"]}],
        }
        for metadata in (both, of_b):
            assert told(service.ask("service=a", "service=b", "path=/")) == {**asked, "metadata": metadata}
        assert told(service.ask("service=a", "service=b", "path=/")) == asked, "those that have some are over"
        own = {"entries": "service=b", "limit": {"requests_per_unit": 2, "unit": 4}, "hits_addend": {"value": 1}}
        assert told(service.ask("path=/", own)) == {}, "no limit of the files with metadata"
        clock.advance_us(MINUTE_US)
        assert told(service.ask("service=a"))["metadata"] == of_a
        assert service.json('{"domain":"edge","descriptors":[{"entries":[{"key":"service","value":"b"}]}]}').json()[
            "dynamicMetadata"
        ] == {"domain": "edge", "descriptors": [{"entries": ["service=b"]}], "metadata": of_b}
    with EnvoyService(tmp_path, modes=Modes(dynamic_metadata=True)) as service:
        assert told(service.ask("path=/", own, "other=1", hits_addend=3)) == {
            "domain": "edge",
            "hitsAddend": 3,
            "descriptors": [
                {"entries": ["path=/"]},
                {"entries": ["service=b"], "limit": "requests_per_unit:2 unit:DAY", "hitsAddend": 1},
                {"entries": ["other=1"]},
            ],
        }


def test_headers_are_of_the_limit_that_is_nearest(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")

    def headers(*descriptors: Any) -> dict[str, str]:
        return {header.key: header.value for header in service.ask(*descriptors).response_headers_to_add}

    names = ("RateLimit-Limit", "RateLimit-Remaining", "Reset")
    with EnvoyService(tmp_path, clock=clock, modes=Modes(response_headers=True, reset_header="Reset")) as service:
        assert headers("path=/a", "user=1") == dict(zip(names, ("3", "2", "60"), strict=True))
        clock.advance_us(500_001)
        assert headers("path=/a") == dict(zip(names, ("20", "18", "60"), strict=True))
        assert service.codes("path=/b", hits_addend=20) == "++"
        assert headers("path=/b", "user=1") == dict(zip(names, ("20", "0", "60"), strict=True))
        assert headers("free=1") == headers("nothing=1") == {}
    with EnvoyService(tmp_path) as service:
        assert headers("path=/a") == {}


def test_global_shadow_mode_refuses_nothing_and_counts_what_would_be(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with EnvoyService(tmp_path, modes=Modes(shadow_mode=True)) as service:
        assert service.codes("path=/a", "user=1", hits_addend=3) == "+++"
        assert service.codes("path=/a", "user=1") == "++-", "each status is as it is"
        assert service.codes("user=1") == "+-"
        assert service.ask("path=/a").statuses[0].limit_remaining == 16, "a request that would be refused"
        assert (service.counted("edge.user", "shadow"), service.counted("edge.user", "over_limit")) == (2, 0)
        body = '{"domain":"edge","descriptors":[{"entries":[{"key":"banned","value":"1"}]}]}'
        assert service.json(body).status_code == 200


def test_global_quota_mode_refuses_only_if_all_are_over(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with EnvoyService(tmp_path, modes=Modes(quota_mode=True)) as service:
        assert service.codes("banned=1") == "--"
        assert service.codes("banned=1", "user=1") == "+-+"
        assert service.codes("banned=1", "user=1", "path=/a", hits_addend=3) == "+--+"
        assert service.codes("banned=1", "user=1", hits_addend=3) == "---"


def test_hits_near_a_limit_are_counted(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with EnvoyService(tmp_path) as service:
        for hits, near in ((16, 0), (1, 1), (2, 3), (2, 3), (1, 4)):  # of 20, 16 are 0.8
            service.ask("path=/a", hits_addend=hits)
            assert service.near("edge.path") == near
        service.ask("path=/b", "user=1", hits_addend=3)
        assert (service.near("edge.path"), service.near("edge.user")) == (4, 1)
        service.ask("path=/c", hits_addend=15)
        service.ask("path=/c", "banned=1", hits_addend=5)
        assert service.near("edge.path") == 4, "a refusal consumes nothing"
    with EnvoyService(tmp_path, modes=Modes(near_limit_ratio=0.5)) as service:
        service.ask("path=/a", hits_addend=18)
        assert service.near("edge.path") == 8


def test_by_a_unix_socket(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    path = tmp_path_factory.mktemp("s") / "s"
    for _ in range(2):  # the second takes the place of what is left of the first
        with EnvoyService(tmp_path, listen=f"unix:{path}") as service:
            assert service.codes("banned=1") == "--"
    with pytest.raises(CaplineError, match="no socket can be made there"), EnvoyService(tmp_path, listen="unix:/no/s"):
        pass


def test_a_connection_is_closed_when_it_is_old(tmp_path: Path) -> None:
    (tmp_path / "edge.yaml").write_text(FILE, encoding="utf-8")
    with (
        EnvoyService(tmp_path, max_connection_age=0.05, max_connection_age_grace=0.05) as service,
        socket.create_connection(("127.0.0.1", service.server.port), timeout=60) as client,
    ):
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))  # with its settings
        while client.recv(1 << 16):
            pass


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
    page = (Path(__file__).parents[4] / "docs" / "howto" / "envoy.md").read_text(encoding="utf-8")
    form = re.findall(r"--json '(.*)'", page)
    answers = re.findall(r"```json\n(.*?)\n```", page)
    (file,) = re.findall(r"<<'EOF'\n(.*?)EOF", page, re.DOTALL)
    (tmp_path / "edge.yaml").write_text(file, encoding="utf-8")
    with EnvoyService(tmp_path, clock=clock) as service:
        assert [service.json(one).json() for one in form] == [json.loads(one) for one in answers]
    assert len(answers) == 1


def test_files_are_followed_and_a_broken_one_is_refused(service: EnvoyService, tmp_path: Path) -> None:
    def reloads(outcome: str) -> float:
        with suppress(CaplineError):
            service.server.reload()
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
    await asyncio.sleep(0)


async def _awaited(method: Any, request: Any) -> Any:
    return await method(request)


async def _first(method: Any, requests: Any) -> Any:
    async for one in method(requests):
        return one
    return None
