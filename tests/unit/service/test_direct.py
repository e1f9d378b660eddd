"""A request that comes whole is answered by its connection directly: the same bytes as by ASGI, counted as often."""

import asyncio
import json
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from uvicorn.server import ServerState

from capline import AsyncLimiter, ManualClock, Policy
from capline.service.access.guard import Guard
from capline.service.access.tokens import TokenFile
from capline.service.http.app import App, Reply, Request, Route
from capline.service.run.connection import Connection
from capline.service.run.listen import Listener
from capline.service.settings.values import Bounds
from capline.service.verbs.routes import routes

NOW_US = 1_763_700_000_000_000
POLICIES = (
    Policy("promo", ["3/day", "10/week"], by_segment={"active": ["5/day"]}, channels={"push": ["1/day"]}),
    Policy("psp", ["1/s"]),
)
BOUNDS = Bounds(body_bytes=2000)
JSON = b"application/json"


class Wire(asyncio.Transport):
    """A client's side of a connection, without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.7", 5), "sockname": ("127.0.0.1", 6)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Whoever writes here waits for an answer."""

    def resume_reading(self) -> None:
        """As above."""


class Side:
    """A service with a limiter of its own; `directly` or by ASGI alone, `waits` as on a server."""

    def __init__(self, app: App, limiter: AsyncLimiter, clock: ManualClock, *, directly: bool, waits: bool) -> None:
        self.limiter, self.clock = limiter, clock
        if not directly:
            app.direct = frozenset()
        self._listener = Listener(app, BOUNDS, waits=waits)
        self.config = self._listener.config
        self._state = ServerState()
        self.connect()

    def connect(self) -> None:
        """Be a new client."""
        kind: Any = self.config.http_protocol_class
        self.connection: Connection = kind(config=self.config, server_state=self._state, app_state={})
        self.wire = Wire()
        self.connection.connection_made(self.wire)

    def stay_idle(self) -> None:
        """Keep a connection open while the other side answers, however long a busy machine takes for it."""
        self.config.timeout_keep_alive = 3600
        self.connect()

    async def settled(self) -> bytes:
        """All that was written, once nothing is under way."""
        while self._state.tasks:
            await asyncio.wait(set(self._state.tasks))
        written, self.wire.written = self.wire.written, b""
        return written

    async def ask(self, *pieces: bytes) -> tuple[bytes, bool]:
        """What is answered to these bytes, and whether the connection is closed; then it is a new one."""
        for piece in pieces:
            if not self.wire.closed:
                self.connection.data_received(piece)
                await asyncio.sleep(0)
        answer = await self.settled(), self.wire.closed
        if self.wire.closed:
            self.connect()
        return answer


class Heard:
    """What an observer and the count were told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def answered(self, request: Request, status: int, size_bytes: int, _seconds: float) -> None:
        head = request.method, request.route, request.path
        self.told.append((*head, status, size_bytes, request.who, request.client, request.headers))

    def count(self, status: int, _seconds: float) -> None:
        self.told.append((status,))


def side(
    heard: Heard | None = None,
    guard: Guard | None = None,
    extra: dict[str, Route] | None = None,
    *,
    directly: bool = True,
    waits: bool = False,
) -> Side:
    clock, heard = ManualClock(NOW_US), heard or Heard()
    limiter = AsyncLimiter("memory://", POLICIES, clock=clock)
    app = App({**routes(limiter), **(extra or {})}, BOUNDS, (heard,), guard, 1, heard.count)
    return Side(app, limiter, clock, directly=directly, waits=waits)


def post(
    body: bytes, path: str = "/v1/decide", *, kind: bytes = JSON, more: bytes = b"", version: bytes = b"1.1"
) -> bytes:
    """A request."""
    head = b"POST %b HTTP/%b\r\nHost: localhost\r\ncontent-type: %b\r\nContent-Length: %d\r\n%b\r\n"
    return head % (path.encode(), version, kind, len(body), more) + body


def drawn(draw: random.Random, token: bytes) -> tuple[bytes, ...]:
    """A request, as a good client sends it, or not so; in pieces, as they arrive."""
    form: dict[str, Any] = {
        "policy": draw.choice(["promo", "psp", "promo", "nobody"]),
        "subject": draw.choice(["u", "é", 7, "", 'a"b', -1, True, "u" * 600]),
    }
    for name, values in {
        "cost": [1, 2, 9, 0, "1"],
        "id": ["m1", "m2", None],
        "segment": ["active", "lapsed", None],
        "channel": ["push", "mail", None],
        "zone": ["Europe/Berlin", None],
        "subjekt": [1],
    }.items():
        if draw.random() < 0.15:
            form[name] = draw.choice(values)
    body = json.dumps(form, ensure_ascii=draw.random() < 0.5).encode()
    path = draw.choice(["/v1/decide"] * 6 + ["/v1/peek", "/v1/charge", "/v1/refund", "/v1/decide?x=1", "/v1/nothing"])
    if path == "/v1/refund":
        body = json.dumps({"policy": "promo", "subject": "u", "hit": NOW_US + draw.randrange(9)}).encode()
    odd = draw.random()
    if odd < 0.1:
        body = draw.choice(
            [
                body[:-1] + b',"policy":"promo"}',
                b'{"policy":"promo","subject":"u","cost":1,"cost":2}',
                b'{"policy":"promo","subject":"u","subj\\u0065ct":"v"}',
                body[:-1],
                b"",
                b"\xff" + body,
                b" " * 3000,
                b"[" * 1500,
            ]
        )
    more = b"".join(
        line
        for line in (
            b"Connection: close\r\n",
            b"Expect: 100-continue\r\n",
            b"X-Forwarded-For: 192.0.2.1\r\n",
            b"Authorization: Bearer cap_none_x\r\n",
            b"authorization: Bearer %b\r\n" % token,
        )
        if draw.random() < (0.5 if token and token in line else 0.08)
    )
    kind = draw.choice([JSON] * 9 + [b"application/json; charset=utf-8", b"text/plain", b"APPLICATION/JSON"])
    if draw.random() < 0.05:
        kind, body = b"application/msgpack", msgspec.msgpack.encode(form)
    whole = post(body, path, kind=kind, more=more, version=draw.choice([b"1.1"] * 9 + [b"1.0"]))
    if draw.random() < 0.05:
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        whole = whole.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    if draw.random() < 0.1:
        whole += post(body, path)  # one after the other, before the first is answered
    if draw.random() < 0.2:
        cuts = sorted(draw.sample(range(1, len(whole)), 2))
        return whole[: cuts[0]], whole[cuts[0] : cuts[1]], whole[cuts[1] :]
    return (whole,)


def drawn_again(draw: random.Random, whole: bytes) -> tuple[bytes, ...]:
    """A request that came before, as it was or nearly so, as all that is received at once or in pieces."""
    head, end, body = whole.partition(b"\r\n\r\n")
    odd = draw.random()
    if odd < 0.05:
        return whole, whole
    if odd < 0.1:
        whole += whole[: draw.randrange(len(head))] if draw.random() < 0.5 else whole  # no half body: 30 s
    elif odd < 0.15:
        whole = draw.choice([b"\r\n", b"\r\n\r\n", b"\n", b"\0", b" ", b"X"]) + whole
    elif odd < 0.2:
        whole += draw.choice([b"\r\n", b"\r", b"\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
    elif odd < 0.3:
        length = b"%d" % draw.choice([len(body), len(body) - 1, len(body) + 1, 0])
        more = draw.choice([b"Content-Length: %b", b"content-length:%b", b"Transfer-Encoding: chunked", b" folded"])
        whole = head + b"\r\n" + (more % length if b"%b" in more else more) + end + body
    elif odd < 0.35:
        whole = head.replace(b"\r\n", b"\n") + b"\n\n" + body
    if draw.random() < 0.3:
        at = draw.choice([draw.randrange(1, len(whole)), len(head) + len(end), 1, len(whole) - 1])
        return whole[:at], whole[at:]
    return (whole,)


class Forgotten(dict[bytes, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: bytes, value: Any, /) -> None:
        """Forget it."""


async def compared(
    seed: int, count: int, *, tokens: TokenFile | None = None, waits: bool = False, again: bool = False
) -> None:
    """Against a service that answers by ASGI; heads that come `again`, and what looks like them, against one that
    parses every head."""
    draw, heard, heard_by_other = random.Random(seed), Heard(), Heard()
    token = b"" if tokens is None else tokens.create("billing", ["decide"]).encode()
    one = side(heard, tokens and Guard(tokens), waits=waits)
    other = side(heard_by_other, tokens and Guard(tokens), directly=again, waits=waits and again)
    one.stay_idle()
    other.stay_idle()
    if again:
        type(other.connection).heads = Forgotten()
    parsed, parsed_by_other = parsed_at(one), parsed_at(other)
    before: list[bytes] = []
    answered = 0
    for number in range(count):
        if before and draw.random() < 0.8:
            pieces = drawn_again(draw, draw.choice(before))
        else:
            pieces = drawn(draw, token)
            before = [*before[-5:], b"".join(pieces)] if again else []
        mine, theirs = await one.ask(*pieces), await other.ask(*pieces)
        assert mine == theirs, (number, pieces)
        answered += mine[0].count(b'"allowed"')
        for clock in (one.clock, other.clock):
            clock.advance_us(90_000_000_000 if number % 7 == 0 else number % 3)
    assert heard.told == heard_by_other.told
    if again:
        assert len(parsed_by_other) - len(parsed) > count / 20
    else:
        assert answered > count / 10


def parsed_at(one: Side) -> list[bytes]:
    """An item for each request that the parser of this side reads from now on."""
    read: list[bytes] = []
    kind: Any = type(one.connection)

    def on_message_begin(connection: Any) -> None:
        read.append(b"")
        kind.on_message_begin(connection)

    noted = type("Noted", (kind,), {"on_message_begin": on_message_begin})
    one._listener.config.http_protocol_class = noted  # pyright: ignore  # noqa: PGH003 - nothing else tells
    one.connect()
    return read


@pytest.mark.parametrize("waits", [False, True])
async def test_direct_answers_are_those_of_asgi(waits: bool) -> None:
    await compared(1, 120, waits=waits)


async def test_direct_answers_ask_for_tokens_as_asgi_does(tmp_path: Path) -> None:
    await compared(2, 80, tokens=TokenFile(tmp_path / "tokens.json", create=True))


@pytest.mark.parametrize("waits", [False, True])
async def test_a_head_seen_before_is_answered_as_one_that_is_parsed(waits: bool) -> None:
    await compared(3, 400, waits=waits, again=True)


async def test_a_head_seen_before_shows_its_token_as_one_that_is_parsed(tmp_path: Path) -> None:
    await compared(4, 200, tokens=TokenFile(tmp_path / "tokens.json", create=True), again=True)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10, 14))
def test_direct_answers_are_those_of_asgi_at_length(seed: int) -> None:
    asyncio.run(compared(seed, 3000, waits=seed % 2 == 0))
    asyncio.run(compared(seed, 10_000, waits=seed % 2 == 1, again=True))


async def test_a_decision_that_has_to_wait_is_answered_in_its_turn() -> None:
    one = side()
    store: Any = one.limiter._store  # pyright: ignore[reportPrivateUsage]
    batch = asyncio.get_running_loop().create_future()
    store.batches.add(batch)  # as while one runs in a thread
    asks = [post(b'{"policy":"psp","subject":"%d"}' % number) for number in (1, 1, 2)]
    goes_on = threading.Event()
    store._singles.submit(goes_on.wait)  # as while another decision runs in a thread
    one.connection.data_received(b"".join(asks))
    assert one.wire.written == b""
    goes_on.set()
    answers = (await one.settled()).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [json.loads(answer.partition(b"\r\n\r\n")[2])["allowed"] for answer in answers] == [True, False, True]
    batch.cancel()


def held() -> tuple[dict[str, Route], asyncio.Event]:
    """A path whose answer waits for the event."""
    event = asyncio.Event()

    async def answer(request: Request) -> Reply:
        await event.wait()
        return Reply(request.body, type="text/plain")

    return {"/held": Route({"POST": answer}, 100, direct=True)}, event


async def test_a_head_is_parsed_once() -> None:
    one = side()
    parsed = parsed_at(one)
    asks = [post(b'{"policy":"promo","subject":"%d"}' % number) for number in range(6)]
    for number, ask in enumerate(asks):
        if number == 3:
            one.connect()
        answer, _ = await one.ask(ask)
        assert b'"remaining":2' in answer
    assert len(parsed) == 1
    await one.ask(post(b'{"policy":"promo","subject":"77"}'))  # its head has another length
    assert len(parsed) == 2


async def test_what_is_kept_of_heads_is_bounded() -> None:
    one = side()
    body = b'{"policy":"promo","subject":"1"}'
    for number in range(3000):
        await one.ask(post(body, more=b"X-Request-Id: %d\r\n" % number))
        assert len(one.connection.heads) <= 1024
    kept = len(one.connection.heads)
    assert kept
    await one.ask(post(body, more=b"X-Long: " + b"x" * 1024 + b"\r\n"))
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    whole = post(b"").partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    assert b'"allowed"' in (await one.ask(whole))[0]
    assert b'"allowed"' in (await one.ask(post(body)[:20], post(body)[20:]))[0]
    assert b" 400 Bad Request" in (await one.ask(post(b"").replace(b"Content-Length: 0\r\n", b"")))[0]
    assert len(one.connection.heads) == kept


async def test_a_token_that_is_revoked_is_refused_at_once(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    token = tokens.create("billing", ["decide"]).encode()
    one = side(guard=Guard(tokens))
    parsed = parsed_at(one)
    ask = post(b'{"policy":"promo","subject":"1"}', more=b"authorization: Bearer %b\r\n" % token)
    for _ in range(2):
        assert b" 200 OK" in (await one.ask(ask))[0]
    tokens.revoke("billing")
    assert b" 401 Unauthorized" in (await one.ask(ask))[0]
    assert len(parsed) == 1


@pytest.mark.parametrize("waits", [False, True])
async def test_a_stop_waits_for_what_is_under_way(waits: bool) -> None:
    extra, event = held()
    one = side(extra=extra, waits=waits)
    one.connection.data_received(post(b"{}", "/held"))
    one.connection.shutdown()
    assert (one.wire.closed, one.wire.written) == (False, b"")
    event.set()
    assert b"\r\nconnection: close\r\n\r\n{}" in await one.settled()
    assert one.wire.closed


async def test_a_client_that_left_is_written_nothing_and_counted_once() -> None:
    extra, event = held()
    heard = Heard()
    one = side(heard, extra=extra, waits=True)
    one.connection.data_received(post(b"{}", "/held"))
    await asyncio.sleep(0)
    one.wire.close()
    one.connection.connection_lost(None)
    event.set()
    assert await one.settled() == b""
    assert heard.told[0] == (200,)
    assert len(heard.told) == 2


@pytest.mark.parametrize("waits", [False, True])
async def test_an_idle_connection_is_closed_after_a_direct_answer(waits: bool) -> None:
    one = side(waits=waits)
    one.connection.data_received(post(b'{"policy":"psp","subject":"1"}'))
    assert b"200 OK" in await one.settled()
    one.connection.data_received(post(b'{"policy":"psp","subject":"2"}'))  # by the head that was seen before
    assert b"200 OK" in await one.settled()
    now = asyncio.get_running_loop().time()
    one.connection.end_if_slow(now + 4)
    assert not one.wire.closed
    one.connection.end_if_slow(now + 6)
    assert one.wire.closed


async def test_a_head_that_does_not_end_ends_its_connection() -> None:
    one = side()
    one.connection.data_received(b"POST /v1/decide HTTP/1.1\r\n")
    now = asyncio.get_running_loop().time()
    one.connection.end_if_slow(now + BOUNDS.header_within - 1)
    assert not one.wire.closed
    one.connection.end_if_slow(now + BOUNDS.header_within + 1)
    assert (one.wire.closed, one.wire.written) == (True, b"")
    one.connect()
    one.connection.data_received(b"POST /v1/decide HTTP/1.1\r\nX: " + b"x" * BOUNDS.header_bytes)
    assert one.wire.closed
    assert one.wire.written.startswith(b"HTTP/1.1 431 ")


CHUNKED = b"POST %b HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
MOST = BOUNDS.header_bytes


@pytest.mark.parametrize("path", [b"/v1/decide", b"/v1/decide/batch", b"/v1/nothing"])
@pytest.mark.parametrize(
    ("begins", "piece"),
    [
        (b"0\r\n", b"A: " + b"x" * 900 + b"\r\n"),
        (b"0\r\nA: ", b"x" * 1000),
        (b"5;", b"x" * 1000),
        (b"1\r\nx\r\n0\r\n", b"A: 1\r\n" * 200),
    ],
    ids=["trailers", "a trailer without end", "a chunk's extension", "small trailers"],
)
async def test_what_comes_beside_the_body_has_the_bound_of_a_head(path: bytes, begins: bytes, piece: bytes) -> None:
    one = side()
    one.connection.data_received(CHUNKED % path + begins)
    sent = 0
    while not one.wire.closed:
        await asyncio.sleep(0)
        one.connection.data_received(piece)
        sent += len(piece)
        assert sent < MOST + 2 * len(piece)
        assert len(one.connection.headers) == 3, "nobody reads trailers, so nobody keeps them"
    assert sent > MOST - len(piece)
    assert one.wire.written[9:12] == (b"404" if b"nothing" in path else b"431")
    assert one.wire.written.count(b"HTTP/1.1 ") == 1
    one.connection.connection_lost(None)
    await one.settled()
    if len(piece) == 1000:
        return
    one.connect()
    one.connection.data_received(CHUNKED % path + begins + piece * (2 * MOST // len(piece)))
    assert one.wire.closed
    assert one.wire.written.startswith(b"HTTP/1.1 431 "), "in one read too"
    one.connection.connection_lost(None)
    await one.settled()


async def test_trailers_within_the_bound_are_read_over_and_the_connection_goes_on() -> None:
    one = side()
    trailers = b"Authorization: Bearer x\r\nExpect: 100-continue\r\n" + b"A: 1\r\n" * 100
    body = b'{"policy":"promo","subject":"1"}'
    for path in (b"/v1/decide", b"/v1/decide?"):
        whole = CHUNKED % path + b"%x\r\n%b\r\n0\r\n" % (len(body), body) + trailers + b"\r\n"
        for pieces in ([whole], [whole[: len(whole) // 2], whole[len(whole) // 2 :]]):
            answer, closed = await one.ask(*pieces)
            assert (b" 200 OK" in answer, closed) == (True, False)


async def test_the_bound_of_a_head_holds_in_one_read() -> None:
    one = side()
    for path in (b"/v1/decide", b"/" + b"x" * MOST):
        for more in (0, 300):
            value = b"x" * (MOST - 300 + more)
            head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nX: %b\r\n\r\n" % (path, value)
            one.connection.data_received(head)
            too_large = len(path) > MOST or more > 0
            assert (b" 431 " in await one.settled(), one.wire.closed) == (too_large, too_large)
            one.connect()


@pytest.mark.parametrize(
    ("path", "more", "status"),
    [("/v1/decide", b"", b"401"), ("/nothing", b"", b"404"), ("/v1/decide", b"authorization: Bearer %b\r\n", b"413")],
)
async def test_an_answer_before_the_end_of_a_request_comes_whole_and_ends_the_connection(
    tmp_path: Path, path: str, more: bytes, status: bytes
) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", create=True)
    token = tokens.create("billing", ["decide"]).encode()
    one = side(guard=Guard(tokens))
    whole = post(b" " * 9000, path, more=more % token if more else more)
    one.connection.data_received(whole[:-8000])
    for _ in range(9):
        await asyncio.sleep(0)
    head, _, body = one.wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert b"\r\nconnection: close" in head
    assert json.loads(body)["status"] == int(status)
    assert not one.wire.closed, "what still comes would reset the connection, and the client lose the answer"
    for at in range(8000, 0, -1000):
        one.connection.data_received(whole[-at : -at + 1000 or None])
    assert await one.settled() == head + b"\r\n\r\n" + body
    assert one.wire.closed


async def test_the_rest_of_a_refused_request_is_awaited_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capline.service.http.body._LINGER_S", 0.01)
    one = side()
    one.connection.data_received(post(b" " * 9000)[:-1])
    assert b" 413 " in await one.settled()
    assert one.wire.closed


async def test_a_connection_past_the_bound_is_closed_at_once() -> None:
    one = side()
    type(one.connection).bounds = Bounds(connections=2)
    closed: list[bool] = []
    for _ in range(2):
        one.connect()
        closed.append(one.wire.closed)
    assert closed == [False, True]


async def test_a_head_seen_before_ends_the_wait_for_one() -> None:
    extra, event = held()
    one = side(extra=extra, waits=True)
    event.set()
    await one.ask(post(b"{}", "/held"))
    assert one.connection.idle_since is not None
    event.clear()
    one.connection.data_received(post(b"{}", "/held"))
    assert (one.connection.idle_since, one.connection.timeout_keep_alive_task) == (None, None)
    one.connection.data_received(post(b"{}", "/held"))
    assert len(one.connection.pipeline) == 1  # it waits for the one before
    event.set()
    assert (await one.settled()).count(b" 200 OK") == 2
    one.connect()
    await one.ask(post(b"{}", "/held"))
    assert one.connection.head_since is None


def test_no_header_of_an_answer_begins_another(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(_request: Request) -> Reply:
        return Reply(b"", {"X": "1\r\nSet-Cookie: a=b"})

    async def run() -> None:
        one = side(extra={"/bad": Route({"POST": answer}, 100, direct=True)})
        one.connection.data_received(post(b"{}", "/bad"))
        assert await one.settled() == b""
        assert one.wire.closed

    asyncio.run(run())
    assert "would begin another header" in caplog.text
