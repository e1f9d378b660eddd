"""Authentication and roles, before every handler.

    Authorization: Bearer cap_NAME_…         a generated token: SHA-256, a microsecond
    Authorization: Basic name:secret         a chosen one: scrypt, some 80 ms once; then a keyed hash

The rule: without a good token no body is read, and an answer does not tell a wrong name from a wrong secret. scrypt
runs one at a time, in `turns`. So guessing secrets slows neither tokens nor secrets that were shown before to any of
the service's workers, and those of other addresses or names little.
"""

import base64
import hashlib
from collections.abc import Callable
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address

from capline.service.access.tokens import Token, TokenFile, is_of, name_of
from capline.service.access.turns import Turns
from capline.service.http.problems import Problem, busy
from capline.service.settings.kept import keep, kept, kept_key, path_of

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="capline", Basic realm="capline"'}
_LONGEST = 1024
"""Characters of a header that can hold a token."""

_NOBODY = Token("", (), f"scrypt:{'00' * 16}:", "")


class Guard:
    """Checks tokens against those of a file, as last reloaded."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._key = kept_key()
        self._proven: dict[str, bytes] = {}
        self._turns = Turns()

    async def who(
        self,
        headers: list[tuple[bytes, bytes]],
        roles: tuple[str, ...],
        client: str = "",
        has_left: Callable[[], bool] = lambda: False,
    ) -> Token:
        """The caller's token, one without a name where anybody may call; raises the `Problem` that says why not.

        `client` is the caller's address; `has_left` says whether nobody waits for the answer any more.
        """
        if not roles:
            return _NOBODY
        token = await self.token(headers, client, has_left)
        check_role(token, roles)
        return token

    async def token(self, headers: list[tuple[bytes, bytes]], client: str, has_left: Callable[[], bool]) -> Token:
        """The caller's token; raises the `Problem` where it shows none that is known."""
        shown = next((value for name, value in headers if name == b"authorization"), b"")
        token = await self._token(shown, client, has_left) if len(shown) <= _LONGEST else None
        if token is None:
            said = "this token is not known" if shown else "who asks? send Authorization: Bearer, and a token"
            raise Problem(HTTPStatus.UNAUTHORIZED, said, _CHALLENGE)
        return token

    def named(self, name: str) -> Token | None:
        """The token of this name, as the file has it now."""
        return self._file.tokens.get(name)

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
        asked = hashlib.blake2b(f"{name}:{chosen}".encode(), key=self._key).digest()
        proof = asked + token.hash.encode()
        if self._is_proven(token.name, proof):
            return token
        if not token.hash.startswith("scrypt:"):
            token = _NOBODY
        is_right = await self._turns.checked(_network(client), name, asked, lambda: is_of(token, chosen), has_left)
        if is_right is None:
            raise busy("too many ask who they are")
        if not is_right:
            return None
        self._proven[name] = proof
        keep(path_of(f"proven-{name}"), lambda: proof)
        return token

    def _is_proven(self, name: str, proof: bytes) -> bool:
        """Whether this secret was right before, of the token as it is now: here, or in another worker."""
        if name and self._proven.get(name) != proof and kept(path_of(f"proven-{name}")) == proof:
            self._proven[name] = proof
        return self._proven.get(name) == proof


def may(token: Token, roles: tuple[str, ...]) -> bool:
    """Whether the token has one of these roles, or may do all."""
    return "admin" in token.roles or any(role in token.roles for role in roles)


def check_role(token: Token, roles: tuple[str, ...]) -> None:
    """Raise the `Problem` where the token may not."""
    if not may(token, roles):
        said = " or ".join((*roles, "admin") if "admin" not in roles else roles)
        raise Problem(HTTPStatus.FORBIDDEN, f"token {token.name} has not the role {said}")


def _network(client: str) -> str:
    """The address; of IPv6 its network, as one subscriber has at least a /64."""
    try:
        address = ip_address(client)
    except ValueError:
        return client
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return address.packed[:8].hex()
    return client
