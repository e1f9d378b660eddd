"""Refuses what web pages ask: where no tokens are set, anything that this machine's browser runs reaches the service.

    421    the Host is not loopback, and none of `hosts`: a name of somebody else's that leads here (DNS rebinding)
    403    the Origin is another than the Host, or Sec-Fetch-Site says that another site asks

A gateway passes the headers of its client's browser on. It sets a Host of ours, and a header X-Capline-…, which a page
cannot send to another site without asking first: that lifts the second refusal. It never lifts the first, as a page
that was rebound asks its own site, and may send any header.
"""

from collections.abc import Iterable
from http import HTTPStatus

from capline.model.errors import quoted
from capline.observe.serving import names_loopback
from capline.service.http.problems import Problem

_ITS_OWN = (b"same-origin", b"none")
_OF_GATEWAYS = b"x-capline-"
_MOST_SEEN = 1024


class Pages:
    """Checks the heads of requests; `hosts` are names without a port, by which it may be asked besides loopback."""

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._good: set[bytes] = set()
        """Values of Host that passed: nearly every request has one of a few."""

    def check(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Raise the `Problem` that refuses a request with this head."""
        origins: list[bytes] = []
        named, hosts, foreign, lifted = b"", 0, False, False
        for name, value in headers:
            if name == b"host":
                named, hosts = value, hosts + 1
            elif name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site":
                foreign = foreign or value not in _ITS_OWN
            elif name.startswith(_OF_GATEWAYS) and value:
                lifted = True
        if hosts != 1 or (named not in self._good and not self._is_ours(named)):
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"without tokens the Host is loopback, like 127.0.0.1:8080, not {quoted(named.decode('latin-1'))}: "
                "a gateway sets it; other names are listed as 'hosts:' in the settings",
            )
        if lifted or not (foreign or origins):
            return
        host = named.lower()
        if foreign or any(origin.lower().partition(b"://")[2] != host for origin in origins):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "a web page of another site asks, which without tokens is refused; a gateway that passes a browser's "
                "headers on sets a header X-Capline-… of its own",
            )

    def _is_ours(self, host: bytes) -> bool:
        if not names_loopback(host.decode("latin-1"), self._hosts):
            return False
        if len(self._good) < _MOST_SEEN:
            self._good.add(host)
        return True
