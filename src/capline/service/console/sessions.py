"""Who looks at the console: signs in with a token of the service or by a link that a token made, stays by a cookie.

The rule: a session is its token's. It ends with it, after `_LASTS_S`, at the sign-out, and with the process. Every POST
comes from a page of ours and has the session's forgery token. Without tokens all on this machine read, nobody changes.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from capline.service.access.guard import check_role
from capline.service.access.tokens import PREFIX, Token
from capline.service.http.problems import Problem

if TYPE_CHECKING:
    from capline.service.access.guard import Guard
    from capline.service.http.app import Request

READ = ("read",)
_LASTS_S = 12 * 3600
_LINK_LASTS_S = 15 * 60
_MOST = 1_000
_ANYBODY = Token("", READ, "", "")


class Caller(NamedTuple):
    """Who asks for a page: the token; what its forms send back against forgery, "" where it can send none."""

    token: Token
    forgery: str = ""

    @property
    def changes(self) -> bool:
        """Whether its pages have forms that change something."""
        return bool(self.forgery)


class _Session(NamedTuple):
    token: Token
    forgery: str
    until_s: float


class Sessions:
    """The sessions of this process; of more than a thousand the oldest ends. Without a `guard` there are none.

    Where the listener speaks TLS their cookies are `secure`: a browser sends them nowhere in the clear.
    """

    def __init__(self, guard: Guard | None, *, secure: bool = False) -> None:
        self._guard, self._secure = guard, secure
        self._open: dict[str, _Session] = {}
        self._links: dict[str, _Session] = {}

    @property
    def has_tokens(self) -> bool:
        """Whether one can sign in."""
        return self._guard is not None

    async def caller(self, request: Request) -> Caller | None:
        """Who asks: by its session, or by a token as it is sent to the API; None where it must sign in first."""
        if self._guard is None:
            return Caller(_ANYBODY)
        session = self._session(request)
        if session is not None:
            return Caller(session.token, session.forgery)
        if _header(request, b"authorization"):
            return Caller(await self._guard.token(request.headers, request.client, request.has_left))
        return None

    async def sign_in(self, request: Request, name: str, secret: str) -> str:
        """The cookie of a new session; raises the `Problem` of a token that is not known or may not read."""
        check_own(request)
        shown = f"Bearer {secret}"
        if not secret.startswith(PREFIX):
            shown = f"Basic {base64.b64encode(f'{name}:{secret}'.encode()).decode()}"
        head = [(b"authorization", shown.encode("latin-1", "replace"))]
        return self._opened(request, await self._token(request, head))

    async def link(self, request: Request) -> str:
        """A key that signs in once, within `_LINK_LASTS_S`, as the token that this request shows."""
        token = await self._token(request, request.headers)
        check_role(token, READ)
        return _kept(self._links, token, _LINK_LASTS_S)

    def follow(self, request: Request, key: str) -> str:
        """The cookie of a new session by a link's key; raises the `Problem` of one that signs in no more."""
        check_own(request)
        link = self._links.pop(key, None)
        if link is None or not self._is_good(link):
            raise Problem(HTTPStatus.FORBIDDEN, "this link was used, or is too old; make another, or type the token")
        return self._opened(request, link.token)

    async def _token(self, request: Request, headers: list[tuple[bytes, bytes]]) -> Token:
        if self._guard is None:
            raise Problem(HTTPStatus.CONFLICT, "there are no tokens here, so there is nothing to sign in with")
        return await self._guard.token(headers, request.client, request.has_left)

    def _opened(self, request: Request, token: Token) -> str:
        check_role(token, READ)
        return self._cookie(request, _kept(self._open, token, _LASTS_S), _LASTS_S)

    def sign_out(self, request: Request) -> str:
        """End the session; the cookie that takes its place."""
        self._open.pop(_shown(request), None)
        return self._cookie(request, "", 0)

    def _cookie(self, request: Request, key: str, lasts_s: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{_name(request)}={key}; Path=/console; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"

    def _session(self, request: Request) -> _Session | None:
        key = _shown(request)
        session = self._open.get(key)
        if session is not None and not self._is_good(session):
            del self._open[key]
            return None
        return session

    def _is_good(self, session: _Session) -> bool:
        # A token that was revoked and made again has another hash; one whose roles changed is another value.
        of = self._guard and self._guard.named(session.token.name)
        return time.monotonic() <= session.until_s and of == session.token


def _kept(kept: dict[str, _Session], token: Token, lasts_s: int) -> str:
    """Its key; of more than a thousand the oldest goes."""
    if len(kept) >= _MOST:
        del kept[next(iter(kept))]
    key = secrets.token_urlsafe(32)
    kept[key] = _Session(token, secrets.token_urlsafe(16), time.monotonic() + lasts_s)
    return key


def check_form(request: Request, caller: Caller, forgery: str) -> None:
    """Raise the `Problem` of a form that does not come from a page that this caller was shown."""
    check_own(request)
    if not caller.changes:
        raise Problem(
            HTTPStatus.FORBIDDEN, "without a session the console only reads; serve with --tokens FILE, and sign in"
        )
    if not hmac.compare_digest(forgery.encode(), caller.forgery.encode()):
        raise Problem(
            HTTPStatus.FORBIDDEN, "this form is of another session; go back, load the page anew, and try again"
        )


def check_own(request: Request) -> None:
    """Raise the `Problem` of a form that another site sent."""
    site, origin = _header(request, b"sec-fetch-site"), _header(request, b"origin")
    host = _header(request, b"host").lower()
    if site not in (b"", b"same-origin", b"none") or (origin and origin.lower().partition(b"://")[2] != host):
        raise Problem(HTTPStatus.FORBIDDEN, "another site sent this form, which is refused")


def _shown(request: Request) -> str:
    name = _name(request)
    for part in _header(request, b"cookie").decode("latin-1").split(";"):
        called, _, value = part.strip().partition("=")
        if called == name:
            return value
    return ""


def _name(request: Request) -> str:
    """The cookie's: browsers share cookies between the ports of a host, and a session is one service's."""
    port = _header(request, b"host").rpartition(b":")[2].decode("latin-1")
    return f"capline_{port}" if port.isascii() and port.isdecimal() else "capline"


def _header(request: Request, name: bytes) -> bytes:
    return next((value for called, value in request.headers if called == name), b"")
