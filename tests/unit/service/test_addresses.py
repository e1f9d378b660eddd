"""Where the service listens: on this machine alone, as there are no tokens."""

from __future__ import annotations

import pytest

from capline.model.errors import InvalidValueError
from capline.service.server import parse_address


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("127.1.2.3:0", "127.1.2.3:0"),
        ("localhost:65535", "127.0.0.1:65535"),
        ("[::1]:8080", "[::1]:8080"),
    ],
)
def test_this_machine(text: str, shown: str) -> None:
    assert str(parse_address(text, "--listen")) == shown


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[fe80::1]:80", "8.8.8.8:80"])
def test_no_other(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"--admin .*loopback only"):
        parse_address(text, "--admin")


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:٣"),
        *("127.0.0.1:-1", "::1:8080", "[127.0.0.1]:80x", "example.org:80", "[]:80", "127.0.0.1:" + "9" * 5000),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"like 127\.0\.0\.1:8080"):
        parse_address(text, "--listen")
