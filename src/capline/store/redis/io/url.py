"""The URL of a server store, parsed: which servers, how they are found, how long a call may take.

    redis://user:password@host:6379/0?deadline=250ms
    redis+sentinel://s1:26379,s2:26379,s3:26379/mymaster/0
    redis+cluster://h1:7000,h2:7000,h3:7000
    rediss://…, rediss+sentinel://…, rediss+cluster://…       the same through TLS; the certificate is checked
    valkey://…, valkeys://…, valkey+sentinel://…, …           the same

Options, all with defaults:

    deadline=250ms          the longest that one call may take, with every redirect and resend
    bulk_deadline=10s       the longest that one round trip of a batch may take
    max_connections=128     to each server
    ca=                     PEM file of certificate authorities to trust in place of the system's
    cert=, key=             PEM files of a client certificate and its key
    forms=present           or `next`: begin the forms that older releases cannot read
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from capline.model.errors import CaplineError, InvalidValueError
from capline.model.limit import Limit

if TYPE_CHECKING:
    from urllib.parse import SplitResult

Address = tuple[str, int]

_OPTIONS = ("deadline", "bulk_deadline", "max_connections", "ca", "cert", "key", "forms")
_SHAPES = ("single", "sentinel", "cluster")
MOST_SEEDS = 64
_NUMBER = re.compile(r"[0-9]{1,9}")
_OPTION = re.compile(r"([?&])([^=&]*)=[^&]*")
_SHOWN = {*_OPTIONS, "durability", "max_bytes"}


class Settings(msgspec.Struct, frozen=True):
    """The settings in a URL. `repr` leaves the credentials out."""

    shape: str
    seeds: tuple[Address, ...]
    master: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    deadline_s: float = 0.25
    bulk_deadline_s: float = 10.0
    max_connections: int = 128
    next_forms: bool = False

    def __repr__(self) -> str:
        return f"Settings({self.shape}, {', '.join(f'{host}:{port}' for host, port in self.seeds)})"


def server_schemes() -> dict[str, tuple[str, bool]]:
    """Every scheme, with its shape (single, sentinel, cluster) and whether it uses TLS."""
    schemes: dict[str, tuple[str, bool]] = {}
    for name in ("redis", "valkey"):
        for suffix, tls in (("", False), ("s", True)):
            schemes |= {f"{name}{suffix}{f'+{shape}' if shape != 'single' else ''}": (shape, tls) for shape in _SHAPES}
    return schemes


def safe_url(url: str) -> str:
    """The URL without secrets, for messages: no password, no token, no unknown option."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    # Up to the last @, whatever it holds: a password with a slash in it is not shown either.
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    # Without a colon it may be a token, not a name.
    known = f"{user}:***" if colon else "***" if at else ""
    # Some clients take secrets as options; capline does not, so only its own options are shown.
    place, _, _ = place.partition("#")
    place = _OPTION.sub(lambda found: found[0] if found[2].lower() in _SHOWN else f"{found[1]}{found[2]}=***", place)
    return f"{scheme}{separator}{known}{at}{place}"


def parse_url(url: str) -> Settings:
    """Parse the URL; raises `InvalidValueError` with one line that never shows the password."""
    where = f"store URL {safe_url(url)!r}"
    if re.search(r"[/?#].*@", url.partition("://")[2]):
        raise InvalidValueError(f"{where}: write / as %2F, ? as %3F, # as %23, @ as %40 in a user name or password")
    try:
        parts = urlsplit(url.replace("[", "%5B").replace("]", "%5D"))  # Pythons differ on several [hosts]
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError:
        raise InvalidValueError(f"{where}: cannot be read; write it like 'redis://127.0.0.1:6379/0'") from None
    schemes = server_schemes()
    if parts.scheme not in schemes:
        raise InvalidValueError(f"{where}: unknown kind; use one of {', '.join(schemes)}")
    shape, tls = schemes[parts.scheme]
    for name in options:
        if name not in _OPTIONS:
            raise InvalidValueError(f"{where}: unknown option {name!r}; it takes: {', '.join(_OPTIONS)}")
    if not tls and any(name in options for name in ("ca", "cert", "key")):
        kind, plus, rest = parts.scheme.partition("+")
        raise InvalidValueError(f"{where}: ca, cert and key are for TLS; use {kind}s{plus}{rest}")
    credentials, at, hosts = parts.netloc.replace("%5B", "[").replace("%5D", "]").rpartition("@")
    username, _, password = credentials.partition(":")
    master, database = _path(parts, shape, where)
    seeds = _seeds(hosts, 26379 if shape == "sentinel" else 6379, where)
    if shape == "single" and len(seeds) > 1:
        raise InvalidValueError(f"{where}: one server, or say +cluster or +sentinel")
    return Settings(
        shape,
        seeds,
        master,
        database,
        unquote(username) if at and username else None,
        unquote(password) if at and password else None,
        tls,
        options.get("ca"),
        options.get("cert"),
        options.get("key"),
        seconds_of(options.get("deadline"), "deadline", 0.25, where),
        seconds_of(options.get("bulk_deadline"), "bulk_deadline", 10.0, where),
        _connections(options.get("max_connections"), where),
        check_forms(options, where),
    )


def check_forms(options: dict[str, str], where: str) -> bool:
    """Whether the options of a store's URL say `forms=next`; raises `InvalidValueError` for unknown forms."""
    forms = options.get("forms", "present")
    if forms not in ("present", "next"):
        raise InvalidValueError(f"{where}: forms {forms!r} is not known; use present or next")
    return forms == "next"


def _path(parts: SplitResult, shape: str, where: str) -> tuple[str, int]:
    """The name of the master, and the number of the database."""
    pieces = [unquote(piece) for piece in parts.path.split("/") if piece]
    master = ""
    if shape == "sentinel":
        if not pieces:
            raise InvalidValueError(f"{where}: name the master, like redis+sentinel://s1:26379,s2:26379/mymaster/0")
        master = pieces.pop(0)
    if not pieces:
        return master, 0
    if shape == "cluster" or len(pieces) > 1 or not _NUMBER.fullmatch(pieces[0]) or int(pieces[0]) > 1023:  # noqa: PLR2004 - more than any server has
        raise InvalidValueError(f"{where}: after the server comes at most the number of a database; a cluster has none")
    return master, int(pieces[0])


def _seeds(hosts: str, port: int, where: str) -> tuple[Address, ...]:
    seeds: list[Address] = []
    for text in hosts.split(","):
        host, colon, number = text.rpartition(":")
        if not colon or text.endswith("]"):
            host, number = text, str(port)
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not host or "[" in host or "]" in host or not _NUMBER.fullmatch(number) or not 0 < int(number) < 1 << 16:
            raise InvalidValueError(f"{where}: {text!r} is not host:port")
        seeds.append((host, int(number)))
    if len(seeds) > MOST_SEEDS:
        raise InvalidValueError(f"{where}: {len(seeds)} servers named; at most {MOST_SEEDS}, the rest is found")
    return tuple(seeds)


def seconds_of(text: str | None, name: str, default: float, where: str) -> float:
    """The seconds that an option of a URL says; raises `InvalidValueError` for what is not a duration."""
    if text is None:
        return default
    try:
        return Limit.parse(f"1/{text}").window_us / 1e6
    except CaplineError:
        raise InvalidValueError(f"{where}: {name} is a duration like 50ms or 2s, not {text!r}") from None


def _connections(text: str | None, where: str) -> int:
    if text is None:
        return 128
    if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= 10_000:  # noqa: PLR2004 - a bound that no one needs to name
        raise InvalidValueError(f"{where}: max_connections is a number from 1 to 10000, not {text!r}")
    return int(text)
