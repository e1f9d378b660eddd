"""JSON files that end with the SHA-256 of everything before it.

    {
      "format": "…", …               the sealed part: every byte counts, white space included
      ,"sha256": "<64 hex digits>"   the seal; in the file, the comma ends the line before it
    }

The bytes are hashed, not the values, so no canonical form is needed. The seal has a fixed shape at the very end, so it
is found without a parser.
"""

import hashlib
import re

import msgspec

_SEAL = re.compile(rb',\n  "sha256": "([0-9a-f]{64})"\n}\n')
_SEAL_BYTES = len(',\n  "sha256": ""\n}\n') + 64


def seal(value: msgspec.Struct) -> bytes:
    """The value as sealed JSON."""
    body = msgspec.json.format(msgspec.json.encode(value), indent=2).removesuffix(b"\n}")
    return body + b',\n  "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def is_sealed(data: bytes) -> bool:
    """Whether the bytes end with the right seal."""
    found = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    return found is not None and hashlib.sha256(data[:-_SEAL_BYTES]).hexdigest().encode() == found[1]
