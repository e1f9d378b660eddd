"""Certificates of a listener: what is no certificate is reported as such, and leaves the last good one."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from capline.model.errors import InvalidValueError
from capline.service.settings import tls as module
from capline.service.settings.tls import load, renewed, tls_context
from capline.service.settings.values import Tls


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(tmp_path: Path, authority: trustme.CA) -> Tls:
    issued = authority.issue_cert("127.0.0.1")
    for name, pem in (
        ("cert.pem", issued.cert_chain_pems[0]),
        ("key.pem", issued.private_key_pem),
        ("ca.pem", authority.cert_pem),
    ):
        pem.write_to_path(str(tmp_path / name))
    return Tls(*(str(tmp_path / name) for name in ("cert.pem", "key.pem", "ca.pem")))


def break_by_removal(path: Path) -> None:
    path.unlink()


def break_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def break_by_text(path: Path) -> None:
    path.write_text("none", encoding="ascii")


WAYS = [break_by_removal, break_by_directory, break_by_text]
NAMES = ["cert.pem", "key.pem", "ca.pem"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_no_certificate(tmp_path: Path, tls: Tls, way: Callable[[Path], None], name: str) -> None:
    way(tmp_path / name)
    with pytest.raises(InvalidValueError, match=name.replace(".", r"\.")):
        tls_context(tls)


def test_with_a_client_ca_a_client_has_to_show_a_certificate(tls: Tls) -> None:
    alone = Tls(tls.certificate, tls.key)
    assert [tls_context(one).verify_mode for one in (tls, alone)] == [ssl.CERT_REQUIRED, ssl.CERT_NONE]
    assert [tls_context(one).minimum_version for one in (tls, alone)] == [ssl.TLSVersion.TLSv1_2] * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_breaks_after_it_was_checked(
    tmp_path: Path, tls: Tls, way: Callable[[Path], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tls_context(tls)
    reload = renewed(tls, lambda: load(context, tls), tls)
    check = module.tls_context

    def checked(of: Tls) -> None:
        check(of)
        way(tmp_path / name)

    (tmp_path / "cert.pem").touch()
    monkeypatch.setattr(module, "tls_context", checked)
    with pytest.raises(InvalidValueError, match=name.replace(".", r"\.")):
        reload()
