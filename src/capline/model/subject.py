"""A subject: text of 1 to 512 bytes of UTF-8, or an integer from 0 to 2^64-1. The two never meet: 42 is not "42"."""

from __future__ import annotations

from operator import index

from capline.model.errors import InvalidTypeError, InvalidValueError, quoted

__all__ = ["LARGEST_ID", "LONGEST_TEXT_BYTES", "Subject", "check_subject"]

Subject = str | int

LONGEST_TEXT_BYTES = 512
LARGEST_ID = (1 << 64) - 1


def check_subject(subject: Subject) -> Subject:
    """Return the subject, a NumPy integer as an `int`; raise where it can be neither text nor id."""
    if type(subject) is str:
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
