"""A subject: text of 1 to 512 bytes of UTF-8, or an integer from 0 to 2^64-1. The two never meet: 42 is not "42".

Where a subject is typed or sent as a word, digits alone are the integer and anything else is text. A prefix says which
is meant: `i:42` is the integer, `s:42` the text.

    42  i:42  ->  42          s:42  ->  "42"          user:42  ->  "user:42"          s:s:42  ->  "s:42"
"""

import re
from hashlib import blake2b
from operator import index

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted

Subject = str | int

LONGEST_TEXT_BYTES = 512
LARGEST_ID = (1 << 64) - 1

_MOST_DIGITS = len(str(LARGEST_ID))
_INTEGER, _TEXT = "i:", "s:"
_KEYED = re.compile("h[0-9a-f]{32}")


def check_subject(subject: Subject) -> Subject:
    """Return the subject, a NumPy integer as an `int`; raise where it can be neither text nor id."""
    if type(subject) is str:
        if 0 < len(subject) <= LONGEST_TEXT_BYTES and subject.isascii():
            return subject
        try:
            size_bytes = len(subject.encode())
        except UnicodeEncodeError:
            raise InvalidValueError(
                f"subject {subject[:40]!r} has a lone surrogate, which UTF-8 cannot carry"
            ) from None
        if 1 <= size_bytes <= LONGEST_TEXT_BYTES:
            return subject
        raise InvalidValueError(f"a subject is 1 to {LONGEST_TEXT_BYTES} bytes of UTF-8, not {size_bytes}")
    if isinstance(subject, bool):
        raise InvalidTypeError(f"a subject is text or an integer, not {quoted(subject)}")
    try:
        number = index(subject)  # pyright: ignore[reportArgumentType] - callers may be untyped
    except TypeError:
        raise InvalidTypeError(f"a subject is text or an integer, not {type(subject).__name__}") from None
    if 0 <= number <= LARGEST_ID:
        return number
    raise InvalidValueError(f"an integer subject is 0 to 2^64-1, not {quoted(number)}")


def is_keyed(subject: Subject) -> bool:
    """Whether it may be the hash that a limiter with a `subject_key` makes of a subject."""
    return isinstance(subject, str) and _KEYED.fullmatch(subject) is not None


def short_subject(subject: Subject) -> Subject:
    """The subject, or its hash where it is a text of more than 512 bytes."""
    if not isinstance(subject, str) or len(subject) <= LONGEST_TEXT_BYTES // 4:  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
        return subject
    size_bytes = len(subject.encode(errors="surrogatepass"))
    return subject if size_bytes <= LONGEST_TEXT_BYTES else hashed_text(subject)


def hashed_text(text: str) -> str:
    """The subject that stands for any text at all: `long:` and 128 bits of its BLAKE2b, in hex."""
    return f"long:{blake2b(text.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def parse_subject(word: str, *, as_text: bool = False) -> Subject:
    """The subject that a word stands for (see the module's text); with `as_text` the word itself, whatever it is."""
    if not isinstance(word, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise InvalidTypeError(f"a subject is given as text, not {quoted(word)}")
    if as_text:
        return check_subject(word)
    if word.startswith(_TEXT):
        return check_subject(word.removeprefix(_TEXT))
    digits = word.removeprefix(_INTEGER)
    if digits.isascii() and digits.isdecimal():
        if len(digits) <= _MOST_DIGITS and int(digits) <= LARGEST_ID:
            return int(digits)
        raise InvalidValueError(f"subject {quoted(word)} is above 2^64-1; put s: before it to take it as text")
    if digits is not word:
        raise InvalidValueError(
            f"subject {quoted(word)}: after i: comes an integer; for this very text put s: before it"
        )
    return check_subject(word)


def subject_text(subject: Subject) -> str:
    """The shortest word that `parse_subject` takes for this subject: `42`, `user:42`, `s:42` for the text "42"."""
    if not isinstance(subject, str):
        return str(subject)
    looks_otherwise = subject.startswith((_INTEGER, _TEXT)) or (subject.isascii() and subject.isdecimal())
    return f"{_TEXT}{subject}" if looks_otherwise else subject
