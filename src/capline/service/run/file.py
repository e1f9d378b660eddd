"""The service's settings: a YAML file, over it the environment, over that the options of the command line.

    store: lmdb://.capline/store              where logs live
    policies: policies.yaml                   or config: redis://…, a configuration store
    segments: s3://bucket/prefix              optional
    queue: redis://queue.example.org/0        optional: a campaign store
    audiences: s3://bucket/audiences          optional, with it: where uploads are kept, here or in a directory
    messages: {push: {policies: policies.yaml, sender: {…}}}     what the console's form of a campaign begins with
    replies: replies/                         optional, with it: where what comes back after messages is kept
    http: {listen: 127.0.0.1:8080, workers: 2, trusted_proxies: 1, tls: {certificate: c.pem, key: k.pem}}
    admin: {listen: 127.0.0.1:8081}
    grpc: {listen: 127.0.0.1:8082, envoy: ratelimit/, merge_domains: false, tls: {…}}     or listen: unix:envoy.sock
    spoe: {listen: 127.0.0.1:8083}
    tokens: tokens.json                       who may ask
    hosts: [capline.internal]                 without tokens: names that a request's Host may have, besides loopback
    on_store_error: raise
    drain: 5                                  seconds that it goes on after SIGTERM, for balancers to see it
    observers: {access_log: "-", access_sample: 0.01}
    record: {keep: 3600, hashed: true}        keep the decisions of an hour, to try other limits on them
    history: {keep: 604800}                   keep what was counted in each minute for a week, in the store
    bounds: {requests: 1000}

The rule: taken whole or not at all; unknown keys are refused with their line. Relative paths are the file's,
those of the environment and of options the working directory's. `http.listen` is CAPLINE_HTTP_LISTEN, and so on.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec.inspect import BoolType, FloatType, IntType, NamedTupleType, StructType, Type, UnionType, type_info

from capline.forms.fields import Fields
from capline.forms.tree import Fault, Items, Node, Table, Text, read_tree, shown, texts_of
from capline.model.errors import CaplineError, InvalidValueError
from capline.policy.file import PolicyFileError
from capline.segment.files import read
from capline.service.envoy.environment import upstream_settings
from capline.service.settings import values
from capline.service.settings.values import (
    USUAL_MODES,
    Address,
    Bounds,
    Grpc,
    History,
    Http,
    Modes,
    Observers,
    Record,
    Settings,
    Tls,
    parse_address,
)

_LARGEST_FILE_BYTES = 1 << 20
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", re.ASCII)
_LONGEST_S = 3600
_LONGEST_AGE_S = 2_000_000
"""Of a connection: gRPC counts its milliseconds in 31 bits."""

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}", re.ASCII)

KEYS = (
    *("store", "policies", "config", "segments", "queue", "audiences", "replies"),
    *("tokens", "hosts", "on_store_error", "drain"),
    *("http.listen", "http.workers", "http.trusted_proxies"),
    *("http.tls.certificate", "http.tls.key", "http.tls.client_ca"),
    *("admin.listen", "admin.tls.certificate", "admin.tls.key", "admin.tls.client_ca"),
    *("grpc.listen", "grpc.envoy", "grpc.merge_domains", "spoe.listen"),
    *("grpc.tls.certificate", "grpc.tls.key", "grpc.tls.client_ca"),
    *("grpc.max_connection_age", "grpc.max_connection_age_grace"),
    *(f"grpc.{name}" for name in Modes.__struct_fields__),
    *(f"observers.{name}" for name in Observers.__struct_fields__),
    *(f"record.{name}" for name in Record.__struct_fields__),
    *(f"history.{name}" for name in History.__struct_fields__),
    *(f"bounds.{name}" for name in Bounds.__struct_fields__),
)
"""Every key that holds a value."""

_Options = TypeVar("_Options", Http, Modes, Observers, Record, History, Bounds)

VARIABLES = {f"CAPLINE_{key.replace('.', '_').upper()}": key for key in KEYS}


def read_settings(
    file: Path | None, environment: Mapping[str, str], options: Mapping[str, tuple[str, str | tuple[str, ...]]]
) -> Settings:
    """The settings; `options` has by key how the option is called and its value. Raises naming every fault's line."""
    faults: list[Fault] = []
    root: Node | None = Table(0, ())
    if file is not None:
        root, faults = read_tree(_text(file))
        if root is None and not faults:
            root = Table(0, ())
    said: list[tuple[str, str]] = []
    above: dict[str, tuple[str, str | tuple[str, ...]]] = {
        key: (name, environment[name]) for name, key in VARIABLES.items() if environment.get(name)
    }
    if "grpc.envoy" in above or "grpc.envoy" in options:
        above = upstream_settings(environment) | above
    for key, (name, value) in (above | dict(options)).items():
        said.append((name, key))
        root = _with(root, key.split("."), value, -len(said))
    settings = None if root is None else _Reader(root, faults, file).settings()
    if faults or settings is None:
        raise _error(file, faults, said)
    return settings


def _text(file: Path) -> str:
    try:
        return read(file, _LARGEST_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidValueError(f"{file}: not UTF-8; save the file as UTF-8") from None
    except CaplineError as error:
        raise InvalidValueError(str(error)) from None


def _with(node: Node | None, path: list[str], value: str | tuple[str, ...], line: int) -> Node | None:
    """The tree with this value at the path, on a line below 0, which stands for the variable or the option."""
    if not path:
        if isinstance(value, tuple):
            return Items(line, tuple(Text(line, word, plain=False) for word in value))
        return Text(line, value, plain=False)
    if node is not None and not isinstance(node, Table):
        return node  # a fault, which is found where it is read
    entries = () if node is None else node.entries
    below = next((kept for key, kept in entries if key.text == path[0]), None)
    kept = tuple(entry for entry in entries if entry[0].text != path[0])
    changed = _with(below, path[1:], value, line)
    if changed is None:
        return node
    return Table(line if node is None else node.line, (*kept, (Text(line, path[0]), changed)))


def _error(file: Path | None, faults: list[Fault], said: list[tuple[str, str]]) -> InvalidValueError:
    """The faults of the file by their lines; those of a variable or an option by its name."""
    for line, text in faults:
        if line < 0:
            name, key = said[-line - 1]
            section = key.partition(".")[0] + ": "
            return InvalidValueError(
                f"{name}: {text.removeprefix(key.replace('.', ': ') + ': ').removeprefix(section)}"
            )
    return InvalidValueError(str(PolicyFileError.of("the settings" if file is None else str(file), faults)))


class _Reader:
    """Reads the tree; every fault is noted, and what is returned beside one is never used."""

    def __init__(self, root: Node, faults: list[Fault], file: Path | None) -> None:
        self._faults = faults
        self._folder = Path() if file is None else file.absolute().parent
        self._top = Fields(root, "", faults, self._folder, "store: lmdb:///var/lib/capline")

    def settings(self) -> Settings:
        top, usual = self._top, Settings()
        config = self._url(top, "config")
        grpc = self._grpc()
        from_file = config is None or top.has("policies")
        if grpc is not None and not top.has("policies") and not (self._folder / (usual.policies or "")).exists():
            from_file = False  # Envoy's limits are enough
        settings = Settings(
            store=self._url(top, "store", usual.store) or usual.store,
            policies=self._path(top, "policies", usual.policies) if from_file else None,
            config=config,
            segments=self._url(top, "segments"),
            queue=self._url(top, "queue"),
            audiences=self._url(top, "audiences"),
            messages=self._messages(),
            replies=self._path(top, "replies"),
            http=self._section("http", usual.http),
            admin=self._section("admin", usual.admin, workers=1, trusted_proxies=0),
            grpc=grpc,
            spoe=self._spoe(),
            tokens=self._path(top, "tokens"),
            hosts=self._hosts(),
            on_store_error=top.one_of("on_store_error", ("raise", "allow", "deny"), usual.on_store_error),
            drain=top.seconds("drain", usual.drain, _LONGEST_S, zero=True),
            observers=self._section("observers", usual.observers),
            record=self._section("record", Record()) if top.has("record") else None,
            history=self._section("history", usual.history),
            bounds=self._section("bounds", usual.bounds),
        )
        self._check_stores(settings)
        if settings.spoe is not None and not settings.spoe.is_loopback:
            self._note_of(
                "spoe",
                f"its protocol has no tokens, so it listens on loopback only, like 127.0.0.1:{settings.spoe.port}; "
                "run the service beside each HAProxy that asks it",
            )
        if grpc is not None and not grpc.listen.is_loopback and (grpc.tls is None or settings.tokens is None):
            self._note_of(
                "grpc",
                f"without tokens and TLS it listens on loopback only, like 127.0.0.1:{grpc.listen.port}; for other "
                "hosts give 'tokens:' and 'grpc: tls: {certificate: cert.pem, key: key.pem}'",
            )
        for name, address in (("grpc", grpc and grpc.listen), ("spoe", settings.spoe)):
            if address is not None and address.port == 0 and settings.http.workers > 1:
                several = "a Unix socket is of one process: give 'workers: 1'" if address.is_unix else ""
                self._note_of(name, several or "several workers need a port that all know, not 0")
        self._check_apart(
            [
                *(("http", settings.http.listen), ("admin", settings.admin.listen)),
                *(("grpc", grpc and grpc.listen), ("spoe", settings.spoe)),
            ]
        )
        if settings.tokens is None:
            for name, listener in (("http", settings.http), ("admin", settings.admin)):
                if not listener.listen.is_loopback:
                    near = f"127.0.0.1:{listener.listen.port}"
                    self._note_of(
                        name,
                        f"without tokens it listens on loopback only, like {near}; for other hosts give 'tokens:', "
                        "which `capline token create` writes",
                    )
        top.close()
        return settings

    def _check_stores(self, settings: Settings) -> None:
        top = self._top
        for key, what in (
            ("audiences", "uploads are for"),
            ("messages", "messages are for"),
            ("replies", "replies are to"),
        ):
            if getattr(settings, key) and settings.queue is None:
                top.fault(key, f"{what} campaigns: give 'queue:' too")
        if settings.http.workers > 1 and settings.store.lower().startswith("memory:"):
            where = "store" if top.has("store") else None
            top.fault(where, "memory:// is one process's own: with several workers use lmdb:///path or a server")

    def _hosts(self) -> tuple[str, ...]:
        words = self._top.texts("hosts", (), "capline.internal")
        hosts = tuple(host.strip() for word in words for host in word.split(","))
        for host in hosts:
            if not _HOST.fullmatch(host):
                self._top.fault(
                    "hosts", f"{shown(host)} is not a host name; write it without a port, like capline.internal"
                )
        return hosts

    def _check_apart(self, listeners: list[tuple[str, Address | None]]) -> None:
        """Note the listeners that would be in each other's way."""
        for position, (name, address) in enumerate(listeners):
            for other, taken in listeners[:position]:
                if address is None or taken is None or address.port != taken.port or not address.port:
                    continue
                if address.host == taken.host or address.is_any or taken.is_any:
                    section = name if self._top.has(name) else other
                    self._note_of(section, f"{address} is the address of {other} and of {name}; give each its own port")

    def _note_of(self, section: str, problem: str) -> None:
        fields = self._top.section(section)
        if fields is not None:
            fields.where = f"{section}: "
            fields.fault("listen", problem)

    def _tls(self, above: Fields) -> Tls | None:
        fields = above.section("tls", "{certificate: cert.pem, key: key.pem}")
        if fields is None:
            return None
        tls = Tls(
            self._path(fields, "certificate", like="cert.pem") or "",
            self._path(fields, "key", like="key.pem") or "",
            self._path(fields, "client_ca") if fields.has("client_ca") else None,
        )
        fields.close()
        return tls

    def _grpc(self) -> Grpc | None:
        fields = self._top.section("grpc")
        if fields is None:
            return None
        where = fields.optional("listen") or ""
        if where.startswith("unix:") and len(where) > len("unix:"):
            path = self._base(fields.node("listen")) / where.removeprefix("unix:").replace("//", "", 1)
            listen = Address(f"unix:{path}", 0)
        else:
            listen = self._address(fields, Address("127.0.0.1", 8082))
        if not fields.has("envoy"):
            fields.fault(
                None, "which limits? name files of envoyproxy/ratelimit: 'envoy: ratelimit/' or --envoy ratelimit/"
            )
        words = fields.texts("envoy", (), "ratelimit/")
        node = fields.node("envoy")
        base = self._base(node.items[0] if isinstance(node, Items) and node.items else node)
        merge_domains = fields.flag("merge_domains", default=False)
        tls = self._tls(fields)
        modes = self._options(fields, USUAL_MODES)
        age, grace = (
            fields.seconds(key, 1, _LONGEST_AGE_S) if fields.has(key) else None
            for key in ("max_connection_age", "max_connection_age_grace")
        )
        fields.close()
        return Grpc(listen, tuple(str(base / word) for word in words), merge_domains, tls, modes, age, grace)

    def _header(self, fields: Fields, key: str, usual: str) -> str:
        name = fields.text(key, usual)
        if not _HEADER.fullmatch(name):
            fields.fault(key, f"{shown(name)} is not a header name, like {usual}")
        return name

    def _spoe(self) -> Address | None:
        fields = self._top.section("spoe")
        if fields is None:
            return None
        listen = self._address(fields, Address("127.0.0.1", 8083))
        fields.close()
        return listen

    def _messages(self) -> dict[str, dict[str, Any]]:
        """Campaign files in part: their reader says what is wrong once a campaign is composed of one."""
        fields = self._top.section("messages", "{push: {policies: policies.yaml, sender: {…}}}")
        found: dict[str, dict[str, Any]] = {}
        if fields is None:
            return found
        for name in fields.keys():  # noqa: SIM118 - Fields is no dictionary
            part = fields.section(name, "{policies: policies.yaml, sender: {…}}")
            found[name] = {} if part is None else {key: texts_of(node) for key, node in part.written()}
        return found

    def _section(self, name: str, usual: _Options, **read: Any) -> _Options:
        fields = self._top.section(name)
        if fields is None:
            return usual
        options = self._options(fields, usual, **read)
        fields.close()
        return options

    def _options(self, fields: Fields, usual: _Options, **read: Any) -> _Options:
        """The options of a section, each by its type and bounds; but for those that were `read` otherwise."""
        for field in msgspec.structs.fields(usual):
            if field.name not in read:
                read[field.name] = self._option(fields, field.name, getattr(usual, field.name), type_info(field.type))
        return type(usual)(**read)

    def _option(self, fields: Fields, key: str, usual: Any, kind: Type) -> object:
        value: object
        match kind:
            case BoolType():
                value = fields.flag(key, default=usual)
            case IntType(ge=int(least), le=int(most)):
                value = fields.whole(key, usual, least, most)
            case FloatType(le=1):
                value = self._share(fields, key, usual)
            case FloatType(le=int(most) | float(most)):
                value = fields.seconds(key, usual, most)
            case NamedTupleType(cls=values.Address):
                value = self._address(fields, usual)
            case UnionType(types=(StructType(cls=values.Tls), _)):
                value = self._tls(fields)
            case UnionType():  # a file, or standard error
                text = fields.text(key, "") or None
                value = text if text in (None, "-") else self._path(fields, key)
            case _:
                value = self._header(fields, key, usual)
        return value

    def _address(self, fields: Fields, usual: Address) -> Address:
        text = fields.text("listen", str(usual), "127.0.0.1:8080")
        try:
            return parse_address(text)
        except CaplineError as error:
            fields.fault("listen", str(error))
            return usual

    def _share(self, fields: Fields, key: str, usual: float) -> float:
        word = fields.text(key, f"{usual:g}")
        try:
            share = float(word)
        except ValueError:
            share = 0.0
        if 0 < share <= 1:
            return share
        fields.fault(key, f"expected a share above 0 and at most 1, found {shown(word)}")
        return usual

    def _base(self, node: Node | None) -> Path:
        """Where a relative path starts: the file's folder for one in the file, else the working directory."""
        return Path() if node is None or node.line < 0 else self._folder

    def _path(self, fields: Fields, key: str, default: str | None = None, like: str = "") -> str | None:
        if not fields.has(key) and (default is not None or not like):
            fields.node(key)
            return None if default is None else str(self._folder / default)
        base = self._base(fields.node(key))
        return str(base / fields.text(key, like=like))

    def _url(self, fields: Fields, key: str, default: str | None = None) -> str | None:
        """A URL or a path; a relative `lmdb://` or `sqlite://` path starts where a path does."""
        node = fields.node(key)
        if node is None and default is None:
            return None
        url, base = fields.text(key, default), self._folder if node is None else self._base(node)
        if "://" not in url:
            if key in ("segments", "audiences"):
                return str(base / url)
            fields.fault(key, f"{shown(url)} is not a URL, like lmdb:///var/lib/capline or redis://127.0.0.1:6379")
            return url
        parts = urlsplit(url)
        path = unquote(parts.netloc + parts.path)
        if parts.scheme not in ("lmdb", "sqlite") or not path or path.startswith(("/", "~")) or base == Path():
            return url
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{quote(os.path.normpath(base / path))}{query}"
