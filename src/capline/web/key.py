"""Who is limited: each function here makes a key, which is a function of the framework's own request.

A key reads one of two forms that all frameworks share: the scope of ASGI (Starlette, FastAPI, Litestar), or the environ
of WSGI (Flask, and Django's META). So it works with any of them, and can be called inside a function of your own.

The rule: requests are untrusted. Headers are read as Latin-1, which decodes any bytes; an address is believed only
where a proxy of yours wrote it. None means that there is no such key, and the rule is skipped.
"""

import logging
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted

log = logging.getLogger("capline.web")

MOST_PROXIES = 16
IPV6_BITS = 128
LONGEST_ADDRESS = 100
UNKNOWN = "unknown"
"""The subject of all clients without an address, as on a Unix socket: they share it, since unlimited is worse."""


def header(name: str) -> Callable[[Any], str | None]:
    """The value of this header; None where it is missing or empty. Lines of one name are joined by ", "."""
    if not isinstance(name, str) or not name or not name.isascii() or not name.replace("-", "").isalnum():  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        raise InvalidValueError(f"key.header takes the name of a header, like 'X-Api-Key', not {quoted(name)}")
    in_scope, in_environ = name.lower().encode(), f"HTTP_{name.upper().replace('-', '_')}"

    def of(request: Any) -> str | None:
        return _header(request, in_scope, in_environ) or None

    return of


def ip(trusted: int = 0, ipv6: int = 64) -> Callable[[Any], str]:
    """The address of the client, behind `trusted` proxies of yours.

    With 0, that of the connection. Each proxy adds the address that it was called from at the right end of
    `X-Forwarded-For`, so the client's is that many from the right: what a client has written there itself is further
    left, and never read. With fewer addresses than proxies it is the leftmost. IPv6 is cut to its network of `ipv6`
    bits (a subscriber has at least a /64), written as `2001:db8::/64`; `::ffff:192.0.2.1` is 192.0.2.1.

    With proxies, the first request without the header is logged as a warning: where none stands before the app, clients
    choose their address.
    """
    _whole(trusted, 0, MOST_PROXIES, "trusted is the number of your proxies")
    _whole(ipv6, 1, IPV6_BITS, "ipv6 is the bits of a network")
    warned = False

    def of(request: Any) -> str:
        nonlocal warned
        scope = _scope(request)
        if scope is None:
            peer: str = _environ(request).get("REMOTE_ADDR") or ""
        else:
            client = scope.get("client")
            peer = client[0] or "" if client else ""
        if not trusted:
            return _address(peer, ipv6) or peer or UNKNOWN
        forwarded = _header(request, b"x-forwarded-for", "HTTP_X_FORWARDED_FOR") or ""
        if not forwarded and not warned:
            warned = True
            log.warning(
                "key.ip(trusted=%d), but a request came without X-Forwarded-For: if no proxy of yours stands before "
                "this app, clients choose their address by that header; use key.ip()",
                trusted,
            )
        # A client may send thousands of them; only the last few are looked at.
        chain = [*(forwarded.rsplit(",", trusted)[-trusted:] if forwarded else ()), peer]
        for text in chain:
            # Our proxies write addresses. Other text is the client's, and the next to the right is who passed it on.
            if address := _address(text.strip(), ipv6):
                return address
        return peer or UNKNOWN

    return of


def joined(*keys: Callable[[Any], str | int | None]) -> Callable[[Any], str | None]:
    """Several keys as one, such as an address and a user name; None where one of them is None.

    The parts cannot run into each other: `a:b` with `c` is another subject than `a` with `b:c`.
    """
    if not keys or not all(callable(key) for key in keys):
        raise InvalidTypeError("key.joined takes keys, like key.joined(key.ip(), key.header('X-Api-Key'))")

    def of(request: Any) -> str | None:
        parts = [key(request) for key in keys]
        if None in parts:
            return None
        return ":".join(str(part).replace("%", "%25").replace(":", "%3A") for part in parts)

    return of


def _header(request: Any, in_scope: bytes, in_environ: str) -> str | None:
    scope = _scope(request)
    if scope is not None:
        found = [value for name, value in scope["headers"] if name.lower() == in_scope]
        return b", ".join(found).decode("latin-1") if found else None
    return _environ(request).get(in_environ)


def _scope(request: Any) -> dict[str, Any] | None:
    scope: Any = getattr(request, "scope", None)
    return scope if isinstance(scope, dict) and "headers" in scope else None  # pyright: ignore[reportUnknownVariableType] - as below


def _environ(request: Any) -> dict[str, Any]:
    for name in ("META", "environ"):
        found = getattr(request, name, None)
        if isinstance(found, dict):
            return found  # pyright: ignore[reportUnknownVariableType] - a request may be anything
    raise InvalidTypeError(f"a key reads a request of ASGI, WSGI, Flask or Django, not {type(request).__name__}")


def _address(text: str, ipv6: int) -> str | None:
    """The address, or its network, in its one spelling; None for any other text. A port is left out."""
    return _parsed(text, ipv6) if len(text) <= LONGEST_ADDRESS else None


@lru_cache(maxsize=4096)
def _parsed(text: str, ipv6: int) -> str | None:
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found: IPv4Address | IPv6Address = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(IPv6Network((int(found), ipv6), strict=False))


def _whole(value: int, least: int, most: int, what: str) -> None:
    if type(value) is not int:
        raise InvalidTypeError(f"{what}, not {quoted(value)}")
    if not least <= value <= most:
        raise InvalidValueError(f"{what}, {least} to {most}, not {value}")
