"""Who may ask: the tokens file, and the guard before each handler."""

import asyncio
import io
import json
import stat
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from threading import Semaphore

import pytest
from tests.kit.cli import CommandLine
from tests.kit.service import Service

from capline import Policy
from capline.model.errors import InvalidValueError
from capline.service.access.guard import Guard
from capline.service.access.tokens import Token, TokenFile, is_of
from capline.service.console.sessions import Sessions
from capline.service.http.app import Request
from capline.service.http.problems import Problem
from capline.service.settings.kept import KEPT, make_key

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


@pytest.mark.parametrize("path", ["/v1/policies/promo/rollback", "/v1/overrides/promo/u/rollback"])
def test_only_an_admin_rolls_back(service: Service, tokens: TokenFile, path: str) -> None:
    shown = [f"Bearer {tokens.create(f'a-{role}', [role])}" for role in ("decide", "read", "admin")]
    assert [status(service, header, "POST", path) for header in shown] == [403, 403, 422], "that form is no rollback"


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_probes_are_for_anybody(service: Service, method: str) -> None:
    assert [status(service, None, method, path) for path in ("/healthz", "/readyz")] == [200, 200]


def test_without_a_good_token_nothing_is_read(service: Service, tokens: TokenFile) -> None:
    good = tokens.create("billing", ["decide"])
    wrong = [None, "", "Bearer", "Bearer x", f"Bearer {good}0", f"Bearer {good[:-1]}", f"Basic {good}", "Basic !"]
    wrong += [f"Bearer {good.replace('billing', 'first')}", f"Bearer {good.upper()}", "Bearer " + "é" * 5000]
    wrong += [f"Digest {good}", basic("billing", good), basic("nobody", CHOSEN), basic("", "")]
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


def test_when_too_many_show_secrets_the_next_is_to_come_again(
    service: Service, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capline.service.access.turns._MOST_WAIT", (0, 0, 0))
    shown = tokens.create("billing", ["decide"])
    tokens.create("ann", ["decide"], CHOSEN)
    answer = service("POST", "/v1/decide", headers={"Authorization": basic("ann", CHOSEN)}, json={})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert status(service, f"Bearer {shown}") == 200, "a generated one has not to wait"


def test_wrong_secrets_one_after_the_other_keep_nobody_out(
    service: Service, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capline.service.access.turns._MOST_WAIT", (1, 1, 1))
    tokens.create("ann", ["decide"], CHOSEN)
    shown = [basic("ann", "no"), basic("ann", "no"), basic("ann", CHOSEN)]
    assert [status(service, header) for header in shown] == [401, 401, 200]


async def test_forty_who_guess_keep_out_neither_the_right_secret_nor_other_names(
    tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each guesses again when it was answered: the right one waits for the others' turns, other names and addresses
    for one each."""
    tokens.create("ann", ["decide"], CHOSEN)
    tokens.create("bob", ["decide"], CHOSEN)
    shown = tokens.create("billing", ["decide"])
    guard, refused, begun = Guard(tokens), 0, asyncio.Event()
    is_right = partial(is_of, tokens.tokens["billing"])

    def quickly(token: Token | None, chosen: str) -> bool:
        return is_right(chosen) if token == tokens.tokens["billing"] else chosen == CHOSEN

    monkeypatch.setattr("capline.service.access.guard.is_of", quickly)

    async def who(header: str, client: str = "2001:db8::1") -> str:
        return (await guard.who([(b"authorization", header.encode())], ("decide",), client)).name

    async def guess(number: int) -> None:
        nonlocal refused
        while True:
            with pytest.raises(Problem) as problem:
                await who(basic("ann" if number % 2 else "nobody", f"guess {number} {refused}"))
            assert problem.value.status == 401
            refused += 1
            begun.set()

    assert await who(basic("ann", CHOSEN)) == "ann"
    tokens.create("later", ["read"])  # the file changes, ann's token in it does not
    guessing = [asyncio.create_task(guess(number)) for number in range(40)]
    await begun.wait()
    for header, name in ((basic("ann", CHOSEN), "ann"), (f"Bearer {shown}", "billing")):
        before = refused
        assert await who(header) == name
        assert refused == before, "it waited for nobody"
    assert await who(basic("bob", CHOSEN)) == "bob"
    assert refused - before <= 6, "a turn for each name that is guessed"
    for client, turns in (("2001:db8:0:1::1", 6), ("192.0.2.1", 6), ("::ffff:192.0.2.2", 6), ("2001:db8::2", 50)):
        guard._proven.clear()  # pyright: ignore[reportPrivateUsage] - as in another worker
        before = refused
        assert await who(basic("ann", CHOSEN), client) == "ann"
        assert refused - before <= turns
    assert refused - before > 6, "of the same network it waits for those before it"
    for task in guessing:
        task.cancel()
    await asyncio.gather(*guessing, return_exceptions=True)


async def test_those_who_leave_keep_nobody_out(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens.create("ann", ["decide"], CHOSEN)
    guard, checked = Guard(tokens), list[str]()

    def noted(_token: Token | None, chosen: str) -> bool:
        checked.append(chosen)
        return chosen == CHOSEN

    monkeypatch.setattr("capline.service.access.guard.is_of", noted)

    async def who(secret: str, *, has_left: bool) -> str:
        headers = [(b"authorization", basic("ann", secret).encode())]
        return (await guard.who(headers, ("decide",), "192.0.2.1", lambda: has_left)).name

    left = [asyncio.create_task(who(f"guess {number}", has_left=True)) for number in range(300)]
    await asyncio.sleep(0)
    assert await who(CHOSEN, has_left=False) == "ann"
    assert checked == [CHOSEN]
    assert all(isinstance(answer, Problem) for answer in await asyncio.gather(*left, return_exceptions=True))
    turns = guard._turns  # pyright: ignore[reportPrivateUsage] - nothing stays of any line
    assert (turns._waiting, turns._turn) == ([], {})  # pyright: ignore[reportPrivateUsage] - as above


async def test_who_was_turned_away_is_checked_when_it_asks_again_however_many_guess(
    tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the right one's own address, at its own name, and nobody of them waits before the next guess."""
    tokens.create("ann", ["decide"], CHOSEN)
    guard, checked, numbers, turn = Guard(tokens), list[str](), count(), Semaphore(0)

    def in_turn(_token: Token | None, chosen: str) -> bool:
        turn.acquire()
        checked.append(chosen)
        return chosen == CHOSEN

    monkeypatch.setattr("capline.service.access.guard.is_of", in_turn)

    async def status_of(secret: str) -> int:
        await asyncio.sleep(0)
        try:
            await guard.who([(b"authorization", basic("ann", secret).encode())], ("decide",), "192.0.2.1")
        except Problem as problem:
            return problem.status
        return 200

    async def guess() -> None:
        while True:
            turned_away.add(await status_of(f"guess {next(numbers)}"))

    turned_away = set[int]()
    guessing = [asyncio.create_task(guess()) for _ in range(100)]
    while not turned_away:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0)
    assert await status_of(CHOSEN) == 503
    turn.release()
    while not checked:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    turned_away.clear()
    while not turned_away:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    turn.release(65)
    assert await status_of(CHOSEN) == 200
    assert CHOSEN in checked[62:], "those before it came before it"
    for task in guessing:
        task.cancel()
    turn.release(100)
    await asyncio.gather(*guessing, return_exceptions=True)


async def test_a_secret_that_was_right_for_one_worker_is_known_to_all(
    tokens: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    make_key(str(tmp_path / "shared"))
    monkeypatch.setenv(KEPT, str(tmp_path / "shared"))
    tokens.create("ann", ["decide"], CHOSEN)
    header = [(b"authorization", basic("ann", CHOSEN).encode())]
    assert (await Guard(tokens).who(header, ("decide",))).name == "ann"
    with monkeypatch.context() as patched:
        patched.setattr("capline.service.access.turns._MOST_WAIT", (0, 0, 0))
        other = Guard(TokenFile(tokens.path))
        assert (await other.who(header, ("decide",))).name == "ann"
        for name, secret in (("ann", CHOSEN + "x"), ("bob", CHOSEN)):
            with pytest.raises(Problem, match="too many"):
                await other.who([(b"authorization", basic(name, secret).encode())], ("decide",))
        tokens.revoke("ann")
        tokens.create("ann", ["decide"], CHOSEN)
        with pytest.raises(Problem, match="too many"):
            await Guard(tokens).who(header, ("decide",))
    for file in (tmp_path / "shared").iterdir():
        assert CHOSEN.encode() not in file.read_bytes()


def test_a_chosen_secret_in_the_form_of_a_generated_one_is_still_sent_with_its_name(
    service: Service, tokens: TokenFile
) -> None:
    chosen = tokens.create("ann", ["decide"], "cap_ann_battery")
    assert [status(service, header) for header in (f"Bearer {chosen}", basic("ann", chosen))] == [401, 200]


def test_a_change_is_its_tokens_whoever_it_names(tokens: TokenFile) -> None:
    headers = {"Authorization": f"Bearer {tokens.create('ops', ['admin'])}"}
    path, form = "/v1/policies/promo", {"limits": ["3/day"], "who": "ann"}
    with Service([], config="memory://", guard=Guard(tokens)) as service:
        assert service("PUT", path, headers=headers, json=form).status_code == 200
        assert service("DELETE", f"{path}?who=ann", headers=headers).status_code == 200
        assert service.post(f"{path}/rollback", version=1).status_code == 401
        rollback = service("POST", f"{path}/rollback", headers=headers, json={"version": 1, "who": "ann"})
        assert rollback.status_code == 200
        versions = service("GET", f"{path}/versions", headers=headers).json()["versions"]
    assert [one["who"] for one in versions] == ["ops"] * 3


def test_who_asks_is_known_to_handlers(service: Service, tokens: TokenFile) -> None:
    shown = tokens.create("billing", ["decide"]).encode()
    guard = Guard(tokens)
    headers = [(b"authorization", b"Bearer " + shown)]
    assert service.run(guard.who(headers, ("decide",))).name == "billing"
    assert service.run(guard.who([], ())).name == ""


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
    with pytest.raises(InvalidValueError, match="not a tokens file"):
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


@pytest.mark.parametrize("mode", [0o622, 0o620, 0o602])
def test_a_file_that_others_may_write(tokens: TokenFile, mode: int) -> None:
    tokens.create("billing", ["decide"])
    tokens.path.chmod(mode)
    with pytest.raises(InvalidValueError, match="chmod 600"):
        TokenFile(tokens.path)


def test_two_who_write_the_file_undo_nothing(tokens: TokenFile) -> None:
    tokens.create("lost", ["admin"])
    other = TokenFile(tokens.path)
    tokens.revoke("lost")
    other.create("billing", ["decide"])
    assert set(TokenFile(tokens.path).tokens) == {"billing"}


def test_a_chosen_secret_is_neither_short_nor_endless(tokens: TokenFile) -> None:
    for length in (11, 257):
        with pytest.raises(InvalidValueError, match="12 to 256 characters"):
            tokens.create("ann", ["read"], "x" * length)
    assert tokens.create("ann", ["read"], "x" * 12) == "x" * 12
    assert len(tokens.create("bob", ["read"], "x" * 256)) == 256


@pytest.mark.parametrize("name", ["", "A", "a b", "a_b", "-a", "a" * 65, "ä"])
def test_names_are_plain(tokens: TokenFile, name: str) -> None:
    with pytest.raises(InvalidValueError, match="is not a name"):
        tokens.create(name, ["decide"])


def test_by_the_command_line(capline: CommandLine, tmp_path: Path) -> None:
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
    assert "file/tokens.json: cannot be" in capline.refused("token", "create", "x", "--file", "file/tokens.json")
    assert "/proc/none/tokens.json: cannot be written: no such file or directory; --file names one" in capline.refused(
        "token", "create", "x", "--file", "/proc/none/tokens.json"
    )


def test_a_chosen_secret_is_read_to_its_longest(
    capline: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that input without an end of a line takes no memory."""
    given = io.StringIO("x" * 256 + "\n" + "y" * 100_000)
    monkeypatch.setattr(sys, "stdin", given)
    assert capline("token", "create", "ann", "--chosen").stdout == "ann: kept in tokens.json\n"
    assert is_of(TokenFile(tmp_path / "tokens.json").tokens["ann"], "x" * 256)
    refused = capline("token", "create", "bob", "--chosen")
    assert (refused.returncode, "12 to 256 characters" in refused.stderr) == (2, True)
    assert given.tell() < 1000


def test_a_link_signs_in_for_a_quarter_of_an_hour_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = TokenFile(tmp_path / "tokens.json", create=True)
    shown = (b"authorization", f"Bearer {file.create('ann', ['read'])}".encode())
    asked = Request("POST", b"/console/link", b"", [shown], "", lambda: False)
    now, sessions = time.monotonic(), Sessions(Guard(file))
    keys = [asyncio.run(sessions.link(asked)) for _ in range(2)]
    for key, later_s in zip(keys, (899, 901), strict=True):
        monkeypatch.setattr("capline.service.console.sessions.time.monotonic", lambda later_s=later_s: now + later_s)
        if later_s < 900:
            assert sessions.follow(asked, key)
        else:
            with pytest.raises(Problem, match="too old"):
                sessions.follow(asked, key)
