"""redis-py 5.2 to 8: what older ones lack is not used, and others are refused at open."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# redis-py leaves the methods of its connections untyped.

import inspect
from typing import Any

import pytest
from redis import exceptions
from redis.asyncio.connection import Connection as AwaitedConnection
from redis.connection import Connection
from tests.kit.servers import shared

from capline import AsyncLimiter, Limiter, Policy
from capline.model.errors import StoreError
from capline.store.redis.io import aio, client, sync

POLICIES = [Policy("psp", ["2/h"])]


def _as_before_7_4(error: Exception) -> Exception:
    vars(error).pop("status_code", None)
    return error


class OldConnection(Connection):
    """What redis-py 5.2 offers: no timeout of one read, no first word in an error."""

    def read_response(self, disable_decoding: bool = False, *, disconnect_on_error: bool = True) -> Any:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - older
        try:
            reply: Any = super().read_response(disable_decoding, disconnect_on_error=disconnect_on_error)
        except exceptions.RedisError as error:
            raise _as_before_7_4(error) from None
        return reply


class OldAwaitedConnection(AwaitedConnection):
    """The same, awaited; and it looks for bytes by taking them out."""

    can_read = None  # type: ignore[assignment] # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] - older

    async def can_read_destructive(self) -> bool:
        return await super().can_read()

    async def read_response(self, disable_decoding: bool = False, *, disconnect_on_error: bool = True) -> Any:  # type: ignore[override] # pyright: ignore[reportIncompatibleMethodOverride] - older
        try:
            reply: Any = await super().read_response(disable_decoding, disconnect_on_error=disconnect_on_error)
        except exceptions.RedisError as error:
            raise _as_before_7_4(error) from None
        return reply


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> str:
    takes_timeout = "timeout" in inspect.signature(OldConnection.read_response).parameters
    monkeypatch.setattr(sync, "Connection", OldConnection)
    monkeypatch.setattr(sync, "_TAKES_TIMEOUT", takes_timeout)
    monkeypatch.setattr(aio, "Connection", OldAwaitedConnection)
    return shared("redis").url + "?deadline=20s"


def test_every_way_to_the_server_goes_through_an_older_client(old: str) -> None:
    with Limiter(old, policies=POLICIES, namespace="old-sync") as limiter:
        subjects = [f"s{number}" for number in range(1000)]
        limiter.erase("a")
        assert [bool(limiter.decide("psp", "a")) for _ in range(3)] == [True, True, False]
        assert limiter.decide_many("psp", subjects).allowed.all()
        assert limiter.peek("psp", "s1").remaining == 0
        with limiter.acquire("psp", "b", timeout=0):
            pass


async def test_the_same_awaited(old: str) -> None:
    async with AsyncLimiter(old, policies=POLICIES, namespace="old-async") as limiter:
        await limiter.erase("a")
        assert [bool(await limiter.decide("psp", "a")) for _ in range(3)] == [True, True, False]
        assert (await limiter.decide_many("psp", [f"s{number}" for number in range(1000)])).allowed.all()


def test_a_script_that_the_server_forgot_is_loaded_again(old: str) -> None:
    # Only with the first word of the error, NOSCRIPT, is it known that the call did not run.
    with Limiter(old, policies=POLICIES, namespace="old-noscript") as limiter:
        assert limiter.decide("psp", "a", cost=2)
        shared("redis").command("SCRIPT", "FLUSH")
        assert not limiter.decide("psp", "a", cost=2)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.NoScriptError("No matching script."), "NOSCRIPT"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING"),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
        (exceptions.AuthenticationError("Authentication required."), "NOAUTH"),
        (exceptions.AuthenticationError("invalid username-password pair or user is disabled."), "WRONGPASS"),
        (exceptions.NoPermissionError("this user has no permissions"), "NOPERM"),
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "OOM"),
        (exceptions.ConnectionError("max number of clients reached"), "ERR"),
        (exceptions.ResponseError("MOVED 3999 127.0.0.1:6381"), "MOVED"),
        (exceptions.MovedError("3999 127.0.0.1:6381"), "MOVED"),
        (exceptions.AskError("3999 127.0.0.1:6381"), "ASK"),
        (exceptions.MasterDownError("Link with MASTER is down"), "MASTERDOWN"),
        (exceptions.ClusterDownError("The cluster is down"), "CLUSTERDOWN"),
        (exceptions.ResponseError("TRYAGAIN Multiple keys request"), "TRYAGAIN"),
        (exceptions.ResponseError("unknown command 'x'"), "ERR"),
        (exceptions.ResponseError("DB index is out of range"), "ERR"),
        (exceptions.AuthenticationError("AUTH <password> called without any password configured"), "ERR"),
    ],
)
def test_an_error_of_an_older_client_has_its_first_word(error: Exception, code: str) -> None:
    found = client.server_error(_as_before_7_4(error))
    assert found is not None
    assert found.code == code


def test_a_lost_connection_is_no_error_of_the_server() -> None:
    assert client.server_error(_as_before_7_4(exceptions.ConnectionError("Connection closed by server."))) is None


@pytest.mark.parametrize("version", ["5.2.0", "5.3.1", "6.4.0", "7.0.0b1", "7.4.1", "8.1.0"])
def test_these_versions_are_taken(version: str) -> None:
    client.check_version(version)


@pytest.mark.parametrize("version", ["4.6.0", "5.0.8", "5.1.1", "9.0.0", "10.1", "99", ""])
def test_any_other_is_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(StoreError, match=r'^redis-py .*5\.2 to 8: pip install "redis>=5\.2,<9"$'):
        client.check_version(version)
