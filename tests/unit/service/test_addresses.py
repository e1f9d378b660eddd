"""Where the service listens."""

import pytest

from capline.model.errors import InvalidValueError
from capline.service.settings.values import parse_address


@pytest.mark.parametrize(
    ("text", "shown", "loopback"),
    [
        ("127.0.0.1:8080", "127.0.0.1:8080", True),
        ("127.1.2.3:0", "127.1.2.3:0", True),
        ("localhost:65535", "127.0.0.1:65535", True),
        ("[::1]:8080", "[::1]:8080", True),
        ("0.0.0.0:80", "0.0.0.0:80", False),
        ("[::]:80", "[::]:80", False),
        ("10.0.0.1:80", "10.0.0.1:80", False),
    ],
)
def test_an_address(text: str, shown: str, loopback: bool) -> None:
    address = parse_address(text)
    assert (str(address), address.is_loopback) == (shown, loopback)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "8080", ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:٣"),
        *("127.0.0.1:-1", "::1:8080", "[127.0.0.1]:80x", "example.org:80", "[]:80", "127.0.0.1:" + "9" * 5000),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"like 127\.0\.0\.1:8080"):
        parse_address(text)
