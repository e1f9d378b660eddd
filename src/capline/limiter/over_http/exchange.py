"""A request to a capline service and its answer, in JSON: where the service is, what each error means.

    http://host:8080?deadline=5s            `deadline`: the longest to connect, and then to wait for an answer
    https://cap_billing_…@host/capline      a token, sent as a Bearer; behind a proxy with a path
    https://ann:secret@host                 a chosen token, sent by HTTP Basic

The rule: what may have been recorded is sent again, once, only where it counts once.
"""

from __future__ import annotations

import os
from base64 import b64encode
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from capline.model import errors
from capline.model.errors import (
    AccessError,
    CaplineError,
    InvalidTypeError,
    InvalidValueError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    StoreUnknownError,
    quoted,
)
from capline.store.redis.io.url import safe_url, seconds_of

if TYPE_CHECKING:
    import httpx

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
    """The way to one service; threads share it, and each process after a fork has connections of its own."""

    def __init__(self, url: str, *, awaited: bool) -> None:
        self._where = where = f"service URL {safe_url(url)!r}"
        unreadable = InvalidValueError(f"{where}: cannot be read; write it like 'http://host:8080'")
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
            known = bool(parts.hostname) and parts.port != 0 and not parts.fragment
        except ValueError:
            raise unreadable from None
        if not known:
            raise unreadable
        for name in options:
            if name != "deadline":
                raise InvalidValueError(f"{where}: unknown option {name!r}; it takes: deadline")
        credentials, at, host = parts.netloc.rpartition("@")
        self._headers = {"Accept": "application/json"}
        if at:
            basic = f"Basic {b64encode(unquote(credentials).encode()).decode()}"
            self._headers["Authorization"] = basic if ":" in credentials else f"Bearer {unquote(credentials)}"
        self._base = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        self._deadline_s = seconds_of(options.get("deadline"), "deadline", DEADLINE_S, where)
        self._awaited, self._process = awaited, 0
        self._open()

    def _open(self) -> Any:
        """The client of this process."""
        if self._process != os.getpid():
            try:
                import httpx  # noqa: PLC0415 - an extra, which only a limiter over HTTP needs
            except ModuleNotFoundError:
                raise StoreError('a limiter over HTTP needs httpx: pip install "capline[http]"') from None
            kind: Any = httpx.AsyncClient if self._awaited else httpx.Client
            secure = self._base.startswith("https:")  # without TLS no certificates need to be loaded
            self._client = kind(headers=self._headers, timeout=self._deadline_s, verify=secure)
            self._faults = httpx.HTTPError, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
            self._process = os.getpid()
        return self._client

    def ask(self, method: str, path: str, form: object = None, *, again: bool = False) -> Steps[Any]:
        """The answer to this request; `again` where the same request twice counts once."""
        client = self._open()
        any_fault, not_sent = self._faults
        given: dict[str, Any] = {}
        if form is not None:
            given = {"content": _encoded(form), "headers": {"Content-Type": "application/json"}}
        while True:
            try:
                reply: httpx.Response = yield client.request(method, self._base + path, **given)
            except not_sent as fault:
                raise StoreUnavailableError(f"{self._where} cannot be reached ({_said(fault)})") from None
            except any_fault as fault:
                if again:
                    again = False
                    continue
                raise StoreUnknownError(
                    f"{self._where} did not answer ({_said(fault)}); it may have been recorded: give an id to ask again"
                ) from None
            return self._answer(reply)

    def _answer(self, reply: httpx.Response) -> Any:
        status = reply.status_code
        said: dict[str, Any]
        try:
            said = msgspec.json.decode(reply.content, type=dict[str, Any])
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

    def close(self) -> Any:
        """Let go of the connections."""
        return self._client.aclose() if self._awaited else self._client.close()


def _said(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__


def _encoded(form: object) -> bytes:
    try:
        return msgspec.json.encode(form)
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidTypeError(f"an argument cannot be sent to a service: {quoted(str(error))}") from None
