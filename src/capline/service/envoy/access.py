"""Access to the gRPC server from other hosts: certificates, and the same tokens as over HTTP.

    authorization: Bearer cap_NAME_…       metadata of each call, on every service of the server
    UNAUTHENTICATED, PERMISSION_DENIED     what 401 and 403 are over HTTP

The rule: without a good token no message is read. A connection that is open keeps the certificate it was made with.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from capline.service.access.guard import Guard
from capline.service.envoy.messages import SERVICE
from capline.service.envoy.metrics import EnvoyMetrics
from capline.service.http.problems import Problem
from capline.service.parts import part
from capline.service.settings.last_good import last_good_tls
from capline.service.settings.tls import Contents, contents, renewed
from capline.service.settings.values import Tls

_CODES = {HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED", HTTPStatus.FORBIDDEN: "PERMISSION_DENIED"}
"""The other problem is that too many secrets wait to be checked: UNAVAILABLE, as 503 over HTTP."""

_DECIDES, _LOOKS = ("decide",), ("read", "decide")


class Certificate:
    """The files of `tls` that the server uses; `reload` takes over renewed ones, client_ca among them.

    Raises `InvalidValueError` that names the file that is wrong.
    """

    def __init__(self, tls: Tls) -> None:
        good = last_good_tls("grpc.tls", tls)
        self._tls = tls
        self._now: Any = None
        seen = contents(good.used)
        self._use(None, seen)
        self.reload = good.keeping(renewed(tls, self._use, seen))

    def _use(self, _: object, found: Contents) -> None:
        certificate, key, *client_ca = found
        self._now = part("grpc").ssl_server_certificate_configuration([(key, certificate)], *client_ca)

    def credentials(self) -> Any:
        """What grpc listens with: before each handshake it asks for the newest files."""
        return part("grpc").dynamic_ssl_server_credentials(
            self._now, lambda: self._now, self._tls.client_ca is not None
        )


def checked_by(guard: Guard, metrics: EnvoyMetrics) -> Any:
    """An interceptor: a call whose token may not ask this ends before its message is read, and is counted."""
    grpc = part("grpc")

    async def intercept(continuation: Callable[[Any], Any], call: Any) -> Any:
        shown = [
            (b"authorization", value.encode("latin-1") if isinstance(value, str) else value)
            for key, value in call.invocation_metadata
            if key == "authorization"
        ]
        service = call.method.removeprefix("/").partition("/")[0]
        try:
            token = await guard.who(shown, _DECIDES if service == SERVICE else _LOOKS)
            token.scope.check_all()  # Envoy's limits are of no policy
        except Problem as problem:
            code = _CODES.get(problem.status, "UNAVAILABLE")
            metrics.turned_away(code.lower())
            return _ended(getattr(grpc.StatusCode, code), problem.detail)
        return await continuation(call)

    return type("Checked", (part("grpc.aio").ServerInterceptor,), {"intercept_service": staticmethod(intercept)})()


def _ended(code: Any, why: str) -> Any:
    """A handler that ends a call at once; a stream's fits any kind of call, and reads no message first."""

    async def end(_messages: Any, context: Any) -> None:
        await context.abort(code, why)

    return part("grpc").stream_stream_rpc_method_handler(end)
