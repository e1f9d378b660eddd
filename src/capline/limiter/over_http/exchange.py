"""A request to a capline service and its answer, in JSON: where the service is, what each error means.

    http://host:8080?deadline=5s            `deadline`: the longest to connect, and then to wait for an answer
    https://cap_billing_…@host/capline      a token, sent as a Bearer; behind a proxy with a path
    https://ann:secret@host                 a chosen token, sent by HTTP Basic

The rule: what may have been recorded is sent again, once, only where it counts once.
"""

from __future__ import annotations

from base64 import b64encode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from capline.limiter.over_http.clients import AwaitedClient, BlockingClient, LostError, NotSentError
from capline.model import errors
from capline.model.errors import (
    AccessError,
    CaplineError,
    InvalidTypeError,
    InvalidValueError,
    StoreClosedError,
    StoreUnavailableError,
    StoreUnknownError,
    quoted,
)
from capline.store.redis.io.url import safe_url, seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capline.limiter.steps import Steps

DEADLINE_S = 5.0
_KINDS: dict[int, type[CaplineError]] = {
    401: AccessError,
    403: AccessError,
    429: StoreUnavailableError,  # as many new subjects as its token may create
    500: StoreUnknownError,
    502: StoreUnknownError,
    503: StoreUnavailableError,
    504: StoreUnknownError,
}
"""What is raised for a status that comes without the name of an error."""


def error_of(name: object, otherwise: type[CaplineError], detail: str) -> CaplineError:
    """The error of this name; another one where there is none, or it is about the service's own limiter."""
    found = getattr(errors, str(name), None)
    if isinstance(found, type) and issubclass(found, CaplineError) and found is not StoreClosedError:
        return found(detail)
    return otherwise(detail)


def with_token(url: str, token: str | None) -> str:
    """The URL with the token in it, in the place of a user."""
    if token is None:
        return url
    scheme, _, rest = url.partition("://")
    if "@" in rest:
        raise InvalidValueError(f"service URL {safe_url(url)!r} has a token in it; leave token= out")
    return f"{scheme}://{quote(token, safe='')}@{rest}"


class _Answer(dict[str, Any]):
    """What a service answered; `where` it is."""

    where = ""

    def __missing__(self, key: str) -> NoReturn:
        raise InvalidValueError(f"{self.where}: its answer has no {key!r}; is it capline, of this version?")


class Exchange:
    """The way to one service, by a client of this kind."""

    def __init__(self, url: str, client: type[BlockingClient | AwaitedClient]) -> None:
        self._where = where = f"service URL {safe_url(url)!r}"
        unreadable = InvalidValueError(f"{where}: cannot be read; write it like 'http://host:8080'")
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            known = bool(parts.hostname) and parts.port != 0 and not parts.fragment and url.isascii() and " " not in url
        except ValueError:
            raise unreadable from None
        if not known:
            raise unreadable
        for name in options:
            if name != "deadline":
                raise InvalidValueError(f"{where}: unknown option {name!r}; it takes: deadline")
        credentials, at, host = parts.netloc.rpartition("@")
        sent = {"Accept": "application/json"}
        if at:
            basic = f"Basic {b64encode(unquote(credentials).encode()).decode()}"
            sent["Authorization"] = basic if ":" in credentials else f"Bearer {unquote(credentials)}"
            if not (sent["Authorization"].isascii() and sent["Authorization"].isprintable()):
                raise InvalidValueError(f"{where}: its token has a character that no token has")
        base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._client = client(base, sent, seconds_of(options.get("deadline"), "deadline", DEADLINE_S, where))
        self.close = self._client.close

    def ask(self, method: str, path: str, form: object = None, *, again: bool = False, key: str = "") -> Steps[Any]:
        """The answer to this request; `again` where the same request twice counts once, as by an idempotency key."""
        body, headers = (None, {}) if form is None else (_encoded(form), {"Content-Type": "application/json"})
        if key:
            headers["Idempotency-Key"] = key
        return self.send(method, path, body, headers, again=again)

    def send(self, method: str, path: str, body: Any, headers: Mapping[str, str], *, again: bool = False) -> Steps[Any]:
        """The answer to a request with this body: bytes, of a client that blocks a file too."""
        while True:
            try:
                status, content = yield self._client.request(method, path, body, headers)
            except NotSentError as fault:
                hint = (
                    "; is it a service without TLS? then write http://" if str(fault).startswith("TLS failed") else ""
                )
                raise StoreUnavailableError(f"{self._where} cannot be reached ({fault}){hint}") from None
            except LostError as fault:
                if again:
                    again = False
                    continue
                raise StoreUnknownError(
                    f"{self._where} did not answer ({fault}); it may have been recorded: give an id to ask again"
                ) from None
            return self._answer(status, content)

    def _answer(self, status: int, content: bytes) -> Any:
        said: dict[str, Any]
        try:
            said = msgspec.json.decode(content, type=dict[str, Any])
            if status == HTTPStatus.OK:
                answer = _Answer(said)
                answer.where = self._where
                return answer
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = {"detail": f"HTTP {status}, which is not an answer of capline's"}
        detail = str(said.get("detail", f"HTTP {status}"))
        if "error" not in said:
            detail = f"{self._where}: {detail}"
        raise error_of(said.get("error"), _KINDS.get(status, InvalidValueError), detail)


def _encoded(form: object) -> bytes:
    try:
        return msgspec.json.encode(form)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidTypeError(f"an argument cannot be sent to a service: {quoted(str(error))}") from None
