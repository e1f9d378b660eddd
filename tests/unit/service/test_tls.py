"""Certificates of a listener: what is no certificate is reported as such, and leaves the last good one."""

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from trustme import KeyType

from capline.model.errors import InvalidValueError
from capline.service.settings import tls as module
from capline.service.settings.tls import LARGEST_BYTES, contents, renewable, renewed, tls_context
from capline.service.settings.values import Tls

NAMES = ["cert.pem", "key.pem", "ca.pem"]


def written(folder: Path, kind: KeyType = KeyType.ECDSA) -> Tls:
    """Files of a new authority, which signed the certificate of the service and so lets the same one in as a client."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", key_type=kind)
    pems = issued.cert_chain_pems[0], issued.private_key_pem, authority.cert_pem
    for name, pem in zip(NAMES, pems, strict=True):
        pem.write_to_path(str(folder / name))
    return Tls(*(str(folder / name) for name in NAMES))


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return written(tmp_path)


def break_by_removal(path: Path) -> None:
    path.unlink()


def break_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def break_by_text(path: Path) -> None:
    path.write_text("none", encoding="ascii")


WAYS = [break_by_removal, break_by_directory, break_by_text]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_no_certificate(tmp_path: Path, tls: Tls, way: Callable[[Path], None], name: str) -> None:
    way(tmp_path / name)
    with pytest.raises(InvalidValueError, match=name.replace(".", r"\.")):
        tls_context(tls)


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_or_a_vast_file_is_not_waited_for_nor_read(tmp_path: Path, tls: Tls, name: str) -> None:
    os.truncate(tmp_path / name, LARGEST_BYTES + 1)
    with pytest.raises(InvalidValueError, match=rf"{name}: {LARGEST_BYTES + 1} bytes, at most"):
        contents(tls)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/null")
    with pytest.raises(InvalidValueError, match=f"{name}: not a regular file"):
        contents(tls)


def test_a_key_of_another_certificate(tmp_path: Path, tls: Tls) -> None:
    key = Path(tls.key).read_bytes()
    written(tmp_path)
    Path(tls.key).write_bytes(key)
    with pytest.raises(InvalidValueError, match=r"cert\.pem with .*key\.pem: no PEM certificate with its key"):
        tls_context(tls)


def test_with_a_client_ca_a_client_has_to_show_a_certificate(tls: Tls) -> None:
    alone = Tls(tls.certificate, tls.key)
    assert [tls_context(one).verify_mode for one in (tls, alone)] == [ssl.CERT_REQUIRED, ssl.CERT_NONE]
    assert [tls_context(one).minimum_version for one in (tls, alone)] == [ssl.TLSVersion.TLSv1_2] * 2


def followed(tls: Tls) -> tuple[ssl.SSLContext, Callable[[], bool]]:
    """The context of a listener, and its reload."""
    seen, context = contents(tls), tls_context(tls)
    use = renewable(context)
    return context, renewed(tls, lambda newest, _: use(newest), seen)


def client_of(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.client_ca)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


def shake(listening: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
    """A handshake in memory, which raises what either side finds wrong."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = listening.wrap_bio(there, back, server_side=True)
    client = trusting.wrap_bio(back, there, server_hostname="localhost")
    for side in (client, server, client):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    server.do_handshake()


@pytest.mark.parametrize("kind", KeyType)
def test_handshakes_are_by_the_whole_of_what_was_renewed(tmp_path: Path, tls: Tls, kind: KeyType) -> None:
    """In a context that is changed, a key of another kind would stay, and an authority from before."""
    listening, reload = followed(tls)
    first = client_of(tls)
    shake(listening, first)
    assert not reload()
    written(tmp_path, kind)
    shake(listening, first)
    assert reload()
    shake(listening, client_of(tls))
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        shake(listening, first)
    first.load_verify_locations(tls.client_ca)
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        shake(listening, first)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("step", "calls"), [("contents", 2), ("tls_context", 1)])
def test_a_file_that_breaks_while_it_is_checked(
    tmp_path: Path,
    tls: Tls,
    way: Callable[[Path], None],
    name: str,
    step: str,
    calls: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening, reload = followed(tls)
    first, check, left = client_of(tls), getattr(module, step), [None] * calls

    def checked(of: Tls) -> object:
        found = check(of)
        left.pop()
        if not left:
            way(tmp_path / name)
            monkeypatch.undo()
        return found

    written(tmp_path)
    monkeypatch.setattr(module, step, checked)
    with pytest.raises(InvalidValueError, match=name.replace(".", r"\.")):
        any(reload() for _ in range(2))
    shake(listening, first)


def test_a_change_in_the_same_tick_of_a_clock_is_one(tmp_path: Path, tls: Tls) -> None:
    listening, reload = followed(tls)
    states = [(tmp_path / name).stat() for name in NAMES]
    written(tmp_path)
    for name, state in zip(NAMES, states, strict=True):
        os.utime(tmp_path / name, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert reload()
    shake(listening, client_of(tls))
