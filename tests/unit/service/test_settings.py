"""The settings of the service: the file, the environment over it, options over both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capline.model.errors import InvalidValueError
from capline.service.run.file import KEYS, VARIABLES, read_settings
from capline.service.run.settings import Address, Bounds, Settings

if TYPE_CHECKING:
    from pathlib import Path

ALL = """\
store: lmdb://logs?durability=full
policies: policies.yaml
segments: s3://bucket/prefix
tokens: tokens.json
on_store_error: deny
http: {listen: "0.0.0.0:9000", workers: 2, trusted_proxies: 1, tls: {certificate: c.pem, key: k.pem, client_ca: ca.pem}}
admin: {listen: 127.0.0.1:9001}
grpc: {listen: 127.0.0.1:9002, envoy: [ratelimit/, /etc/more]}
observers: {access_log: access.log, access_sample: 0.5, subjects: true, traces: true}
bounds: {body_bytes: 4096, requests: 5, header_within: 2.5}
"""


def read(folder: Path, text: str, environment: dict[str, str] | None = None, **options: str) -> Settings:
    file = folder / "capline.yaml"
    file.write_text(text, encoding="utf-8")
    said = {key.replace("__", "."): (f"--{key}", value) for key, value in options.items()}
    return read_settings(file, environment or {}, said)


def test_every_key_is_read_and_paths_are_the_files(tmp_path: Path) -> None:
    found = read(tmp_path, ALL)
    assert found.store == f"lmdb://{tmp_path}/logs?durability=full"
    assert (found.policies, found.tokens) == (f"{tmp_path}/policies.yaml", f"{tmp_path}/tokens.json")
    assert (found.segments, found.config, found.on_store_error) == ("s3://bucket/prefix", None, "deny")
    assert (found.http.listen, found.http.workers, found.http.trusted_proxies) == (Address("0.0.0.0", 9000), 2, 1)  # noqa: S104 - read, not bound
    assert found.http.tls is not None
    assert (found.http.tls.certificate, found.http.tls.client_ca) == (f"{tmp_path}/c.pem", f"{tmp_path}/ca.pem")
    assert found.admin.listen == Address("127.0.0.1", 9001)
    assert found.grpc is not None
    assert found.grpc.envoy == (f"{tmp_path}/ratelimit", "/etc/more")
    assert (found.observers.access_log, found.observers.access_sample) == (f"{tmp_path}/access.log", 0.5)
    assert found.observers.subjects
    assert found.observers.traces
    assert found.bounds == Bounds(body_bytes=4096, requests=5, header_within=2.5)


def test_without_a_file_it_is_what_serve_alone_has() -> None:
    found = read_settings(None, {}, {})
    assert found == Settings()
    assert (str(found.http.listen), str(found.admin.listen)) == ("127.0.0.1:8080", "127.0.0.1:8081")


def test_a_file_that_says_nothing_has_its_neighbours(tmp_path: Path) -> None:
    found = read(tmp_path, "")
    assert (found.policies, found.store) == (f"{tmp_path}/policies.yaml", f"lmdb://{tmp_path}/.capline/store")


def test_options_before_the_environment_before_the_file(tmp_path: Path) -> None:
    environment = {"CAPLINE_HTTP_WORKERS": "3", "CAPLINE_STORE": "lmdb://other", "CAPLINE_BOUNDS_REQUESTS": "7"}
    found = read(tmp_path, ALL, environment, http__workers="4")
    assert (found.http.workers, found.store, found.bounds.requests) == (4, "lmdb://other", 7)
    assert found.bounds.body_bytes == 4096
    assert read(tmp_path, ALL, {"CAPLINE_HTTP_WORKERS": "3"}).http.workers == 3


@pytest.mark.parametrize("variable", VARIABLES)
def test_each_key_is_a_variable_too(tmp_path: Path, variable: str) -> None:
    """A word that no key takes as it is, or one that every text takes: what was said by the variable arrived."""
    if variable.endswith(("STORE", "CONFIG", "_ERROR", "LISTEN", "_PROXIES", "_WORKERS", "_TLS_KEY", "_CA")) or any(
        word in variable for word in ("BOUNDS", "_SAMPLE", "SUBJECTS", "TRACES", "CERTIFICATE", "MERGE")
    ):
        with pytest.raises(InvalidValueError, match=f"^{variable}: "):
            read(tmp_path, "", {variable: "0.0.0.0:x"})
    else:
        assert read(tmp_path, "", {variable: "0.0.0.0:x"}) != read(tmp_path, "")


def test_the_keys_that_are_fixed() -> None:
    fixed = "store policies config segments tokens http.listen http.workers admin.listen grpc.listen grpc.envoy"
    assert set(fixed.split()) <= set(KEYS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stor: memory://", ":1: unknown key 'stor'; did you mean store?"),
        ("\nhttp: {lisen: 127.0.0.1:1}", ":2: http: unknown key 'lisen'; did you mean listen?"),
        ("http: {listen: 8080}", ":1: http: listen: '8080' is no address; write host:port"),
        ("http: 8080", ":1: http: expected a mapping"),
        ("http: {workers: 0}", ":1: http: workers: expected a whole number from 1 to 256"),
        ("http: {listen: 0.0.0.0:80}", ":1: http: listen: without tokens it listens on loopback only"),
        ("\n\nadmin: {listen: '[::]:80'}", ":3: admin: listen: without tokens"),
        (
            "tokens: t.json\ngrpc: {envoy: r, listen: 0.0.0.0:82}",
            ":2: grpc: listen: without tokens and TLS it listens on loopback only, like 127.0.0.1:82",
        ),
        (
            "grpc: {envoy: r, listen: 0.0.0.0:82, tls: {certificate: c.pem, key: k.pem}}",
            ":1: grpc: listen: without tokens and TLS it listens on loopback only, like 127.0.0.1:82",
        ),
        (
            "tokens: t.json\nspoe: {listen: '[::]:83'}",
            ":2: spoe: listen: its protocol has no tokens, so it listens on",
        ),
        ("http: {workers: 2}\nstore: memory://", ":2: store: memory:// is one process's own"),
        ("store: nowhere", ":1: store: 'nowhere' is no URL"),
        ("on_store_error: maybe", ":1: on_store_error: 'maybe' is not known; use raise or allow or deny"),
        ("http: {tls: {certificate: c.pem}}", ":1: http: tls: no 'key:' here"),
        ("bounds: {requests: 0}", ":1: bounds: requests: expected a whole number from 1"),
        ("bounds: {body_within: 0}", ":1: bounds: body_within: expected a number of seconds above 0"),
        ("observers: {access_sample: 2}", ":1: observers: access_sample: expected a share above 0 and at most 1"),
        ("observers: {access_sample: all}", ":1: observers: access_sample: expected a share above 0 and at most 1"),
        ("observers: {access_sample: nan}", ":1: observers: access_sample: expected a share above 0 and at most 1"),
        ("store: memory://\nstore: memory://", ":2: "),
        ("[]", ":1: expected a mapping, like store:"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read(tmp_path, text)
    assert f"{tmp_path}/capline.yaml{said}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "options", "said"),
    [
        ({"CAPLINE_HTTP_LISTEN": "8080"}, {}, "CAPLINE_HTTP_LISTEN: '8080' is no address"),
        ({"CAPLINE_HTTP_LISTEN": "8080"}, {"http__listen": "10.0.0.1:80"}, "--http__listen: without tokens it listens"),
        ({"CAPLINE_HTTP_TLS_KEY": "k.pem"}, {}, "no 'certificate:' here"),
        ({"CAPLINE_STORE": "memory://", "CAPLINE_HTTP_WORKERS": "2"}, {}, "CAPLINE_STORE: memory:// is one"),
    ],
)
def test_a_fault_outside_the_file_is_named_by_where_it_was_said(
    tmp_path: Path, environment: dict[str, str], options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read(tmp_path, "", environment, **options)
    assert said in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"nope\.yaml"):
        read_settings(tmp_path / "nope.yaml", {}, {})
