"""Least privilege as docs/reference/stores.md has it, passwords that are never shown, TLS that is verified."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportAttributeAccessIssue=false

import gc
import logging
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.distributed.test_campaign_queue import FACTS, RUN, claimed, fill, finish, put, rows_of
from tests.kit.server import SLOW, Limiters, Proxy, each_kind, each_layout
from tests.kit.servers import KINDS, ReplyError, Server, certificates, free_port, shared, single

from capline import AsyncLimiter, Attempt, CaplineError, Configuration, Decision, Limiter, Policy, StoreError
from capline.campaign.queue.status import QueueStatus
from capline.campaign.store.records import Input, Over, Rate
from capline.campaign.store.redis_store import RedisCampaignStore
from capline.campaign.store.server import Server as StoreServer
from capline.config.hours import open_hours
from capline.model.errors import StoreUnavailableError
from capline.testing.conformance import Awaited

PASSWORD = "s3cret-p@ss/w:rd"  # noqa: S105 - of servers that live for a test


STORES = (Path(__file__).parents[2] / "docs" / "reference" / "stores.md").read_text(encoding="utf-8")


def documented(user: str) -> list[str]:
    """What docs/reference/stores.md gives this user, behind its password."""
    [line] = [line for line in STORES.splitlines() if line.startswith(f"user {user} on >PASSWORD ")]
    return line.split()[4:]


def documented_besides() -> list[str]:
    """What docs/reference/stores.md adds for a configuration store at the same URL."""
    [words] = re.findall(r"^ACL SETUSER capline (.*)$", STORES, re.MULTILINE)
    return words.split()


RIGHTS = documented("capline")
QUEUE_RIGHTS = documented("capline-queue")


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with single(request.param, password=PASSWORD) as made:
        made.command("ACL", "SETUSER", "capline", "on", f">{PASSWORD}", *RIGHTS)
        yield made


def address(server: Server, user: str = "capline", password: str = PASSWORD, options: str = SLOW) -> str:
    return f"{server.kind}://{user}:{quote(password, safe='')}@{server.address}/0?{options}"


def policies(layout: str) -> list[Policy]:
    channels = {"push": ["9/day"]}
    return [
        Policy("p", ["9/day", "20/week"], layout=layout, channels=channels),
        Policy("long", ["3000/day"], layout=layout, channels=channels),
        Policy("sure", ["3/day"], layout=layout),
    ]


def use_every_verb(limiter: Any) -> None:
    hit = limiter.decide("p", "s").hit
    assert limiter.decide("p", "s", 2, id="x", channel="push")
    assert limiter.decide("p", "s", 2, id="x", channel="push")
    assert limiter.decide_many("long", ["s"] * 700).allowed.all()
    for _ in range(3):
        assert limiter.decide("long", "s")
    assert limiter.decide("long", "s", 2, id="y", channel="push")
    assert limiter.refund("long", "s", limiter.decide("long", "s").hit)
    assert limiter.peek("p", "s")
    assert limiter.schedule("p", "s")
    assert limiter.refund("p", "s", hit)
    assert all(
        isinstance(one, Decision) for one in limiter.decide_batch([Attempt("p", 1), Attempt("long", "t", 2, "i")])
    )
    assert limiter.decide_many("p", range(500), receipt="r").allowed.all()
    assert limiter.decide_many("p", range(500), receipt="r").allowed.all()
    assert limiter.decide_many("sure", [1, "a", 2]).allowed.all()
    assert limiter.peek_many("p", range(500)).allowed.all()
    together = [Attempt("p", "j", 2, "z"), Attempt("long", "j")]
    assert limiter.peek_all(together)
    assert limiter.decide_all(together).hits[0] == limiter.decide_all(together[:1]).hits[0]
    assert limiter.refund_many("p", [1], [5]).tolist() == [False]
    assert limiter.explain("p", "s", channel="push").hits
    assert limiter.explain("long", "s").hits
    assert limiter.now_us()
    limiter.try_write()
    records = limiter.run(_all_of(limiter.inner)) if isinstance(limiter, Awaited) else [*limiter.export()]
    assert len(records) > 3
    assert limiter.load(records).records == len(records)
    limiter.sweep()
    assert limiter.erase("s")


async def _all_of(limiter: AsyncLimiter) -> list[Any]:
    return [record async for record in limiter.export()]


@each_layout
def test_the_line_in_the_docs_is_enough(server: Server, limiters: Limiters, layout: str, caplog: Any) -> None:
    server.command("SCRIPT", "FLUSH")
    limiter = limiters(address(server), *policies(layout), namespace="capline")
    use_every_verb(limiter)
    (state,) = limiter.servers()
    assert None not in (state.memory_bytes, state.evicted_keys, state.unsaved_s, state.scripts, state.script_us)
    with closing(open_hours(address(server), 3600)) as hours:
        hours.put(1, b"a", b"row")
        assert hours.get([1]) == [{b"a": b"row"}]
    server.command("FLUSHALL")
    assert not [record for record in caplog.records if "may not" in record.getMessage()]


@each_layout
@each_kind
def test_the_line_is_enough_on_a_cluster(kind: str, limiters: Limiters, layout: str) -> None:
    nodes = shared(kind, "cluster")
    for one in nodes.servers:
        one.command("ACL", "SETUSER", "capline", "on", f">{PASSWORD}", *RIGHTS)
    try:
        hosts = nodes.url.partition("://")[2]
        url = f"{kind}+cluster://capline:{quote(PASSWORD, safe='')}@{hosts}?{SLOW}"
        use_every_verb(limiters(url, *policies(layout), namespace="capline"))
    finally:
        for one in nodes.servers:
            one.command("ACL", "DELUSER", "capline")
        for one in nodes.primaries:
            one.command("FLUSHALL")


def test_replicas_can_be_waited_for_with_it(server: Server, sync_limiters: Limiters) -> None:
    policy = Policy("p", ["9/day"], wait_replicas=1)
    limiter = sync_limiters(address(server, options="deadline=1s"), policy, namespace="capline")
    with pytest.raises(StoreError, match="replicas have it"):
        limiter.decide("p", "s")


def test_nothing_of_the_line_is_without_need(server: Server) -> None:
    """Each right, taken away, is missed by some verb; but those that a cluster, replicas or the warnings ask for."""
    elsewhere = {"+asking", "+cluster|slots", "+wait", "+info"}
    needed: set[str] = set()
    for right in (word for word in RIGHTS if word.startswith("+") and word not in elsewhere):
        less = [word for word in RIGHTS if word != right]
        server.command("SCRIPT", "FLUSH")
        server.command("FLUSHALL")
        server.command("ACL", "SETUSER", "less", "reset", "on", f">{PASSWORD}", *less)
        for layout in ("subject", "bucket"):
            try:
                with Limiter(address(server, "less"), policies(layout), namespace="capline") as limiter:
                    use_every_verb(limiter)
            except (CaplineError, AssertionError):
                needed.add(right)
                break
        server.command("FLUSHALL")
    assert needed == {word for word in RIGHTS if word.startswith("+")} - elsewhere


@pytest.mark.parametrize(
    "words",
    [
        "FLUSHALL", "FLUSHDB", "KEYS *", "CONFIG SET maxmemory 1", "CONFIG REWRITE", "ACL LIST", "ACL WHOAMI",
        "SHUTDOWN", "PUBLISH a b", "SUBSCRIBE a", "SCRIPT FLUSH", "SCRIPT KILL", "FUNCTION LIST", "CLIENT LIST",
        "MONITOR",
        "REPLICAOF NO ONE", "RENAME capline:a capline:b", "DUMP capline:a", "GET other:a", "SET other:a 1",
        "DEL other:a",
        "HGET other:a f", "EVAL return 0", "SORT capline:a", "RESTORE capline:a 0 x", "LPUSH capline:a 1", "SELECT 1"
    ]
)  # fmt: skip
def test_everything_else_is_refused(server: Server, words: str) -> None:
    parts = [*words.split(" ", 1)[:1], *words.split(" ")[1:]]
    if parts[0] == "EVAL":
        parts = ["EVAL", "return 0", "0"]
    with pytest.raises(ReplyError, match="NOPERM"):
        as_user(server, parts)


def as_user(server: Server, words: Sequence[str], user: str = "capline") -> Any:
    """One command as capline's user, or the queue's."""
    import redis  # noqa: PLC0415 - to log in by name, which the kit does not do

    with redis.Redis("127.0.0.1", server.port, username=user, password=PASSWORD, protocol=2) as client:
        try:
            return client.execute_command(*words)
        except redis.exceptions.NoPermissionError as error:
            raise ReplyError(f"NOPERM {error}") from None


def test_a_script_cannot_reach_other_keys_either(server: Server) -> None:
    sha = server.command("SCRIPT", "LOAD", "return redis.call('GET', KEYS[1])").decode()
    with pytest.raises(ReplyError, match="NOPERM"):
        as_user(server, ["EVALSHA", sha, "1", "other:a"])
    with pytest.raises(Exception, match=r"(?i)permission|acl|can't access"):
        as_user(
            server, ["EVALSHA", server.command("SCRIPT", "LOAD", "return redis.call('GET', 'other:a')").decode(), "0"]
        )


# --- a configuration at the same URL ----------------------------------------------------------------------------------


def use_the_configuration(url: str) -> None:
    """Everything that is ever asked of it, beside a limiter that follows it."""
    with Configuration(url) as configuration, Limiter.from_config(url, url) as limiter:
        configuration.set_policies([Policy("p", ["3/day"]), Policy("q", ["3/day"])])
        configuration.override_many("p", {"u": ["9/day"], "v": ["9/day"]}, effective_at="2100-01-01T00:00:00Z")
        configuration.override("p", "u", ["5/day"])
        limiter.reload()
        assert limiter.decide("p", "u").remaining == 4
        assert configuration.delete_policy("q")
        assert configuration.roll_back_policy("p", 1)
        assert "u" in dict(configuration.overrides("p"))
        assert configuration.override_versions("p", "u")
        assert configuration.policy_versions("p")
        assert configuration.commits()
        configuration.refresh()
    with Configuration(url) as again:
        assert again.version == configuration.version
        assert again.servers()[0].memory_bytes is not None


def test_what_is_added_for_a_configuration_is_enough_and_nothing_of_it_without_need(server: Server) -> None:
    besides = documented_besides()

    def works(more: list[str]) -> bool:
        server.command("FLUSHALL")
        server.command("SCRIPT", "FLUSH")
        server.command("ACL", "SETUSER", "both", "reset", "on", f">{PASSWORD}", *RIGHTS, *more)
        try:
            use_the_configuration(address(server, "both"))
        except (CaplineError, AssertionError):
            return False
        return True

    assert works(besides)
    assert [word for word in besides if works([one for one in besides if one != word])] == []
    server.command("FLUSHALL")


# --- the queue --------------------------------------------------------------------------------------------------------


STORE = Input("store identity", "aa", "a store")


def use_the_queue(url: str) -> None:
    """Everything that is ever asked of it."""
    with StoreServer(url, patience_s=0.0) as opened:
        queue = RedisCampaignStore(opened)
        assert list(queue.ages_s()) == []
        queue.check()
        assert queue.keep_rate("push", None, Rate("1/s"))
        assert queue.rate("push") == Rate("1/s")
        assert queue.begin(RUN)
        queue.put_files(RUN)
        assert queue.freeze_store("sale", STORE) == STORE == queue.store("sale")
        assert queue.ages_s().keys() == {"sale"}
        assert put(queue, 0, 1, 2) == 3
        batches = [claimed(queue, worker) for worker in "abc"]
        assert queue.renew(batches[0])
        assert queue.record(batches[0], rows_of(batches[0]), decided=True)
        assert finish(queue, batches[0])
        assert queue.release(batches[1], "give_back")
        again = claimed(queue, "b")
        assert again.number == 1
        assert queue.release(again, "fail", "why")
        assert queue.look(1).campaigns == ["sale"]
        late = claimed(queue, "d")
        assert queue.release(late, "set_aside", "why")
        assert queue.find(*queue.page("", 9)) == RUN
        assert queue.steer("sale", "pause")
        assert queue.halt("sale") == "pause"
        assert queue.steer("sale", "resume")
        assert queue.holding("sale", 1) == [0]
        assert list(queue.ages_s()) == ["sale"]
        assert len([*queue.steps("sale", [0])]) == 1
        assert queue.state("sale").settled == 1
        assert QueueStatus(queue, "sale").report()
        assert late.number == 1
        assert claimed(queue, "c") == batches[2], "asked again it is the same one"
        assert finish(queue, batches[2])
        assert put(queue, 0, 1, 2) == 3, "what was set aside is queued again"
        assert finish(queue, claimed(queue, "e"))
        assert isinstance(queue.claim("sale", "e", 60), Over)
        other = replace(RUN, facts=replace(FACTS, campaign="other"), batches=1)
        assert queue.begin(other)
        assert fill(queue, other, [(0, 3, b"", 0, None)]) == 1
        assert queue.steer("other", "cancel")
        assert list(queue.ages_s()) == []
        assert opened.check()


def test_the_queue_s_line_is_enough_and_nothing_of_it_without_need(server: Server) -> None:
    def works(rights: list[str]) -> bool:
        server.command("FLUSHALL")
        server.command("SCRIPT", "FLUSH")
        server.command("ACL", "SETUSER", "queue", "reset", "on", f">{PASSWORD}", *rights)
        try:
            use_the_queue(address(server, "queue", options="deadline=1s"))
        except (CaplineError, AssertionError):
            return False
        return True

    assert works(QUEUE_RIGHTS)
    words = [word for word in QUEUE_RIGHTS if word.startswith(("+", "~"))]
    assert [word for word in words if works([one for one in QUEUE_RIGHTS if one != word])] == []
    server.command("FLUSHALL")


def test_the_queue_s_user_reaches_no_log_and_the_limiter_s_no_queue(server: Server) -> None:
    server.command("ACL", "SETUSER", "queue", "reset", "on", f">{PASSWORD}", *QUEUE_RIGHTS)
    for words in ("HGET capline:p:{1} a", "DEL capline:p:{1}", "FLUSHALL", "KEYS *", "CONFIG GET *", "EVAL x 0"):
        with pytest.raises(ReplyError, match="NOPERM"):
            as_user(server, words.split(), "queue")


# --- passwords --------------------------------------------------------------------------------------------------------


def shown(error: BaseException) -> str:
    """All that a log or a terminal would show of it."""
    return "".join(traceback.format_exception(error)) + repr(error) + repr(error.__cause__) + repr(error.__context__)


def test_a_wrong_password_is_reported_at_once_and_nobody_s_password_is_shown(
    server: Server, limiters: Limiters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "wr0ng-p@ss"
    for url in (
        address(server, "capline", wrong),
        address(server, "", wrong),
        f"{server.kind}://{server.address}?{SLOW}",
    ):
        limiter = limiters(url, Policy("p", ["3/day"]))
        for ask in (lambda one=limiter: one.decide("p", "s"), lambda one=limiter: one.peek("p", "s")):
            with pytest.raises(StoreUnavailableError, match="password") as caught:
                ask()
            assert "nothing was recorded" in str(caught.value)
            for secret in (wrong, quote(wrong, safe=""), PASSWORD):
                assert secret not in shown(caught.value)
        assert {type(error) for error in limiter.decide_many("p", [1]).errors.values()} == {StoreUnavailableError}
    for secret in (wrong, quote(wrong, safe=""), PASSWORD):
        assert secret not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:{}@127.0.0.1:{port}/0",
        "redis://u:{}@no-such-host.invalid:6379/0",
        "redis://:{}@127.0.0.1:{port}/x",
        "redis://:{}@127.0.0.1:port/0",
        "redis://:{}@127.0.0.1:{port}/0?nonsense=1",
        "redis://:{}@127.0.0.1:{port}/0?deadline=fast",
        "rediss://:{}@127.0.0.1:{port}/0?ca=/nowhere.pem",
        "redis://:{}@127.0.0.1:{port}/0?ca=/nowhere.pem",
        "redis+sentinel://u:{}@127.0.0.1:{port}/mymaster/0",
        "redis+sentinel://u:{}@127.0.0.1:{port}",
        "redis+cluster://u:{}@127.0.0.1:{port},127.0.0.1:1",
        "redis+cluster://u:{}@127.0.0.1:{port}/3",
        "rediz://u:{}@127.0.0.1:{port}",
        "redis://u:{}@[::1/0",
        "redis://u:{}@",
    ],
)
def test_no_failing_url_shows_its_password(url: str, limiters: Limiters, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "h1dden"  # noqa: S105 - nobody's
    full = url.replace("{}", secret).replace("{port}", str(free_port()))
    full += ("&" if "?" in full else "?") + "deadline=50ms" if "deadline" not in full else ""
    with pytest.raises(CaplineError) as caught:
        limiters(full, Policy("p", ["3/day"])).decide("p", "s")
    assert secret not in shown(caught.value)
    assert secret not in caplog.text
    assert "\n" not in str(caught.value)


def test_no_repr_shows_the_password(server: Server, sync_limiters: Limiters) -> None:
    limiter = sync_limiters(address(server), Policy("p", ["3/day"]), namespace="capline")
    assert limiter.decide("p", "s")
    store, session = limiter._store, limiter._store.session
    for one in (limiter, store, store.transport, session, session.router, session.router.settings):
        assert PASSWORD not in repr(one)
        assert PASSWORD not in str(one)
    limiter.erase("s")


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path, Path]]:
    """A server that speaks TLS only, its authority, and another authority."""
    ours, others = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("others")
    made, other = certificates(ours), certificates(others)
    with single("redis", tls=made) as server:
        yield server, made.ca, other.ca


def test_a_known_authority_is_trusted(tls: tuple[Server, Path, Path], limiters: Limiters) -> None:
    server, ca, _ = tls
    for host in ("127.0.0.1", "localhost"):
        limiter = limiters(f"rediss://{host}:{server.port}?ca={ca}&{SLOW}", *policies("subject"))
        use_every_verb(limiter)


@pytest.fixture
def collected() -> Iterator[None]:
    """Garbage goes within the test that left it, when its limiters have gone."""
    yield
    gc.collect()


# A handshake that asyncio was stopped in leaves its transport to the collector, which says so (CPython).
@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ["an unknown authority", "the system's authorities", "another name"])
def test_who_cannot_prove_who_they_are_hear_nothing(
    tls: tuple[Server, Path, Path], limiters: Limiters, what: str
) -> None:
    server, ca, other = tls
    heard: list[bytes] = []
    with Proxy(server) as proxy:
        # 127.1 is the same address, and no name that the certificate has.
        place = proxy.address.replace("127.0.0.1", "127.1") if what == "another name" else proxy.address
        trust = {"an unknown authority": f"&ca={other}", "another name": f"&ca={ca}"}.get(what, "")
        proxy.fate = lambda piece: heard.append(piece) or "pass"
        limiter = limiters(f"rediss://:{quote(PASSWORD, safe='')}@{place}?deadline=5s{trust}", *policies("subject"))
        with pytest.raises(StoreUnavailableError, match="nothing was recorded"):
            limiter.decide("p", "s")
        assert heard, "it has to have been the certificate that was looked at"
    # Three bytes come in what is encrypted now and then.
    assert not any(b"-NOAUTH " in piece or b"-ERR " in piece for piece in heard)
    direct = limiters(f"rediss://127.0.0.1:{server.port}?ca={ca}&{SLOW}", *policies("subject"))
    assert direct.peek("p", "s").remaining == 8


# The same.
@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning")
def test_a_plain_server_is_no_tls_server(limiters: Limiters) -> None:
    limiter = limiters(f"rediss://127.0.0.1:{shared('redis').port}?deadline=200ms", Policy("p", ["3/day"]))
    with pytest.raises(StoreUnavailableError, match="nothing was recorded"):
        limiter.decide("p", "s")


def test_a_server_that_wants_a_certificate_gets_ours(tmp_path: Path, limiters: Limiters) -> None:
    made = certificates(tmp_path)
    with single("redis", tls=made) as server:
        context = f"rediss://127.0.0.1:{server.port}?ca={made.ca}&deadline=2s"
        first = limiters(context, Policy("p", ["3/day"]))
        assert first.decide("p", "s")
        plain = server.command("CONFIG", "SET", "tls-auth-clients", "yes")
        assert plain == b"OK"
        refused = limiters(context, Policy("p", ["3/day"]))
        with pytest.raises(StoreError):
            refused.decide("p", "s")
        shown_ours = limiters(f"{context}&cert={made.cert}&key={made.key}", Policy("p", ["3/day"]))
        assert shown_ours.decide("p", "s").remaining == 1
