"""A mail address from a recipient's column: used as it is, or refused with a reason. Never changed.

    a@example.org                  an addr-spec of plain atoms, at most 254 bytes, 64 of them before the @
    Anna <a@example.org>           and a name before it, for the header
    anna@bücher.example            characters outside of ASCII: where the server has SMTPUTF8

The rule: what goes to the server is a part of the text, character by character. smtplib's own reading is generous: it
drops spaces, and would send a mail for `a@x.org SIZE=1` to `a@x.orgSIZE=1`. Quoted local parts and addresses by number
(`a@[192.0.2.1]`) are refused: no mailing has them.
"""

import re
from email.headerregistry import Address

_LONGEST_BYTES = 254
_LONGEST_LOCAL_BYTES = 64
_LONGEST_LABEL = 63
_NAMED = re.compile(r"(?P<name>[^<>]*)<(?P<plain>[^<>]*)>")
_ATOM = r"(?:[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]|[^\x00-\x9f])+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_LABEL = re.compile(r"(?!-)(?:[A-Za-z0-9-]|[^\x00-\x9f])+(?<!-)")


def parse_address(text: str) -> Address:
    """The address; `ValueError` with a short reason, without the text itself, where it is invalid."""
    if not text:
        raise ValueError("the address is empty")
    if not text.isprintable():
        raise ValueError("the address has a character that cannot be printed")
    named = _NAMED.fullmatch(text)
    name, plain = (named["name"].strip(), named["plain"]) if named else ("", text)
    if " " in plain:  # the only space that is printable
        raise ValueError("the address has a space")
    local, at, domain = plain.rpartition("@")
    labels = domain.split(".")
    if not at or not _LOCAL.fullmatch(local) or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("it is not an address")
    too_long = max(map(len, labels)) > _LONGEST_LABEL or len(local.encode()) > _LONGEST_LOCAL_BYTES
    if too_long or len(plain.encode()) > _LONGEST_BYTES:
        raise ValueError("the address is too long")
    unquoted = name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name
    return Address(unquoted, local, domain)
