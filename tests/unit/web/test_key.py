"""`capline.web.key`: an address that cannot be spoofed, headers of any bytes, the same from every framework."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from capline import CaplineError
from capline.web import key


def asgi(peer: str | None = "198.51.100.9", *fields: tuple[bytes, bytes]) -> Any:
    return SimpleNamespace(scope={"headers": list(fields), "client": None if peer is None else (peer, 5000)})


def wsgi(peer: str = "198.51.100.9", **environ: str) -> Any:
    return SimpleNamespace(environ={"REMOTE_ADDR": peer, **environ})


def forwarded(text: str, peer: str = "10.0.0.1") -> list[Any]:
    return [asgi(peer, (b"x-forwarded-for", text.encode())), wsgi(peer, HTTP_X_FORWARDED_FOR=text)]


@pytest.mark.parametrize(
    ("trusted", "text", "address"),
    [
        (0, "203.0.113.7", "10.0.0.1"),
        (1, "203.0.113.7", "203.0.113.7"),
        (1, "6.6.6.6, 203.0.113.7", "203.0.113.7"),
        (2, "6.6.6.6, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
        (2, "203.0.113.7", "203.0.113.7"),
        (1, "", "10.0.0.1"),
        (1, "nonsense", "10.0.0.1"),
        (2, "nonsense, 203.0.113.7", "203.0.113.7"),
        (1, "203.0.113.7:41000", "203.0.113.7"),
        (1, "[2001:db8:1:2:3::4]:41000", "2001:db8:1:2::/64"),
        (1, "2001:DB8:1:2:ffff::4", "2001:db8:1:2::/64"),
        (1, "::ffff:203.0.113.7", "203.0.113.7"),
        (1, "6.6.6.6," * 1000 + " 203.0.113.7", "203.0.113.7"),
        (1, ",", "10.0.0.1"),
        (1, "2001:db8::1%" + "x" * 100, "10.0.0.1"),
        (16, "203.0.113.7", "203.0.113.7"),
    ],
)
def test_the_address_is_counted_from_the_right(trusted: int, text: str, address: str) -> None:
    assert {key.ip(trusted=trusted)(request) for request in forwarded(text)} == {address}


def test_proxies_that_are_trusted_and_not_there_are_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    behind, before = key.ip(trusted=1), key.ip()
    for _ in range(2):
        assert behind(asgi("10.0.0.1", (b"x-forwarded-for", b"203.0.113.7"))) == "203.0.113.7"
    assert before(asgi("10.0.0.1")) == "10.0.0.1"
    assert caplog.text == ""
    for request in (asgi("10.0.0.1"), wsgi("10.0.0.1"), asgi("10.0.0.1", (b"x-forwarded-for", b""))):
        assert behind(request) == "10.0.0.1"
    assert caplog.text.count("came without X-Forwarded-For") == 1


def test_examples_believe_no_header_as_no_proxy_may_be_there() -> None:
    root = Path(__file__).parents[3]
    for page in (root / "examples" / "web").glob(
        "*_app.py"
    ):  # which the pages show, as tests/e2e/test_web_servers.py sees
        text = page.read_text(encoding="utf-8")
        assert 'Rule("ip", key.ip())' in text
        assert 'Rule("ip", key.ip(trusted' not in text


def test_lines_of_one_header_are_one_list() -> None:
    fields = ((b"x-forwarded-for", b"6.6.6.6"), (b"X-Forwarded-For", b"203.0.113.7"))
    assert key.ip(trusted=1)(asgi("10.0.0.1", *fields)) == "203.0.113.7"


def test_who_comes_without_an_address_is_limited_all_the_same() -> None:
    assert key.ip()(asgi(None)) == key.ip()(wsgi("")) == key.ip(trusted=1)(asgi(None)) == "unknown"
    assert key.ip()(asgi("testclient")) == "testclient"
    behind_a_socket = asgi(None, (b"x-forwarded-for", b"203.0.113.7"))
    assert key.ip(trusted=1)(behind_a_socket) == "203.0.113.7"


def test_ipv6_is_cut_as_asked() -> None:
    assert key.ip(ipv6=48)(asgi("2001:db8:1:2::3")) == "2001:db8:1::/48"
    assert key.ip(ipv6=128)(asgi("2001:db8:1:2::3")) == "2001:db8:1:2::3/128"
    assert key.ip()(asgi("fe80::1%eth0")) == "fe80::/64"


@pytest.mark.parametrize("name", ["X-Api-Key", "x-api-key"])
def test_a_header_is_the_same_from_every_framework(name: str) -> None:
    read = key.header(name)
    assert read(asgi("1.1.1.1", (b"x-api-key", b"k"))) == read(wsgi(HTTP_X_API_KEY="k")) == "k"
    assert read(asgi("1.1.1.1", (b"x-api-key", b"\xff\xfe"))) == "\xff\xfe"
    assert read(asgi("1.1.1.1", (b"x-api-key", b""))) is read(wsgi(HTTP_X_API_KEY="")) is None
    assert read(asgi()) is read(wsgi()) is None


def test_joined_keys_do_not_run_into_each_other() -> None:
    def of(*parts: str | None) -> str | None:
        def one(part: str | None) -> Callable[[Any], str | None]:
            return lambda _: part

        return key.joined(*map(one, parts))(None)

    assert of("a:b", "c") != of("a", "b:c")
    assert of("a%3A", "b") != of("a:", "b")
    assert of("a", None) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: key.ip(trusted=-1),
        lambda: key.ip(trusted=True),
        lambda: key.ip(trusted=17),
        lambda: key.ip(ipv6=0),
        lambda: key.header(""),
        lambda: key.header("a\r\nb"),
        lambda: key.header("é"),
        lambda: key.header(1),  # pyright: ignore[reportArgumentType]
        key.joined,
        lambda: key.ip()(object()),
    ],
)
def test_a_bad_key_is_one_line(make: Any) -> None:
    with pytest.raises(CaplineError) as raised:
        make()
    assert "\n" not in str(raised.value)
