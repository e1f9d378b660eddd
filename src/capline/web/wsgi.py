"""Limits for any WSGI app: Bottle, Pyramid, Falcon, plain.

    app = CaplineMiddleware(app, limiter, rules=[Rule("ip", key.ip())])

An async function of a rule is refused when the middleware is made: nobody here can await it.

The rule: the body is read only if a function of a rule asks for it, at most 1 MiB, and the app gets it all the same. An
answer has begun when its first bytes go out: what fails before that is answered 500 by the server, and `refund_if` is
asked about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from typing import Any, Unpack
from urllib.parse import parse_qs

from capline.limiter.limiter import Limiter
from capline.limiter.steps import run
from capline.support.status_title import status_title
from capline.web.answer import MOST_BODY_BYTES, Answer, answer_to, check_size, json_of, named
from capline.web.gate import Gate, Options, Visit
from capline.web.rule import Rule


class Request:
    """A request as the functions of a rule see it: the environ, and its parts under their usual names."""

    __slots__ = ("_body", "environ")

    def __init__(self, environ: dict[str, Any]) -> None:
        self.environ = environ
        self._body: bytes | None = None

    @property
    def method(self) -> str:
        """`GET` and its kin."""
        return self.environ["REQUEST_METHOD"]

    @property
    def path(self) -> str:
        """The path within the app, decoded."""
        return self.environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")

    @property
    def headers(self) -> dict[str, str]:
        """Header fields by their names in lower case."""
        fields = {name[5:]: value for name, value in self.environ.items() if name.startswith("HTTP_")}
        fields |= {name: self.environ[name] for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if name in self.environ}
        return {name.replace("_", "-").lower(): value for name, value in fields.items()}

    @property
    def query(self) -> dict[str, list[str]]:
        """The query, by name."""
        return parse_qs(self.environ.get("QUERY_STRING", ""), keep_blank_values=True)

    def body(self) -> bytes:
        """The whole body; the app gets it as well. Past 1 MiB the request is answered 413."""
        if self._body is None:
            length = self.environ.get("CONTENT_LENGTH") or ""
            # Without a length there is a body only where the server ends it, as of a chunked request.
            unstated = MOST_BODY_BYTES + 1 if self.environ.get("wsgi.input_terminated") else 0
            size = int(length) if length.isdecimal() else unstated
            read: bytes = self.environ["wsgi.input"].read(min(size, MOST_BODY_BYTES + 1)) if size else b""
            check_size(len(read))
            self._body, self.environ["wsgi.input"] = read, BytesIO(read)
        return self._body

    def json(self) -> Any:
        """The body as JSON; a body that is not JSON is answered 400."""
        return json_of(self.body())


class CaplineMiddleware:
    """Decides each request under `rules` before the app sees it; see `capline.web.gate.Gate` for the options.

    A function of a rule may raise anything with a `status_code` from 400 to 499 and a `detail`: it is answered so, and
    nothing is consumed. Any other exception is raised.
    """

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        limiter: Limiter,
        rules: Sequence[Rule] = (),
        **options: Unpack[Options],
    ) -> None:
        self._app = app
        self._gate = Gate(limiter, Limiter, rules, **options)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """One request."""
        request = Request(environ)
        if self._gate.is_exempt(request.path):
            return self._app(environ, start_response)
        visit = self._gate.visit()
        try:
            refusal = run(visit.enter(request, self._gate.rules))
        except Exception as error:
            refusal = answer_to(error)
            if refusal is None:
                raise
        if refusal is None:
            return _Passage(visit, start_response).through(self._app, environ)
        status = f"{refusal.status} {status_title(refusal.status)}"
        start_response(status, [*refusal.fields.items(), *visit.headers().items()])
        return [b"" if request.method == "HEAD" else refusal.body]


class _Passage:
    """One request's way through the app, and its answer, which may begin or fail only while it is read."""

    def __init__(self, visit: Visit, start_response: Callable[..., Any]) -> None:
        self._visit, self._start_response = visit, start_response
        self._pieces: Iterable[bytes] = ()
        self._began = False

    def through(self, app: Callable[..., Iterable[bytes]], environ: dict[str, Any]) -> Iterable[bytes]:
        try:
            self._pieces = app(environ, self._start)
        except Exception:
            self._leave(500)
            raise
        # A list cannot fail any more, and servers take its length from it.
        return self if self._visit.may_refund and not isinstance(self._pieces, list) else self._pieces

    def _start(self, status: str, fields: list[tuple[str, str]], *exc_info: Any) -> Any:
        self._leave(int(status[:3]), fields)
        write = self._start_response(status, [*fields, *self._visit.headers().items()], *exc_info)

        def writing(piece: bytes) -> None:
            self._began = self._began or bool(piece)
            write(piece)

        return writing

    def _leave(self, status: int, fields: Iterable[tuple[str, str]] = ()) -> None:
        if self._visit.may_refund and not self._began:
            run(self._visit.leave(Answer(status, named(fields))))

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._pieces:
                self._began = self._began or bool(piece)
                yield piece
        except Exception:
            self._leave(500)
            raise

    def close(self) -> None:
        """As PEP 3333 has it: the server calls it whatever became of the answer."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()
