"""The formats of a configuration store. All are msgpack; a row has 5 bytes of version before it.

    row       version (5 bytes, big-endian) + [at_us, who, value]     in force at once
              … + [at_us, who, value, effective_us, before]           `before` is in force until `effective_us`:
                                                                      what was there, or limits given for a while
    past      version (5 bytes, big-endian) + the rows before this one, oldest first
    commit    [version, at_us, who, verb, token, changes, totals]      the verb may be "set: why"
    change    [policy], or [policy, subject]; [policy, nil] stands for many subjects of it
    pending   [version, [[table, name, row], …]]

The value of a policy is its document (`document`), that of an override a list of limits; nil when removed. With a
granularity of its own it is {"limits": […], "granularity": "…us"}, which older releases take for damaged. A row's name
is the policy, or `policy NUL subject`, the subject as it is typed (`42` is the integer, `s:42` the text).

`totals` has for each policy whose overrides changed: how many there are, the widest window and the largest quota among
them. The last two never shrink while there is an override, since logs must keep what it counts. Where they are kept,
not in a commit, they also say how many end within an hour: a row whose limits have ended stays until it changes.
"""

from typing import Any, NamedTuple

import msgspec

from capline.model.errors import StoreDamagedError
from capline.model.subject import Subject, parse_subject, subject_text

VERSION_BYTES = 5
POLICIES, PAST_POLICIES, OVERRIDES, PAST_OVERRIDES = "p", "pp", "o", "op"
Row = tuple[str, bytes, bytes]
"""A table, a name in it, the bytes of the row."""

KEYED: Row = ("k", b"keyed", (1).to_bytes(VERSION_BYTES))
"""Is there once a limiter with a `subject_key` follows the configuration. The previous release does not look for it."""

_pack = msgspec.msgpack.encode
_SPLIT = "\0"
_HOUR_US = 3_600_000_000


class Entry(msgspec.Struct, frozen=True):
    """One version of a policy or an override: `value` is in force from `effective_us` on, `before` until then."""

    version: int
    at_us: int
    who: str
    value: Any
    effective_us: int = 0
    before: Any = None

    def at(self, now_us: int) -> Any:
        """The value in force then."""
        return self.value if now_us >= self.effective_us else self.before


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """Of one policy: how many overrides there are, the widest window among them, the largest quota.

    `ends` has how many end for good by an hour since 1970; older releases drop it, and then count those that ended.
    """

    count: int = 0
    widest_us: int = 0
    largest: int = 0
    ends: dict[int, int] = {}

    def count_at(self, now_us: int) -> int:
        """How many have not ended then; one that did is counted until its hour is over."""
        return self.count - sum(many for hour, many in self.ends.items() if hour * _HOUR_US <= now_us)


def hour_of_end(entry: Entry) -> int | None:
    """By which hour since 1970 an override ends for good; None for one that does not."""
    return None if entry.value is not None or entry.before is None else -(-entry.effective_us // _HOUR_US)


class Name(NamedTuple):
    """What changed: a policy, one override (`subject`), or many overrides of the policy (`many`)."""

    policy: str
    subject: Subject | None = None
    many: bool = False


class Commit(NamedTuple):
    """One commit, as followers see it: enough to know what to read again."""

    version: int
    at_us: int
    who: str
    verb: str
    token: bytes
    changes: list[Name]
    totals: dict[str, Totals]


def name_of(policy: str, subject: Subject | None = None) -> bytes:
    """The name of a policy's row, or of an override's."""
    return policy.encode() if subject is None else f"{policy}{_SPLIT}{subject_text(subject)}".encode()


def names_of(name: bytes) -> tuple[str, Subject | None]:
    """The policy, and the subject, of a row's name."""
    policy, split, subject = name.decode().partition(_SPLIT)
    return policy, parse_subject(subject) if split else None


def version_of(row: bytes) -> int:
    """The version that a row was written at."""
    return int.from_bytes(row[:VERSION_BYTES])


def entry_bytes(entry: Entry) -> bytes:
    """The row of an entry."""
    parts = [entry.at_us, entry.who, entry.value]
    if entry.effective_us:
        parts += [entry.effective_us, entry.before]
    return _versioned(entry.version, parts)


def read_entry(row: bytes) -> Entry:
    """The entry of a row."""
    version, parts = _read(row)
    match parts:
        case [int(at_us), str(who), value]:
            return Entry(version, at_us, who, value)
        case [int(at_us), str(who), value, int(effective_us), before]:
            return Entry(version, at_us, who, value, effective_us, before)
        case _:
            raise _damaged()


def is_override(row: bytes) -> bool:
    """Whether the row of an override has limits, now or until an instant: it is not one that was removed."""
    entry = read_entry(row)
    return entry.value is not None or entry.before is not None


def past_bytes(version: int, entries: list[Entry]) -> bytes:
    """The row of the entries before this version, oldest first."""
    return _versioned(version, [entry_bytes(entry) for entry in entries])


def read_past(row: bytes | None) -> list[Entry]:
    """The entries before the present one, oldest first."""
    return [] if row is None else [read_entry(row) for row in _read(row)[1]]


def commit_bytes(commit: Commit) -> bytes:
    """The bytes of a commit."""
    changes = [name[:1] if name.subject is None and not name.many else name[:2] for name in commit.changes]
    totals = {name: (of.count, of.widest_us, of.largest) for name, of in commit.totals.items()}
    return _pack([*commit[:5], changes, totals])


def read_commit(told: bytes) -> Commit:
    """The commit of these bytes."""
    try:
        version, at_us, who, verb, token, changes, totals = msgspec.msgpack.decode(told)
        names = [Name(*change, many=change[1:] == [None]) for change in changes]
        return Commit(version, at_us, who, verb, token, names, {name: Totals(*of) for name, of in totals.items()})
    except (msgspec.DecodeError, TypeError, ValueError):
        raise _damaged() from None


def pending_bytes(version: int, rows: list[Row]) -> bytes:
    """The bytes of a commit's pending rows."""
    return _pack([version, rows])


def read_pending(told: bytes) -> tuple[int, list[Row]]:
    """The version of a commit, and its rows."""
    return _unpacked(told, tuple[int, list[tuple[str, bytes, bytes]]])


def totals_bytes(totals: Totals) -> bytes:
    """The totals of one policy."""
    return _pack(totals)


def read_totals(row: bytes) -> Totals:
    """The totals of these bytes."""
    return _unpacked(row, Totals)


def _versioned(version: int, value: object) -> bytes:
    return version.to_bytes(VERSION_BYTES) + _pack(value)


def _read(row: bytes) -> tuple[int, Any]:
    return version_of(row), _unpacked(row[VERSION_BYTES:], Any)


def _unpacked(data: bytes, form: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _damaged() from None


def _damaged() -> StoreDamagedError:
    return StoreDamagedError("the configuration store has a damaged value; restore it")
