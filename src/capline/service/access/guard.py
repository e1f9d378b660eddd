"""Authentication and roles, before every handler.

    Authorization: Bearer cap_NAME_…         a generated token: SHA-256, a microsecond
    Authorization: Basic name:secret         a chosen one: scrypt, some 80 ms once; then a keyed hash

The rule: without a good token no body is read, and an answer does not tell a wrong name from a wrong secret. scrypt
runs in a thread, one at a time, the names in turn: guessing secrets slows neither tokens nor secrets that were shown
before, and other names little. Names share lines by a keyed hash, whether they are known or not, so that waiting does
not tell which are.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from http import HTTPStatus
from typing import TYPE_CHECKING

from capline.service.access.tokens import Token, is_of, name_of
from capline.service.http.problems import RETRY_AFTER_S, Problem

if TYPE_CHECKING:
    from capline.service.access.tokens import TokenFile

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="capline", Basic realm="capline"'}
_LINES = 64
_MOST_WAIT, _MOST_IN_LINE = 256, 64
"""How many wait for scrypt at once, well below `bounds.requests`; and how many of one name, some five seconds long."""
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
        self._turn = asyncio.Semaphore(1)
        self._lines = [asyncio.Semaphore(1) for _ in range(_LINES)]
        self._waiting = [0] * _LINES

    async def who(self, headers: list[tuple[bytes, bytes]], roles: tuple[str, ...]) -> str:
        """The name of the caller's token, "" where anybody may call; raises the `Problem` that says why not."""
        if not roles:
            return ""
        shown = next((value for name, value in headers if name == b"authorization"), b"")
        token = await self._token(shown) if len(shown) <= _LONGEST else None
        if token is None:
            said = "this token is not known" if shown else "who asks? send Authorization: Bearer, and a token"
            raise Problem(HTTPStatus.UNAUTHORIZED, said, _CHALLENGE)
        if "admin" not in token.roles and not any(role in token.roles for role in roles):
            may = " or ".join((*roles, "admin") if "admin" not in roles else roles)
            raise Problem(HTTPStatus.FORBIDDEN, f"token {token.name} has not the role {may}")
        return token.name

    async def _token(self, header: bytes) -> Token | None:
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
        return await self._chosen(header, name, chosen)

    async def _chosen(self, header: bytes, name: str, chosen: str) -> Token | None:
        token = self._file.tokens.get(name, _NOBODY)
        digest = hashlib.blake2b(header, key=self._key).digest()
        if self._proven.get(digest) == token:  # also once another token has changed the file
            return token
        if not token.hash.startswith("scrypt:"):
            token = _NOBODY
        line = hashlib.blake2b(name.encode(), key=self._key).digest()[0] % _LINES
        if self._waiting[line] >= _MOST_IN_LINE or sum(self._waiting) >= _MOST_WAIT:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "too many ask who they are", {"Retry-After": str(RETRY_AFTER_S)}
            )
        self._waiting[line] += 1
        try:
            async with self._lines[line], self._turn:
                good = await asyncio.to_thread(is_of, token, chosen)
        finally:
            self._waiting[line] -= 1
        if not good:
            return None
        if len(self._proven) >= _MOST_PROVEN:
            self._proven.clear()
        self._proven[digest] = token
        return token
