"""The tokens file: a name, roles and the hash of a secret for each caller.

    {"tokens": [{"name": "billing", "roles": ["decide"], "hash": "sha256:…", "created": "2026-11-22T16:00:00Z"}]}
     "policies": ["promo", "push-*"]        where it is for these alone: names, and beginnings with a * behind

A generated token is `cap_NAME_` and 256 random bits, so SHA-256 is enough. A secret that a person chose is sent as HTTP
Basic with its name, and kept by scrypt. The rule: the file is replaced whole, with mode 0600, and holds no secret.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Container, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from capline.model.errors import CaplineError, InvalidValueError, UnknownNameError, quoted
from capline.model.policy import POLICY_FORM
from capline.segment.files import read, replacing
from capline.service.http.scope import EVERYTHING, Scope, scope_of
from capline.support.instant import instant_text
from capline.support.private import private_opener
from capline.support.system import lock_file

ROLES = ("decide", "read", "compose", "steer", "reply", "admin")
PREFIX = "cap_"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?", re.ASCII)
_SECRET_BYTES = 32
_SHORTEST_CHOSEN = 12
LONGEST_CHOSEN = 256
_MOST_TOKENS = 10_000
_LARGEST_FILE_BYTES = 4 << 20
_SCRYPT_N, _SCRYPT_R, _SCRYPT_P = 1 << 15, 8, 1
_SCRYPT_BYTES = 64 << 20


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One who may ask; `policies` where it may for these alone."""

    name: str
    roles: tuple[str, ...]
    hash: str
    created: str
    policies: tuple[str, ...] | None = None

    @property
    def scope(self) -> Scope:
        """For which policies it may ask."""
        return EVERYTHING if self.policies is None else scope_of(self.name, self.policies)


class _Form(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[Token]


class TokenFile:
    """The tokens of a file, by name, as they were read last; `data` is what was read, `start` what is read first."""

    def __init__(self, path: str | Path, *, create: bool = False, start: Path | None = None) -> None:
        self.path = Path(path) if start is None else start
        self.data = b""
        self.tokens: dict[str, Token] = {}
        self._seen: tuple[int, ...] = ()
        if not (create and not self.path.exists()):
            self.reload()
        if start is not None:
            self.path, self._seen = Path(path), ()

    def reload(self) -> bool:
        """Read it again if it changed, and return whether it did; if it is not good, raises and changes nothing."""
        try:
            state = self.path.stat()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InvalidValueError(
                f"{self.path}: cannot be read: {reason}; `capline token create NAME --file {self.path}` writes one"
            ) from None
        seen = state.st_ino, state.st_size, state.st_mtime_ns, state.st_mode
        if seen == self._seen:
            return False
        self.tokens = self._read(state)
        self._seen = seen
        return True

    def create(
        self, name: str, roles: Sequence[str], chosen: str | None = None, policies: Sequence[str] | None = None
    ) -> str:
        """Add one and return what its holder shows: a generated token, or the secret that was chosen."""
        if not _NAME.fullmatch(name):
            raise InvalidValueError(
                f"{quoted(name)} is not a name for a token: use small letters, digits, '-' and '.', 1 to 64"
            )
        unknown = [role for role in roles if role not in ROLES]
        if unknown or not roles:
            raise InvalidValueError(f"a token has roles of {', '.join(ROLES)}, not {quoted(', '.join(unknown))}")
        scope = None if policies is None else tuple(dict.fromkeys(policies))
        if fault := _fault_of(scope):
            raise InvalidValueError(f"token {name}: {fault}")
        if chosen is not None and not _SHORTEST_CHOSEN <= len(chosen) <= LONGEST_CHOSEN:
            raise InvalidValueError(f"a chosen secret has {_SHORTEST_CHOSEN} to {LONGEST_CHOSEN} characters")
        shown = f"{PREFIX}{name}_{secrets.token_hex(_SECRET_BYTES)}" if chosen is None else chosen
        kept = _sha256(shown) if chosen is None else _scrypt(chosen, secrets.token_bytes(16))
        now = instant_text(time.time_ns() // 1000, "seconds")
        with self._changing():
            if name in self.tokens:
                raise InvalidValueError(f"there is a token {name}; revoke it first: capline token revoke {name}")
            if len(self.tokens) >= _MOST_TOKENS:
                raise InvalidValueError(f"more than {_MOST_TOKENS} tokens; revoke some")
            self.tokens = {**self.tokens, name: Token(name, tuple(dict.fromkeys(roles)), kept, now, scope)}
        return shown

    def revoke(self, name: str) -> None:
        """Take one out."""
        with self._changing():
            if name not in self.tokens:
                raise UnknownNameError(f"no token {quoted(name)} in {self.path}; `capline token list` has them")
            self.tokens = {kept: token for kept, token in self.tokens.items() if kept != name}

    def check_policies(self, there: Container[str]) -> None:
        """Raise for a token that names a policy that is not there; a beginning may be of policies to come."""
        for token in self.tokens.values():
            for policy in token.policies or ():
                if not policy.endswith("*") and policy not in there:
                    raise UnknownNameError(
                        f"{self.path}: token {token.name}: no policy {policy} is in the policy file; "
                        f"add it there, or revoke the token"
                    )

    def _read(self, state: os.stat_result) -> dict[str, Token]:
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise InvalidValueError(f"{self.path}: others may write it, and let themselves in; chmod 600 {self.path}")
        try:
            data = read(self.path, _LARGEST_FILE_BYTES)
            form = msgspec.json.decode(data, type=_Form)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidValueError(
                f"{self.path}: not a tokens file: {' '.join(str(error).split())}; `capline token create` writes them"
            ) from None
        except CaplineError as error:
            raise InvalidValueError(str(error)) from None
        named: dict[str, Token] = {}
        for token in form.tokens:
            bad = not _NAME.fullmatch(token.name) or not token.roles or any(role not in ROLES for role in token.roles)
            if bad or token.name in named or not token.hash.startswith(("sha256:", "scrypt:")):
                raise InvalidValueError(
                    f"{self.path}: token {quoted(token.name)}: a bad name, role or hash, or there twice"
                )
            if fault := _fault_of(token.policies):
                raise InvalidValueError(f"{self.path}: token {token.name}: {fault}")
            named[token.name] = token
        self.data = data
        return named

    @contextmanager
    def _changing(self) -> Generator[None]:
        """One change at a time, on the newest state, written whole."""
        try:
            with self._locked():
                if self.path.exists():
                    self.reload()
                yield
                whole = msgspec.json.encode(_Form(list(self.tokens.values())))
                with replacing(self.path, private_opener) as file:
                    file.write(msgspec.json.format(whole, indent=1) + b"\n")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InvalidValueError(
                f"{self.path}: cannot be written: {reason}; --file names one in a directory of yours"
            ) from None

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            lock_file(lock)
            yield
        finally:
            os.close(lock)


def _fault_of(policies: tuple[str, ...] | None) -> str:
    if policies == ():
        return "policies is empty; name some, or leave it out: then the token is for all"
    bad = next((name for name in policies or () if not POLICY_FORM.fullmatch(name.removesuffix("*"))), None)
    return "" if bad is None else f"{quoted(bad)} is no policy's name, nor the beginning of one with a * behind it"


def name_of(shown: str) -> str:
    """The name in a generated token, or "" for any other text."""
    return shown[len(PREFIX) :].rpartition("_")[0] if shown.startswith(PREFIX) else ""


def is_of(token: Token | None, shown: str) -> bool:
    """Whether this is the token's secret, in constant time, for an unknown token too. scrypt takes some 80 ms."""
    kept = "sha256:" if token is None else token.hash
    kind, _, rest = kept.partition(":")
    if kind == "sha256":
        return hmac.compare_digest(_sha256(shown).encode(), kept.encode())
    try:
        salt = bytes.fromhex(rest.partition(":")[0])
    except ValueError:
        return False
    return hmac.compare_digest(_scrypt(shown, salt).encode(), kept.encode())


def _sha256(shown: str) -> str:
    return f"sha256:{hashlib.sha256(shown.encode(errors='replace')).hexdigest()}"


def _scrypt(chosen: str, salt: bytes) -> str:
    key = hashlib.scrypt(
        chosen.encode(errors="replace"),
        salt=salt,
        n=_SCRYPT_N,
        r=_SCRYPT_R,
        p=_SCRYPT_P,
        maxmem=_SCRYPT_BYTES,
        dklen=32,
    )
    return f"scrypt:{salt.hex()}:{key.hex()}"
