"""The Lua scripts and what a call of one is.

Each script is put together from its file and the files that it includes, and has the hash that EVALSHA names.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_INCLUDE = re.compile(r"^ *--@include (\w+)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    """A script's text and its SHA-1, as the server names it."""

    text: bytes
    sha: bytes


class Call(msgspec.Struct):
    """One script call, or one plain command. `repeatable`: it may run twice and count once.

    `resent`: it was sent again after no answer came, so it may have run before the reply that it ends with.
    """

    slot: int
    payload: bytes
    script: Script | None = None
    repeatable: bool = False
    resent: bool = False


@cache
def _folder() -> Traversable:
    return files("capline.store.redis.scripting") / "lua"


def _read(name: str) -> str:
    """The file with those that it includes, and these with theirs."""
    return _INCLUDE.sub(lambda found: _read(found[1]), (_folder() / f"{name}.lua").read_text(encoding="utf-8"))


def _script(name: str, flags: str = "") -> Script:
    # The first line makes the server refuse the script whole on a replica or when memory is out, before it has begun.
    text = _read(name).replace("--@head", f"#!lua{flags}", 1).encode()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


ONE = _script("one")
ONE_LOOK = _script("one", " flags=no-writes")
ATTEMPT = _script("attempt")
LOOK = _script("attempt", " flags=no-writes")
JOINT = _script("joint")
JOINT_LOOK = _script("joint", " flags=no-writes")
REFUND = _script("refund")
MERGE = _script("merge")
SWEEP = _script("sweep")
