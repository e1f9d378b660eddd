"""Authentication and roles, before every handler.

    Authorization: Bearer cap_NAME_…         a generated token: SHA-256, a microsecond
    Authorization: Basic name:secret         a chosen one: scrypt, some 80 ms once; then a keyed hash

The rule: without a good token no body is read, and an answer does not tell a wrong name from a wrong secret. scrypt
runs in a thread, one at a time: clients' addresses in turn, and of each address its names in turn, known or not. So
guessing secrets slows neither tokens nor secrets that were shown before, and those of other addresses or names little.
Whoever has left meanwhile is not checked, so that guessing with short timeouts fills no line.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections import defaultdict
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from capline.service.access.tokens import Token, is_of, name_of
from capline.service.http.problems import RETRY_AFTER_S, Problem

if TYPE_CHECKING:
    from capline.service.access.tokens import TokenFile

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="capline", Basic realm="capline"'}
_MOST_WAIT = 64, 128, 256
"""How many wait for scrypt at once: of one address with one name, some five seconds long; of one address; of all, well
below `bounds.requests`."""
_MOST_PROVEN = 1024
_LONGEST = 1024
"""Characters of a header that can hold a token."""

_NOBODY = Token("", (), f"scrypt:{'00' * 16}:", "")


class Guard:
    """Checks tokens against those of a file, as last reloaded."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._key = secrets.token_bytes(32)
        self._proven: dict[bytes, Token] = {}
        self._waiting = defaultdict[tuple[str, ...], list[Callable[[], bool]]](list)
        self._turns = defaultdict[tuple[str, ...], asyncio.Lock](asyncio.Lock)
        """By address and name, by address, and of all: the first of each line waits in the next."""

    async def who(
        self,
        headers: list[tuple[bytes, bytes]],
        roles: tuple[str, ...],
        client: str = "",
        has_left: Callable[[], bool] = lambda: False,
    ) -> str:
        """The name of the caller's token, "" where anybody may call; raises the `Problem` that says why not.

        `client` is the caller's address; `has_left` says whether nobody waits for the answer any more.
        """
        if not roles:
            return ""
        shown = next((value for name, value in headers if name == b"authorization"), b"")
        token = await self._token(shown, client, has_left) if len(shown) <= _LONGEST else None
        if token is None:
            said = "this token is not known" if shown else "who asks? send Authorization: Bearer, and a token"
            raise Problem(HTTPStatus.UNAUTHORIZED, said, _CHALLENGE)
        if "admin" not in token.roles and not any(role in token.roles for role in roles):
            may = " or ".join((*roles, "admin") if "admin" not in roles else roles)
            raise Problem(HTTPStatus.FORBIDDEN, f"token {token.name} has not the role {may}")
        return token.name

    async def _token(self, header: bytes, client: str, has_left: Callable[[], bool]) -> Token | None:
        kind, _, rest = header.partition(b" ")
        rest = rest.strip()
        if kind.lower() == b"bearer":
            shown = rest.decode("latin-1")
            token = self._file.tokens.get(name_of(shown))
            if token is not None and not token.hash.startswith("sha256:"):
                token = None
            return token if is_of(token, shown) else None
        if kind.lower() != b"basic":
            return None
        try:
            name, _, chosen = base64.b64decode(rest, validate=True).decode().partition(":")
        except ValueError:
            return None
        token = self._file.tokens.get(name, _NOBODY)
        digest = hashlib.blake2b(header, key=self._key).digest()
        if self._proven.get(digest) == token:  # also once another token has changed the file
            return token
        if not token.hash.startswith("scrypt:"):
            token = _NOBODY
        near = _network(client)
        if not await self._is_of(token, chosen, [(near, name), (near,), ()], has_left):
            return None
        if len(self._proven) >= _MOST_PROVEN:
            self._proven.clear()
        self._proven[digest] = token
        return token

    async def _is_of(
        self, token: Token, chosen: str, lines: list[tuple[str, ...]], has_left: Callable[[], bool]
    ) -> bool:
        """Whether this is the token's secret, once it was the first of each line."""
        if any(self._is_full(line, most) for line, most in zip(lines, _MOST_WAIT, strict=True)):
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many ask who they are", {"Retry-After": str(RETRY_AFTER_S)}
            )
        for line in lines:
            self._waiting[line].append(has_left)
        named, near, everybody = lines
        try:
            async with self._turns[named], self._turns[near], self._turns[everybody]:
                return not has_left() and await asyncio.to_thread(is_of, token, chosen)
        finally:
            for line in lines:
                self._waiting[line].remove(has_left)
                if not self._waiting[line]:
                    del self._waiting[line], self._turns[line]

    def _is_full(self, line: tuple[str, ...], most: int) -> bool:
        waiting = self._waiting.get(line, ())
        return len(waiting) >= most and sum(not has_left() for has_left in waiting) >= most


def _network(client: str) -> str:
    """The address; of IPv6 its network, as one subscriber has at least a /64."""
    try:
        address = ip_address(client)
    except ValueError:
        return client
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return address.packed[:8].hex()
    return client
