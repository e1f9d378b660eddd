"""Clients that are slow, large or of their own authority, at a real `capline serve`."""

import json
import signal
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from select import select

import httpx
import pytest
import trustme
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

ASKED = {"policy": "promo", "subject": "u"}


@pytest.fixture(autouse=True)
def _policies(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [3/day]}}", encoding="utf-8")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One for all tests that leave it as it was; a connection that says no more is ended after a second."""
    folder = tmp_path_factory.mktemp("serving")
    (folder / "policies.yaml").write_text("policies: {hidden: {limits: [3/day]}}", encoding="utf-8")
    with configured(folder, bounds={"header_within": 1, "body_within": 1}) as service:
        yield service


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
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: ")
            assert silent.recv(100) == b"", "ended, with nothing said"
            assert slow.recv(100) == b""
        with connected(service) as large:
            large.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 4096)
            assert large.recv(100).startswith(b"HTTP/1.1 431 ")
        with connected(service) as body:
            body.sendall(
                b"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 40\r\n\r\n{"
            )
            assert body.recv(100).startswith(b"HTTP/1.1 408 ")
        with connected(service) as twice:  # the second head of a connection has the same bound
            twice.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost")
            got = b"".join(iter(lambda: twice.recv(65_536), b""))
            assert got.count(b"HTTP/1.1 200") == 1
        assert service.ask("/v1/decide", **ASKED).json()["remaining"] == 2
        assert service.stop() == 0


HIDDEN = (
    b"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 33\r\n\r\n"
    b'{"policy":"hidden","subject":"u"}'
)


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param(b"Content-Length: 0\r\nContent-Length: %d", id="two lengths"),
        pytest.param(b"Content-Length: %d\r\nTransfer-Encoding: chunked", id="a length and chunks"),
        pytest.param(b"Transfer-Encoding: chunked\r\nContent-Length: %d", id="chunks and a length"),
        pytest.param(b"Transfer-Encoding: xchunked\r\nContent-Length: %d", id="an unknown coding"),
        pytest.param(b"Transfer-Encoding: chunked, identity\r\nContent-Length: %d", id="chunked is not the last"),
        pytest.param(b"Transfer-Encoding : chunked\r\nContent-Length: %d", id="a space before the colon"),
        pytest.param(b"Content-Length: +%d", id="a sign"),
        pytest.param(b"Content-Length: 0x%x", id="another base"),
        pytest.param(b"Content-Length: %d, 0", id="a list"),
        pytest.param(b"X: y\r\n Content-Length: %d", id="a folded line"),
        pytest.param(b"X: y\rContent-Length: %d", id="a line that ends by CR"),
    ],
)
def test_nobody_hides_a_request_in_the_body_of_another(serving: Serving, framing: bytes) -> None:
    """A proxy that reads the framing in its own way sees one request; so may the service, or none, but never two."""
    body = b"0\r\n\r\n" + HIDDEN
    head = b"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + framing % len(body)
    with connected(serving) as client:
        client.sendall(head + b"\r\n\r\n" + body)
        answer = b"".join(iter(lambda: client.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert serving.ask("/v1/peek", policy="hidden", subject="u").json()["remaining"] == 2


@pytest.mark.deep
def test_a_client_that_goes_away_counts_once_if_it_had_asked(tmp_path: Path) -> None:
    body = json.dumps(ASKED).encode()
    head = (
        b"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
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
        later = trustme.CA()
        renewed = later.issue_cert("127.0.0.1")
        for name, pem in (
            ("ca.pem", later.cert_pem),
            ("cert.pem", renewed.cert_chain_pems[0]),
            ("key.pem", renewed.private_key_pem),
        ):
            pem.write_to_path(str(tmp_path / name))
        service.process.send_signal(signal.SIGHUP)
        of_later = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        of_later.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
        assert soon(lambda: is_known(url, of_later), WITHIN_S)
        assert soon(lambda: any("http.tls reloaded" in line for line in service.said), WITHIN_S)
        assert service.stop() == 0


def is_known(url: str, context: ssl.SSLContext) -> bool:
    """Whether each trusts the other's certificate."""
    try:
        return httpx.get(f"{url}/healthz", verify=context, trust_env=False, timeout=3).status_code == 200
    except httpx.TransportError:
        return False


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


def test_seventy_who_guess_a_secret_keep_out_neither_other_addresses_nor_the_right_one_at_their_own(
    tmp_path: Path,
) -> None:
    from capline.service.access.tokens import TokenFile  # noqa: PLC0415 - here alone

    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    for name in ("ann", "bob"):
        tokens.create(name, ["decide"], "correct horse battery")
    body, numbers = json.dumps(ASKED).encode(), count()

    def guess(service: Serving) -> socket.socket:
        shown = b64encode(f"ann:guess {(number := next(numbers))}".encode()).decode()
        head = f"POST /v1/decide HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {shown}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        guessing = connected(service)
        guessing.sendall(head.encode() + body[: len(body) * (number % 2)])  # directly, and by ASGI
        return guessing

    def right(service: Serving, name: str, address: str = "127.0.0.1") -> int:
        shown = {"Authorization": f"Basic {b64encode(f'{name}:correct horse battery'.encode()).decode()}"}
        with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=WITHIN_S) as client:
            return client.post(f"{service.url}/v1/decide", headers=shown, json=ASKED).status_code

    with configured(tmp_path, tokens="tokens.json", policies="policies.yaml") as service:
        guessing = [guess(service) for _ in range(70)]
        assert right(service, "bob", "127.0.0.2") == 200
        assert len(select(guessing, [], [], 0)[0]) < 40, "it waited for all of them"
        while (code := right(service, "ann")) == 503:
            for one in select(guessing, [], [], 1)[0]:
                guessing.remove(one)
                one.close()
                guessing.append(guess(service))
        assert code == 200
        guessing += [guess(service) for _ in range(20)]
        assert right(service, "ann") == 200, "known by now"
        for one in guessing:
            one.close()
