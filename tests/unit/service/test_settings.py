"""The settings of the service: the file, the environment over it, options over both."""

from pathlib import Path

import pytest

from capline.model.errors import InvalidValueError
from capline.service.run.file import KEYS, VARIABLES, read_settings
from capline.service.settings.values import Address, Bounds, Modes, Settings, Tls

ALL = """\
store: lmdb://logs?durability=full
policies: policies.yaml
segments: s3://bucket/prefix
tokens: tokens.json
on_store_error: deny
drain: 0
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
    assert found.drain == 0
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
    if variable.endswith(
        ("STORE", "CONFIG", "QUEUE", "AUDIENCES", "REPLIES", "_ERROR", "LISTEN", "_PROXIES", "_WORKERS", "_KEY", "_CA")
    ) or any(
        word in variable
        for word in (
            *("BOUNDS", "RECORD", "HISTORY", "_SAMPLE", "SUBJECTS", "TRACES", "CERTIFICATE", "MERGE", "HOSTS", "DRAIN"),
            *("_MODE", "_AGE", "_RATIO", "_HEADER", "_METADATA"),
        )
    ):
        with pytest.raises(InvalidValueError, match=f"^{variable}: "):
            read(tmp_path, "", {variable: "0.0.0.0:x"})
    else:
        assert read(tmp_path, "", {variable: "0.0.0.0:x"}) != read(tmp_path, "")


UPSTREAM = {
    "MERGE_DOMAIN_CONFIG": "1",
    "SHADOW_MODE": "TRUE",
    "QUOTA_MODE": "t",
    "RESPONSE_DYNAMIC_METADATA": "true",
    "NEAR_LIMIT_RATIO": "0.5",
    "LIMIT_RESPONSE_HEADERS_ENABLED": "True",
    "LIMIT_LIMIT_HEADER": "X-Limit",
    "LIMIT_REMAINING_HEADER": "X-Left",
    "LIMIT_RESET_HEADER": "X-Reset",
    "GRPC_MAX_CONNECTION_AGE": "1h30m",
    "GRPC_MAX_CONNECTION_AGE_GRACE": "1.5s",
    "GRPC_PORT": "9999",
    "GRPC_SERVER_USE_TLS": "true",
    "GRPC_SERVER_TLS_CERT": "/c.pem",
    "GRPC_SERVER_TLS_KEY": "/k.pem",
    "GRPC_CLIENT_TLS_CACERT": "/ca.pem",
}


def test_variables_of_upstream_are_read_with_envoy_only_and_after_caplines(tmp_path: Path) -> None:
    assert read(tmp_path, "", UPSTREAM) == read(tmp_path, "")
    file = "grpc: {envoy: r, near_limit_ratio: 0.6}"
    assert read(tmp_path, file, UPSTREAM) == read(tmp_path, file)
    grpc = read(tmp_path, file, UPSTREAM, grpc__envoy="r").grpc
    assert grpc is not None
    modes = Modes(
        shadow_mode=True,
        quota_mode=True,
        near_limit_ratio=0.5,
        dynamic_metadata=True,
        response_headers=True,
        limit_header="X-Limit",
        remaining_header="X-Left",
        reset_header="X-Reset",
    )
    assert (grpc.modes, grpc.merge_domains, grpc.listen) == (modes, True, Address("127.0.0.1", 9999))
    assert (grpc.max_connection_age, grpc.max_connection_age_grace) == (5400, 1.5)
    assert grpc.tls == Tls("/c.pem", "/k.pem", "/ca.pem")
    own = {
        "CAPLINE_GRPC_ENVOY": "r",
        "CAPLINE_GRPC_SHADOW_MODE": "false",
        "CAPLINE_GRPC_LISTEN": "127.0.0.1:1",
        "CAPLINE_GRPC_MAX_CONNECTION_AGE": "60",
    }
    grpc = read(tmp_path, "", {**UPSTREAM, **own, "GRPC_SERVER_USE_TLS": "false"}).grpc
    assert grpc is not None
    assert (grpc.modes.shadow_mode, grpc.modes.quota_mode, grpc.tls) == (False, True, None)
    assert (str(grpc.listen), grpc.max_connection_age) == ("127.0.0.1:1", 60)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"GRPC_HOST": "0.0.0.0", "GRPC_PORT": "1"}, "GRPC_HOST and GRPC_PORT: without tokens and TLS"),  # noqa: S104 - read, not bound
        ({"SHADOW_MODE": "maybe"}, "SHADOW_MODE: expected true or false, found 'maybe'"),
        ({"GRPC_MAX_CONNECTION_AGE": "1d"}, "GRPC_MAX_CONNECTION_AGE: expected a number of seconds above 0"),
        ({"NEAR_LIMIT_RATIO": "80"}, "NEAR_LIMIT_RATIO: expected a share above 0 and at most 1"),
        ({"LIMIT_RESET_HEADER": "a b"}, "LIMIT_RESET_HEADER: 'a b' is not a header name"),
    ],
)
def test_a_fault_of_a_variable_of_upstream_names_it(tmp_path: Path, variables: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{said}"):
        read(tmp_path, "", variables, grpc__envoy="r")


def test_ages_without_a_bound_and_unix_sockets(tmp_path: Path) -> None:
    grpc = read(tmp_path, "", {"GRPC_UDS": "/run/e.sock", "GRPC_MAX_CONNECTION_AGE": "0s"}, grpc__envoy="r").grpc
    assert grpc is not None
    assert (str(grpc.listen), grpc.listen.is_loopback, grpc.max_connection_age) == ("unix:/run/e.sock", True, None)
    for said, path in (("unix:e.sock", f"{tmp_path}/e.sock"), ("unix:///run/e", "/run/e")):
        grpc = read(tmp_path, f"grpc: {{envoy: r, listen: '{said}'}}").grpc
        assert grpc is not None
        assert str(grpc.listen) == f"unix:{path}"
    with pytest.raises(InvalidValueError, match="a Unix socket is of one process: give 'workers: 1'"):
        read(tmp_path, "http: {workers: 2}\ngrpc: {envoy: r, listen: 'unix:e'}")


def test_with_envoys_limits_no_policy_file_is_needed(tmp_path: Path) -> None:
    assert read(tmp_path, "grpc: {envoy: r}").policies is None
    assert read(tmp_path, "grpc: {envoy: r}\npolicies: own.yaml").policies == f"{tmp_path}/own.yaml"
    (tmp_path / "policies.yaml").write_text("policies: {}", encoding="utf-8")
    assert read(tmp_path, "grpc: {envoy: r}").policies == f"{tmp_path}/policies.yaml"


def test_the_keys_that_are_fixed() -> None:
    fixed = "store policies config segments tokens http.listen http.workers admin.listen grpc.listen grpc.envoy"
    assert set(fixed.split()) <= set(KEYS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "hosts: [capline.internal:8080]",
            ":1: hosts: 'capline.internal:8080' is not a host name; write it without a port",
        ),
        ("hosts: 'https://capline'", ":1: hosts: 'https://capline' is not a host name"),
        ("stor: memory://", ":1: unknown key 'stor'; did you mean store?"),
        ("\nhttp: {lisen: 127.0.0.1:1}", ":2: http: unknown key 'lisen'; did you mean listen?"),
        ("http: {listen: 8080}", ":1: http: listen: '8080' is not an address; write host:port"),
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
        ("tokens: t.json\nspoe: {listen: '[::]:83'}", ":2: spoe: listen: its protocol has no tokens, so it listens on"),
        ("http: {workers: 2}\nstore: memory://", ":2: store: memory:// is one process's own"),
        ("store: nowhere", ":1: store: 'nowhere' is not a URL"),
        ("on_store_error: maybe", ":1: on_store_error: 'maybe' is not known; use raise or allow or deny"),
        ("drain: never", ":1: drain: expected a number of seconds from 0 and at most 3600, found 'never'"),
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
        ({"CAPLINE_HTTP_LISTEN": "8080"}, {}, "CAPLINE_HTTP_LISTEN: '8080' is not an address"),
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
