"""Clients that are slow, large or of their own authority, at a real `capline serve`."""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest
import trustme
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.model.errors import InvalidValueError
from capline.service.run.listen import tls_context
from capline.service.run.settings import Tls

if TYPE_CHECKING:
    from pathlib import Path

ASKED = {"policy": "promo", "subject": "u"}


@pytest.fixture(autouse=True)
def _policies(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [3/day]}}", encoding="utf-8")


def configured(folder: Path, **sections: object) -> Serving:
    (folder / "capline.yaml").write_text(json.dumps({"store": "memory://", **sections}), encoding="utf-8")
    return Serving(folder, "--config", "capline.yaml")


def connected(service: Serving) -> socket.socket:
    return socket.create_connection((service.client.base_url.host, service.client.base_url.port or 0), WITHIN_S)


@pytest.mark.deep
def test_slow_and_large_heads_are_ended(tmp_path: Path) -> None:
    bounds = {"header_within": 1, "header_bytes": 2048, "body_within": 1}
    with configured(tmp_path, bounds=bounds) as service:
        with connected(service) as silent, connected(service) as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: ")
            assert silent.recv(100) == b"", "ended, with nothing said"
            assert slow.recv(100) == b""
        with connected(service) as large:
            large.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 4096)
            assert large.recv(100).startswith(b"HTTP/1.1 431 ")
        with connected(service) as body:
            body.sendall(
                b"POST /v1/decide HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n{"
            )
            assert body.recv(100).startswith(b"HTTP/1.1 408 ")
        with connected(service) as twice:  # the second head of a connection has the same bound
            twice.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost")
            got = b"".join(iter(lambda: twice.recv(65_536), b""))
            assert got.count(b"HTTP/1.1 200") == 1
        assert service.ask("/v1/decide", **ASKED).json()["remaining"] == 2
        assert service.stop() == 0


@pytest.mark.deep
def test_a_client_that_goes_away_counts_once_if_it_had_asked(tmp_path: Path) -> None:
    body = json.dumps(ASKED).encode()
    head = b"POST /v1/decide HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with configured(tmp_path) as service:
        with connected(service) as cut:
            cut.sendall(head % len(body) + body[:-1])
        with connected(service) as gone:
            gone.sendall(head % len(body) + body)
        assert soon(lambda: service.ask("/v1/peek", **ASKED).json()["remaining"] == 1, WITHIN_S)
        assert service.stop() == 0


@pytest.mark.deep
def test_tls_and_a_certificate_of_the_client(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    tls = {"certificate": "cert.pem", "key": "key.pem", "client_ca": "ca.pem"}
    with configured(tmp_path, http={"tls": tls}) as service:
        url = service.url
        assert url.startswith("https://")
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}/healthz", verify=trusting, trust_env=False, timeout=WITHIN_S)
        trusting.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        answer = httpx.post(f"{url}/v1/decide", json=ASKED, verify=trusting, trust_env=False, timeout=WITHIN_S)
        assert answer.json()["remaining"] == 2
        assert httpx.get(f"{service.admin}/healthz", trust_env=False, timeout=WITHIN_S).status_code == 200
        assert service.stop() == 0


def test_certificates_that_are_none(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1")
    cert, key, another, none = (tmp_path / name for name in ("cert.pem", "key.pem", "another.pem", "none.pem"))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    other.private_key_pem.write_to_path(str(another))
    none.write_text("no certificate", encoding="ascii")
    assert tls_context(Tls(str(cert), str(key))).verify_mode == ssl.CERT_NONE
    for files, said in (
        ((cert, another), "no PEM certificate with its key"),
        ((none, key), "no PEM certificate with its key"),
        ((cert, tmp_path / "absent.pem"), r"absent\.pem: cannot be read"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            tls_context(Tls(*map(str, files)))
    with pytest.raises(InvalidValueError, match=r"none\.pem: no PEM certificates"):
        tls_context(Tls(str(cert), str(key), str(none)))


@pytest.mark.deep
def test_tokens_of_a_running_service(tmp_path: Path) -> None:
    from capline.service.access.tokens import TokenFile  # noqa: PLC0415 - here alone

    file = TokenFile(tmp_path / "tokens.json", create=True)
    shown = file.create("billing", ["decide"])
    with configured(tmp_path, tokens="tokens.json", http={"listen": "0.0.0.0:0"}) as service:
        assert service.ask("/v1/decide", **ASKED).status_code == 401
        service.client.headers["Authorization"] = f"Bearer {shown}"
        assert service.ask("/v1/decide", **ASKED).json()["remaining"] == 2
        assert httpx.get(f"{service.admin}/metrics", trust_env=False, timeout=WITHIN_S).status_code == 401
        file.revoke("billing")
        assert soon(lambda: service.ask("/v1/decide", **ASKED).status_code == 401, WITHIN_S)
        assert service.stop() == 0
