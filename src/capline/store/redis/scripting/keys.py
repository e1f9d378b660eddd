"""Where a subject's log lives: the key, its slot, and the field in it.

    layout    key                                   field
    subject   namespace:log:{42}  namespace:log:{'text}      (a key of its own, a string)
              namespace:log:{name}text}                      the text `{name}text`
    bucket    namespace:log:{#n}                    1 byte    ids 64 n to 64 n + 63
              namespace:log:{~n}                    the text  texts whose hash falls in bucket n

A channel's log is `namespace:log/channel:{…}` with the same braces, a record of reservations
`namespace:log/+reserved:{…}`, and the log of hits beside numbers `namespace:log/+ids:{…}`; so all logs of one subject
are in one slot: the server hashes what stands between the
first `{` and the first `}` behind it. Names hold neither; in a text `%` and `}` are written `%25` and `%7D`, so no text
can end the braces, and no two texts share a key.

A text that begins with a name in braces is placed by that name, so that subjects that are decided together can share a
slot: `{acme}`, `{acme}:eu` (and also the integer 42 and `{42}:eu`). It is in the key unescaped; every other key has
only one `}`, its last byte.

A bucket holds 64: it stays a listpack (up to 128 entries by default), and its key costs 2 bytes a subject. Twice as
many cost a tenth more of the server's time, for a byte less (decision 6).
"""

import hashlib
import re
from binascii import crc_hqx

from capline.model.errors import InvalidTypeError, InvalidValueError, StoreDamagedError
from capline.model.subject import Subject, check_subject

BUCKET = 64
SLOTS = 16384

_NAMED = re.compile(rb"\{[^{}]+\}")


def bucket_count(population: int) -> int:
    """How many buckets a population of texts is spread over."""
    return -(-population // BUCKET)


def tag_of(subject: Subject, buckets: int) -> bytes:
    """The text between the first brace and the last; `buckets` is 0 for a key of its own."""
    if not buckets:
        if isinstance(subject, int):
            return b"%d" % subject
        text = subject.encode()
        if text[:1] == b"{" and _NAMED.match(text):
            return text[1:]
        return b"'" + text.replace(b"%", b"%25").replace(b"}", b"%7D")
    if isinstance(subject, int):
        return b"#%d" % (subject // BUCKET)
    digest = hashlib.blake2b(subject.encode(), digest_size=8).digest()
    return b"~%d" % (int.from_bytes(digest) % buckets)


def field_of(subject: Subject) -> bytes:
    """The subject's field in its bucket."""
    if isinstance(subject, int):
        return bytes((subject % BUCKET,))
    return subject.encode()


def slot_of(tag: bytes) -> int:
    """The cluster slot of every key with this tag: the server hashes the part before the first `}`."""
    return crc_hqx(tag.partition(b"}")[0] if b"}" in tag else tag, 0) % SLOTS


def log_of_key(key: bytes) -> str:
    """The name of the log that a key belongs to. Bytes of another application that are no text name none of ours."""
    return key.partition(b":{")[0].decode(errors="surrogateescape")


def tag_of_key(key: bytes) -> bytes | None:
    """The tag of a log's key; None for any other key, such as a receipt's."""
    _, braced, rest = key.partition(b":{")
    return rest[:-1] if braced and rest.endswith(b"}") else None


def is_bucket(tag: bytes) -> bool:
    """Whether a key with this tag is a bucket: then no subject has a key of its own there."""
    return tag[:1] in (b"#", b"~") and b"}" not in tag


def subject_of(tag: bytes, field: bytes | None) -> Subject | None:
    """The subject of a log's key and field (None: a key of its own): the inverse of `tag_of` and `field_of`.

    None if the key is of another layout. Raises `StoreDamagedError` if no subject has such a key.
    """
    kind, named = tag[:1], b"}" in tag
    if (field is not None) != is_bucket(tag):
        return None
    try:
        if field is None:
            if named:
                return check_subject((b"{" + tag).decode())
            if kind == b"'":
                return check_subject(tag[1:].replace(b"%7D", b"}").replace(b"%25", b"%").decode())
            return check_subject(int(tag))
        if kind == b"~":
            return check_subject(field.decode())
        (place,) = field
        return check_subject(int(tag[1:]) * BUCKET + place)
    except (InvalidValueError, InvalidTypeError, ValueError):
        where = "" if field is None else f", field {field[:40]!r}"
        raise StoreDamagedError(f"key tag {tag[:40]!r}{where}: no subject is kept as this; find who wrote it") from None
