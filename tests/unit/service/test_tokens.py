"""Who may ask: the tokens file, and the guard before each handler."""

from __future__ import annotations

import json
import stat
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest
from tests.kit.cli import CommandLine
from tests.kit.service import Service

from capline import Policy
from capline.model.errors import InvalidValueError
from capline.service.access.guard import Guard
from capline.service.access.tokens import TokenFile, is_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHOSEN = "correct horse battery"


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", create=True)


@pytest.fixture
def service(tokens: TokenFile) -> Iterator[Service]:
    tokens.create("first", ["read"])
    with Service([Policy("promo", ["3/day"])], guard=Guard(tokens)) as asked:
        yield asked


def status(service: Service, header: str | None, method: str = "POST", path: str = "/v1/decide") -> int:
    headers = {} if header is None else {"Authorization": header}
    body = {"json": {"policy": "promo", "subject": "u"}} if method == "POST" else {}
    return service(method, path, headers=headers, **body).status_code


def basic(name: str, secret: str) -> str:
    return f"Basic {b64encode(f'{name}:{secret}'.encode()).decode()}"


def test_a_token_may_what_its_roles_say(service: Service, tokens: TokenFile) -> None:
    shown = {role: f"Bearer {tokens.create(f'a-{role}', [role])}" for role in ("decide", "read", "admin")}
    explain, erase = ("GET", "/v1/subjects/u?policy=promo"), ("DELETE", "/v1/subjects/u")
    asked = [("POST", "/v1/decide"), ("POST", "/v1/peek"), explain, erase]
    may = {role: [status(service, header, *one) for one in asked] for role, header in shown.items()}
    assert may == {"decide": [200, 200, 403, 403], "read": [403, 200, 200, 403], "admin": [200, 200, 200, 200]}


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_probes_are_for_anybody(service: Service, method: str) -> None:
    assert [status(service, None, method, path) for path in ("/healthz", "/readyz")] == [200, 200]


def test_without_a_good_token_nothing_is_read(service: Service, tokens: TokenFile) -> None:
    good = tokens.create("billing", ["decide"])
    wrong = [
        None,
        "",
        "Bearer",
        "Bearer x",
        f"Bearer {good}0",
        f"Bearer {good[:-1]}",
        f"Basic {good}",
        f"Digest {good}",
    ]
    wrong += [f"Bearer {good.replace('billing', 'first')}", f"Bearer {good.upper()}", "Bearer " + "é" * 5000, "Basic !"]
    wrong += [basic("billing", good), basic("nobody", CHOSEN), basic("", "")]
    for header in wrong:
        answer = service(
            "POST",
            "/v1/decide",
            content=b"{not read",
            headers=[] if header is None else [(b"authorization", header.encode())],
        )
        assert answer.status_code == 401, header
        assert answer.headers["WWW-Authenticate"].startswith("Bearer ")
    assert status(service, f"Bearer {good}") == status(service, f"bearer  {good}") == 200


def test_a_chosen_secret_is_sent_with_its_name(service: Service, tokens: TokenFile) -> None:
    tokens.create("ann", ["admin"], CHOSEN)
    assert [status(service, basic("ann", CHOSEN)) for _ in range(2)] == [200, 200]
    assert [status(service, basic(*bad)) for bad in (("ann", CHOSEN + "x"), ("first", CHOSEN), ("bob", CHOSEN))] == [
        401
    ] * 3
    assert status(service, f"Bearer {CHOSEN}") == 401
    tokens.revoke("ann")
    assert status(service, basic("ann", CHOSEN)) == 401, "also where it was known already"


def test_who_asks_is_known_to_handlers(service: Service, tokens: TokenFile) -> None:
    shown = tokens.create("billing", ["decide"]).encode()
    guard = Guard(tokens)
    headers = [(b"authorization", b"Bearer " + shown)]
    assert service.run(guard.who(headers, ("decide",))) == "billing"
    assert service.run(guard.who([], ())) == ""


def test_the_file_holds_hashes_and_is_its_owners_alone(tokens: TokenFile) -> None:
    shown = tokens.create("billing", ["decide", "read", "decide"])
    tokens.create("ann", ["admin"], CHOSEN)
    text = tokens.path.read_text(encoding="utf-8")
    assert shown.rpartition("_")[2] not in text
    assert CHOSEN not in text
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert json.loads(text)["tokens"][0]["roles"] == ["decide", "read"]
    read = TokenFile(tokens.path)
    assert is_of(read.tokens["billing"], shown)
    assert is_of(read.tokens["ann"], CHOSEN)
    assert not is_of(read.tokens["ann"], CHOSEN + " ")
    assert not is_of(None, shown)


def test_a_change_is_seen_and_a_broken_one_changes_nothing(tokens: TokenFile) -> None:
    tokens.create("billing", ["decide"])
    other = TokenFile(tokens.path)
    assert not other.reload()
    tokens.create("more", ["read"])
    assert other.reload()
    assert set(other.tokens) == {"billing", "more"}
    tokens.path.write_text('{"tokens": [', encoding="utf-8")
    with pytest.raises(InvalidValueError, match="no tokens file"):
        other.reload()
    assert set(other.tokens) == {"billing", "more"}
    tokens.path.unlink()
    with pytest.raises(InvalidValueError, match="cannot be read"):
        other.reload()
    assert set(other.tokens) == {"billing", "more"}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"tokens": [{"name": "a", "roles": ["root"], "hash": "sha256:0", "created": ""}]}',
        '{"tokens": [{"name": "A b", "roles": ["read"], "hash": "sha256:0", "created": ""}]}',
        '{"tokens": [{"name": "a", "roles": ["read"], "hash": "plain:0", "created": ""}]}',
        '{"tokens": [{"name": "a", "roles": [], "hash": "sha256:0", "created": ""}]}',
        '{"tokens": [{"name": "a", "roles": ["read"], "hash": "sha256:0", "created": ""}], "more": 1}',
        '{"tokens": [' + ",".join(['{"name": "a", "roles": ["read"], "hash": "sha256:0", "created": ""}'] * 2) + "]}",
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValueError, match=r"tokens\.json"):
        TokenFile(file)


def test_a_file_that_others_may_write(tokens: TokenFile) -> None:
    tokens.create("billing", ["decide"])
    tokens.path.chmod(0o622)
    with pytest.raises(InvalidValueError, match="chmod 600"):
        TokenFile(tokens.path)


@pytest.mark.parametrize("name", ["", "A", "a b", "a_b", "-a", "a" * 65, "ä"])
def test_names_are_plain(tokens: TokenFile, name: str) -> None:
    with pytest.raises(InvalidValueError, match="is no name"):
        tokens.create(name, ["decide"])


def test_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capline = CommandLine(tmp_path, monkeypatch, capsys)
    done = capline("token", "create", "billing", "--role", "decide", "--role", "read")
    assert (done.returncode, done.stdout[:12]) == (0, "cap_billing_")
    assert is_of(TokenFile(tmp_path / "tokens.json").tokens["billing"], done.stdout.strip())
    assert capline("token", "list").stdout.startswith("billing  decide,read  20")
    twice = capline("token", "create", "billing")
    assert (twice.returncode, "revoke it first" in twice.stderr) == (2, True)
    assert capline("token", "revoke", "billing").stdout == "billing: revoked\n"
    assert capline("token", "revoke", "billing").returncode == 2
    assert capline("token", "create", "x", "--role", "root").returncode == 2
    assert capline("token", "list", "--json").stdout == "[]\n"
    capline("token", "create", "x")
    assert capline.json("token", "revoke", "x") == {"name": "x", "revoked": True}
    (tmp_path / "file").touch()
    done = capline("token", "create", "x", "--file", "file/tokens.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "file/tokens.json: cannot be" in done.stderr
    done = capline("token", "create", "x", "--file", "/proc/none/tokens.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "/proc/none/tokens.json: cannot be written: no such file or directory; --file names one" in done.stderr
