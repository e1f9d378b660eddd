"""The settings of `capline serve`: frozen values, read by their types and bounds, handed to every worker as JSON."""

from ipaddress import ip_address
from typing import Annotated, Any, NamedTuple

import msgspec

from capline.model.errors import InvalidValueError, quoted
from capline.store.open import DEFAULT_URL

_LARGEST_PORT = 65535

_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Span = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_Size = Annotated[int, msgspec.Meta(ge=1024, le=1 << 30)]
_Many = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Address(NamedTuple):
    """Where to listen; port 0 is any that is free. For a Unix socket the host is `unix:` and its path, the port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.is_unix:
            return self.host
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_unix(self) -> bool:
        """Whether it is a Unix socket."""
        return self.host.startswith("unix:")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.is_unix or ip_address(self.host).is_loopback

    @property
    def is_any(self) -> bool:
        """Whether it is every address of this machine."""
        return ip_address(self.host).is_unspecified


class Tls(msgspec.Struct, frozen=True):
    """Paths of PEM files; with `client_ca` a client must show a certificate that it signed."""

    certificate: str
    key: str
    client_ca: str | None = None


class Http(msgspec.Struct, frozen=True):
    """A listener. `trusted_proxies` of the addresses in X-Forwarded-For, counted from its end, are believed."""

    listen: Address
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    trusted_proxies: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    tls: Tls | None = None


class Modes(msgspec.Struct, frozen=True):
    """What holds for all limits, as the variables of envoyproxy/ratelimit say it.

    `shadow_mode` lets every request through; `quota_mode` makes every limit one of quota mode. `dynamic_metadata` tells
    Envoy in each answer what it asked for. `response_headers` adds headers of the limit that is nearest.
    """

    shadow_mode: bool = False
    quota_mode: bool = False
    near_limit_ratio: _Share = 0.8
    dynamic_metadata: bool = False
    response_headers: bool = False
    limit_header: str = "RateLimit-Limit"
    remaining_header: str = "RateLimit-Remaining"
    reset_header: str = "RateLimit-Reset"


USUAL_MODES = Modes()


class Grpc(msgspec.Struct, frozen=True):
    """The listener for Envoy, and files or folders of envoyproxy/ratelimit YAML.

    A connection older than `max_connection_age` is told to go, and closed after `max_connection_age_grace`, both in
    seconds; None is never.
    """

    listen: Address
    envoy: tuple[str, ...] = ()
    merge_domains: bool = False
    tls: Tls | None = None
    modes: Modes = USUAL_MODES
    max_connection_age: float | None = None
    max_connection_age_grace: float | None = None


class Observers(msgspec.Struct, frozen=True):
    """`access_log` is a path, or "-" for standard error; `access_sample` is the share of the requests in it."""

    access_log: str | None = None
    access_sample: _Share = 1.0
    subjects: bool = False
    traces: bool = False


class Bounds(msgspec.Struct, frozen=True):
    """Bounds of what comes from outside; spans in seconds, `requests` under way and connections for each worker."""

    body_bytes: _Size = 1 << 20
    batch_bytes: _Size = 16 << 20
    audience_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 40)] = 1 << 30
    batch_rows: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 100_000
    header_bytes: Annotated[int, msgspec.Meta(ge=1024, le=1 << 20)] = 64 << 10
    header_within: _Span = 10.0
    body_within: _Span = 30.0
    requests: _Many = 1000
    connections: _Many = 10_000
    new_subjects: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    stop_within: _Span = 10.0


class Record(msgspec.Struct, frozen=True):
    """Decisions of the last `keep` seconds are kept, in at most so many `bytes`; `hashed` keeps no subject as it is."""

    keep: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 3600.0
    bytes: Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 36)] = 64 << 20
    hashed: bool = False


class History(msgspec.Struct, frozen=True):
    """What was counted in a minute is kept in the store for so many seconds."""

    keep: Annotated[int, msgspec.Meta(ge=3600, le=30 * 86_400)] = 7 * 86_400


class Settings(msgspec.Struct, frozen=True):
    """All settings. `policies` is a file; `config` a store of overrides, and of policies too if there is no file.

    `queue` is a campaign store, `audiences` where its uploads are kept; `messages` has by name what campaigns that are
    composed in the console share; `replies` is a folder for what comes back. `hosts` are names, besides loopback, by
    which a service without tokens may be asked. Without `record` no decision is kept. `drain` is how many seconds it
    goes on, but says that it is not ready, once it is told to end.
    """

    store: str = DEFAULT_URL
    policies: str | None = "policies.yaml"
    config: str | None = None
    segments: str | None = None
    queue: str | None = None
    audiences: str | None = None
    messages: dict[str, dict[str, Any]] = {}
    replies: str | None = None
    http: Http = Http(Address("127.0.0.1", 8080))
    admin: Http = Http(Address("127.0.0.1", 8081))
    grpc: Grpc | None = None
    spoe: Address | None = None
    tokens: str | None = None
    hosts: tuple[str, ...] = ()
    on_store_error: str = "raise"
    drain: float = 5.0
    observers: Observers = Observers()
    record: Record | None = None
    history: History = History()
    bounds: Bounds = Bounds()

    @property
    def is_local(self) -> bool:
        """Whether the store is on this machine, and answers at once."""
        return self.store.lower().startswith(("memory:", "lmdb:"))

    def warnings(self) -> list[str]:
        """What it starts with all the same: addresses that other machines reach, where tokens come unencrypted."""
        return [
            f"{name}.listen {http.listen}: without TLS whoever is on the way reads the tokens; give "
            f"'{name}: tls: {{certificate: cert.pem, key: key.pem}}', or end TLS just before it"
            for name, http in (("http", self.http), ("admin", self.admin))
            if http.tls is None and not http.listen.is_loopback
        ]


def parse_address(text: str) -> Address:
    """`127.0.0.1:8080`, `[::1]:8080` or `localhost:8080`; raises for any other text."""
    host, colon, port = text.rpartition(":")
    name = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    number = int(port) if port.isascii() and port.isdecimal() and len(port) <= len(str(_LARGEST_PORT)) else -1
    if not colon or not name or not 0 <= number <= _LARGEST_PORT or (":" in name) != host.startswith("["):
        raise InvalidValueError(f"{quoted(text)} is not an address; write host:port, like 127.0.0.1:8080 or [::1]:8080")
    if name == "localhost":
        name = "127.0.0.1"
    try:
        ip_address(name)
    except ValueError:
        raise InvalidValueError(f"{quoted(text)}: name an address, like 127.0.0.1:8080") from None
    return Address(name, number)
