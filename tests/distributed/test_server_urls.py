"""A URL that is wrong for the server that is there: the cause is named, no secret is shown, nothing was recorded."""

import pytest
from tests.kit import servers
from tests.kit.server import Limiters

from capline import CaplineError, InvalidValueError, Policy
from capline.campaign.store.server import Server as StoreServer
from capline.model.errors import StoreUnavailableError
from capline.store.redis.io.url import parse_url, safe_url

POLICY = Policy("p", ["1/day"])
LONG = "deadline=2s"


@pytest.fixture(scope="module")
def address() -> str:
    return servers.shared("redis").address


@pytest.mark.parametrize(
    ("scheme", "rest", "said"),
    [
        ("rediss", f"/0?{LONG}", "is it a server without TLS? then write redis:// for rediss://"),
        ("redis", f"/1000?{LONG}", "DB index is out of range); name a database that it has; nothing was recorded"),
    ],
)
def test_the_cause_is_named(limiters: Limiters, address: str, scheme: str, rest: str, said: str) -> None:
    limiter = limiters(f"{scheme}://{address}{rest}", POLICY)
    with pytest.raises(StoreUnavailableError) as caught:
        limiter.decide("p", "u")
    assert said in str(caught.value)


def test_a_password_that_nobody_asked_for(limiters: Limiters, address: str) -> None:
    limiter = limiters(f"redis://:secret@{address}/0?{LONG}", POLICY)
    with pytest.raises(StoreUnavailableError, match="without any password configured") as caught:
        limiter.decide("p", "u")
    assert "secret" not in str(caught.value)


@pytest.mark.deep
def test_a_queue_on_a_server_without_tls(address: str) -> None:
    with StoreServer(f"rediss://{address}/0") as server, pytest.raises(CaplineError, match="a server without TLS"):
        server.check()


SECRET = "t0k3n"  # noqa: S105 - it stands for one


@pytest.mark.parametrize(
    "url",
    [
        f"redis://{SECRET}@h:99999999",
        f"redis://u:{SECRET}@h:99999999",
        f"redis://h:99999999/0?token={SECRET}",
        f"redis://h:1/0?api_key={SECRET}#{SECRET}",
        f"redis://h:1/0#{SECRET}@x",
    ],
)
def test_no_secret_is_shown(url: str) -> None:
    assert SECRET not in safe_url(url)
    with pytest.raises(InvalidValueError) as caught:
        parse_url(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://h:1/0?deadline=50ms", "lmdb:///x?durability=full", "redis://u:***@h"])
def test_what_is_no_secret_is_shown(url: str) -> None:
    assert safe_url(url) == url
