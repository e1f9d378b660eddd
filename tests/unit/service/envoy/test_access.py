"""The gRPC server for other hosts: a real channel over TLS, with certificates and tokens, good ones and others."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.kit.envoy import EnvoyService, aio, descriptor, grpc

from capline.model.errors import InvalidValueError
from capline.service.access.guard import Guard
from capline.service.access.tokens import TokenFile
from capline.service.envoy.access import Certificate
from capline.service.envoy.messages import SERVICE, rls
from capline.service.settings.values import Tls

FILE = "domain: edge\ndescriptors: [{key: path, rate_limit: {unit: minute, requests_per_unit: 20}}]\n"
HEALTH, REFLECTION = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "ratelimit"
    folder.mkdir()
    (folder / "edge.yaml").write_text(FILE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def write(folder: Path, authority: trustme.CA, *, client_ca: bool = False) -> Tls:
    """A certificate of this authority for 127.0.0.1, whole, in the files that are always the same."""
    issued = authority.issue_cert("127.0.0.1")
    tls = Tls(str(folder / "cert.pem"), str(folder / "key.pem"), str(folder / "ca.pem") if client_ca else None)
    for name, pem in (
        ("cert.pem", issued.cert_chain_pems[0]),
        ("key.pem", issued.private_key_pem),
        ("ca.pem", authority.cert_pem),
    ):
        pem.write_to_path(str(folder / f"{name}.new"))
        (folder / f"{name}.new").replace(folder / name)
    return tls


def by_tls(authority: trustme.CA, client: trustme.LeafCert | None = None) -> Any:
    pair = () if client is None else (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
    return grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)


def code(service: EnvoyService, credentials: Any = None, token: str | None = None, name: str = SERVICE) -> str:
    """The status of one call on a connection of its own; see `Guard` for the token."""
    address = f"127.0.0.1:{service.server.port}"
    metadata = [] if token is None else [("authorization", token)]
    request = rls.RateLimitRequest(domain="edge", descriptors=[descriptor("path=/a")]).SerializeToString()

    def streamed() -> str:
        # grpc's own thread: `grpc.aio` calls it INTERNAL where a stream ends while its first message is sent.
        with grpc.insecure_channel(address) as channel:
            calls = channel.stream_stream(f"/{name}/ServerReflectionInfo")
            call = calls(iter([b":\0"]), metadata=metadata, timeout=60)  # list_services: ""
            with suppress(grpc.RpcError):
                next(call)
            return call.code().name

    async def asked() -> str:
        if name == REFLECTION:
            return await asyncio.to_thread(streamed)
        made = aio.insecure_channel(address) if credentials is None else aio.secure_channel(address, credentials)
        async with made as channel:
            call = channel.unary_unary(f"/{name}/{'Check' if name == HEALTH else 'ShouldRateLimit'}")
            answer = call(request if name == SERVICE else b"", metadata=metadata, timeout=60)
            return (await answer.code()).name

    return service.run(asked())


def test_tls_alone(tmp_path: Path, files: Path, authority: trustme.CA) -> None:
    with EnvoyService(files, tls=write(tmp_path, authority)) as service:
        assert code(service) == "UNAVAILABLE", "no plain connection is answered"
        assert code(service, by_tls(trustme.CA())) == "UNAVAILABLE", "nor one that does not trust it"
        assert code(service, by_tls(authority)) == "OK"


def test_a_certificate_of_the_client(tmp_path: Path, files: Path, authority: trustme.CA) -> None:
    own, strange = authority.issue_cert("envoy"), trustme.CA().issue_cert("envoy")
    with EnvoyService(files, tls=write(tmp_path, authority, client_ca=True)) as service:
        assert code(service, by_tls(authority)) == "UNAVAILABLE"
        assert code(service, by_tls(authority, strange)) == "UNAVAILABLE"
        assert code(service, by_tls(authority, own)) == "OK"


@pytest.mark.parametrize("client_ca", [False, True])
def test_renewed_files_are_for_new_connections_whole_or_not_at_all(
    tmp_path: Path, files: Path, authority: trustme.CA, client_ca: bool
) -> None:
    later = trustme.CA()
    of, of_later = (one.issue_cert("envoy") if client_ca else None for one in (authority, later))
    with EnvoyService(files, tls=write(tmp_path, authority, client_ca=client_ca)) as service:
        certificate = service.server.certificate
        assert certificate is not None
        assert not certificate.reload()
        (tmp_path / "key.pem").write_text("cut off", encoding="ascii")
        with pytest.raises(InvalidValueError, match=r"key\.pem: no PEM certificate with its key"):
            certificate.reload()
        assert code(service, by_tls(authority, of)) == "OK"
        write(tmp_path, later, client_ca=client_ca)
        assert certificate.reload()
        assert code(service, by_tls(authority, of)) == "UNAVAILABLE"
        assert code(service, by_tls(later, of_later)) == "OK"


def test_the_files_are_looked_at_before_the_server_starts(tmp_path: Path, authority: trustme.CA) -> None:
    tls = write(tmp_path, authority)
    (tmp_path / "cert.pem").write_text("none", encoding="ascii")
    with pytest.raises(InvalidValueError, match=r"cert\.pem with .*key\.pem: no PEM certificate with its key"):
        Certificate(tls)


def test_a_token_for_every_service_of_the_server(tmp_path: Path, files: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    shown = {role: f"Bearer {tokens.create(role, [role])}" for role in ("decide", "read", "admin")}
    chosen = tokens.create("ann", ["decide"], "correct horse battery")
    with EnvoyService(files, guard=Guard(tokens)) as service:
        assert code(service) == "UNAUTHENTICATED"
        assert code(service, token=shown["decide"][:-1]) == "UNAUTHENTICATED"
        assert code(service, token=f"Bearer {chosen}") == "UNAUTHENTICATED", "it is shown with its name"
        assert code(service, token=shown["read"]) == "PERMISSION_DENIED"
        assert code(service, token=shown["decide"]) == code(service, token=shown["admin"]) == "OK"
        for name in (HEALTH, REFLECTION):
            assert code(service, name=name) == "UNAUTHENTICATED"
            assert {code(service, token=one, name=name) for one in shown.values()} == {"OK"}
        assert code(service, token=shown["read"], name="strange") == "UNIMPLEMENTED"
        some = f"Bearer {tokens.create('some', ['decide'], policies=['promo'])}"
        assert code(service, token=some) == "PERMISSION_DENIED", "its limits are of no policy"
        tokens.revoke("decide")
        assert code(service, token=shown["decide"]) == "UNAUTHENTICATED"
        turned_away = [
            service.registry.get_sample_value("capline_envoy_turned_away_total", {"code": one})
            for one in ("unauthenticated", "permission_denied")
        ]
        assert turned_away == [6, 2]
        assert service.counted("other", "ok") + service.counted("edge.path", "ok") == 2


def test_what_is_said_to_who_may_not_ask(tmp_path: Path, files: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    read = tokens.create("looker", ["read"])
    with EnvoyService(files, guard=Guard(tokens)) as service:
        call = service.channel.unary_unary(f"/{SERVICE}/ShouldRateLimit")

        async def details(token: str) -> str:
            with pytest.raises(aio.AioRpcError) as caught:
                await call(b"\xff no request", metadata=[("authorization", token)], timeout=60)
            return caught.value.details()

        assert service.run(details(f"Bearer {read}")) == "token looker has not the role decide or admin"
        assert service.run(details("Bearer x")) == "this token is not known"
