"""The pages of an LMDB file, read without LMDB: which of them are broken, and every entry that can be reached.

LMDB trusts its pages: a damaged one can end the process or show other data. This reads the file itself and checks
every number, so it can neither crash nor loop. Little-endian; a page is 4096 bytes, or what the head says.

    page      u64 number, u16 0, u16 flags, u16 end of the pointers, u16 begin of the nodes (or u32 count of pages)
    flags     branch 1, leaf 2, overflow 4, meta 8
    pointers  u16 each, from the page's begin, in the order of the keys
    node      u16 low, u16 high, u16 flags, u16 bytes of the key, key, then in a leaf the data
    leaf      low and high are the bytes of the data; flags: 1 the data is the number of overflow pages, 2 it is a table
    branch    low, high and flags are the number of the page below, whose keys are this one or greater
    table     u32 0, u16 flags, u16 depth, u64 branch pages, leaf pages, overflow pages, entries, root (all ones: none)
    meta      u32 magic, u32 version, u64 address, u64 map, the table of free pages, the main table, u64 last page, u64
              number of the transaction: page 0 has the even ones, page 1 the odd ones
    free      u64 transaction -> u64 count, then the numbers of the pages that it freed
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from typing import NamedTuple

HEAD = struct.Struct("<QHHHH")
NODE = struct.Struct("<HHHH")
TABLE = struct.Struct("<IHHQQQQQ")
_META = struct.Struct(f"<16xIIQQ{TABLE.size}s{TABLE.size}sQQ")
_POINTER = struct.Struct("<H")
_NUMBER = struct.Struct("<Q")
BRANCH, LEAF, OVERFLOW = 1, 2, 4
BIG, SUBTABLE = 1, 2
INTEGER_KEYS = 8
NO_ROOT = 2**64 - 1
MOST_DEPTH = 32
USED, FREE = 1, 2


class Table(NamedTuple):
    """A tree of pages, as its parent describes it."""

    page_bytes: int
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int

    @classmethod
    def of(cls, data: bytes) -> Table:
        """Read one."""
        return cls(*TABLE.unpack(data))


class Meta(NamedTuple):
    """One of the two heads of the file."""

    free: Table
    main: Table
    last_page: int
    transaction: int


def read_metas(file: FileIO, page_bytes: int) -> tuple[Meta, Meta]:
    """Both heads, in their order."""
    data = _read(file, 0, page_bytes + _META.size)
    metas: list[Meta] = []
    for at in (0, page_bytes):
        _, _, _, _, free, main, last_page, transaction = _META.unpack_from(data, at)
        metas.append(Meta(Table.of(free), Table.of(main), last_page, transaction))
    return metas[0], metas[1]


@dataclass
class Walk:
    """A walk over the pages of one committed state. `fault` is called with a line for each broken page."""

    file: FileIO
    page_bytes: int
    last_page: int
    fault: Callable[[str], None]
    seen: bytearray = field(init=False)
    """By page: `USED`, `FREE`, or 0 where nobody has named it yet."""

    def __post_init__(self) -> None:
        self.seen = bytearray(self.last_page + 1)
        self.seen[:2] = bytes((USED, USED))

    def entries(self, name: str, table: Table) -> Iterator[tuple[bytes, bytes, int]]:
        """Every entry of a table that can be reached: key, data, and the node's flags (2: the data is a table)."""
        counts = {"branch": 0, "leaf": 0, "overflow": 0, "entries": 0}
        if table.root != NO_ROOT:
            if table.depth > MOST_DEPTH:
                self.fault(f"table {name}: a depth of {table.depth}")
            last: bytes | None = None
            order = _by_number if table.flags & INTEGER_KEYS else bytes
            for key, data, flags in self._below(name, table.root, min(table.depth, MOST_DEPTH), counts):
                counts["entries"] += 1
                if last is not None and order(key) <= order(last):
                    self.fault(f"table {name}: the key {key.hex()} is out of order")
                last = key
                yield key, data, flags
        stated = {"branch": table.branches, "leaf": table.leaves, "overflow": table.overflows, "entries": table.entries}
        if counts != stated:
            wrong = [f"{found} {what} of {stated[what]}" for what, found in counts.items() if found != stated[what]]
            self.fault(f"table {name}: found {', '.join(wrong)}")

    def free(self, table: Table) -> int:
        """Mark the free pages; how many there are."""
        count = 0
        for key, data, _ in self.entries("free", table):
            pages = [number for (number,) in _NUMBER.iter_unpack(data[: len(data) // 8 * 8])]
            if len(key) != _NUMBER.size or not pages or pages[0] > len(pages) - 1:
                self.fault(f"the list of free pages {key.hex()} is none")
                continue
            for number in pages[1 : pages[0] + 1]:
                count += self._mark(number, FREE, "the list of free pages")
        return count

    def _mark(self, number: int, use: int, where: str) -> bool:
        if not 1 < number <= self.last_page:
            self.fault(f"{where}: names page {number}, which is not in the file")
        elif self.seen[number]:
            what = "free" if self.seen[number] == FREE else "used"
            self.fault(f"{where}: names page {number}, which is {what} already")
        else:
            self.seen[number] = use
            return True
        return False

    def _below(self, name: str, number: int, depth: int, counts: dict[str, int]) -> Iterator[tuple[bytes, bytes, int]]:
        where = f"table {name}, page {number}"
        if not self._mark(number, USED, f"table {name}"):
            return
        page = _read(self.file, number * self.page_bytes, self.page_bytes)
        if len(page) < self.page_bytes:
            self.fault(f"{where}: is behind the end of the file")
            return
        own, pad, flags, lower, upper = HEAD.unpack_from(page)
        if own != number or pad or flags != (LEAF if depth == 1 else BRANCH):
            self.fault(f"{where}: its head is that of page {own} of kind {flags}")
            return
        if not HEAD.size < lower <= upper <= self.page_bytes or lower % 2:
            self.fault(f"{where}: holds no nodes")
            return
        counts["leaf" if depth == 1 else "branch"] += 1
        nodes = [self._node(page, at, upper) for (at,) in _POINTER.iter_unpack(page[HEAD.size : lower])]
        if None in nodes:
            self.fault(f"{where}: {nodes.count(None)} of {len(nodes)} nodes lie outside of it")
        whole = [node for node in nodes if node is not None]
        if depth == 1:
            yield from self._leaf(where, page, whole, counts)
            return
        for i, (low, high, more, at, key_bytes) in enumerate(whole):
            begin = page[at : at + key_bytes] if i else None
            end = page[whole[i + 1][3] :][: whole[i + 1][4]] if i + 1 < len(whole) else None
            for found in self._below(name, low | high << 16 | more << 32, depth - 1, counts):
                key = found[0] if name != "free" else _by_number(found[0])
                if (begin is not None and key < _as(name, begin)) or (end is not None and key >= _as(name, end)):
                    self.fault(f"{where}: the key {found[0].hex()} lies below another branch")
                yield found

    def _node(self, page: bytes, at: int, upper: int) -> tuple[int, int, int, int, int] | None:
        """Low, high, flags, where the key begins and its length."""
        if at < upper or at + NODE.size > len(page):
            return None
        low, high, flags, key_bytes = NODE.unpack_from(page, at)
        begin = at + NODE.size
        return (low, high, flags, begin, key_bytes) if begin + key_bytes <= len(page) else None

    def _leaf(
        self, where: str, page: bytes, nodes: list[tuple[int, int, int, int, int]], counts: dict[str, int]
    ) -> Iterator[tuple[bytes, bytes, int]]:
        for low, high, flags, at, key_bytes in nodes:
            key, size = page[at : at + key_bytes], low | high << 16
            begin = at + key_bytes
            if flags & ~(BIG | SUBTABLE):
                self.fault(f"{where}: the key {key.hex()} has flags {flags}")
                continue
            if not flags & BIG:
                if begin + size > len(page):
                    self.fault(f"{where}: the data of the key {key.hex()} ends outside of it")
                    continue
                yield key, page[begin : begin + size], flags
                continue
            data = self._overflow(where, page[begin : begin + 8], size, counts)
            if data is not None:
                yield key, data, flags & ~BIG

    def _overflow(self, where: str, place: bytes, size: int, counts: dict[str, int]) -> bytes | None:
        if len(place) < _NUMBER.size:
            self.fault(f"{where}: an overflow page without a number")
            return None
        number = _NUMBER.unpack(place)[0]
        count = (HEAD.size - 1 + size) // self.page_bytes + 1
        if number + count - 1 > self.last_page:
            self.fault(f"{where}: overflow pages {number} to {number + count - 1} are not in the file")
            return None
        data = _read(self.file, number * self.page_bytes, HEAD.size + size)
        own, pad, flags, low, high = HEAD.unpack_from(data.ljust(HEAD.size, b"\0"))
        if own != number or pad or flags != OVERFLOW or low | high << 16 != count or len(data) < HEAD.size + size:
            self.fault(f"{where}: page {number} is no overflow page of {count}")
            return None
        marked = [self._mark(page, USED, where) for page in range(number, number + count)]
        if not all(marked):
            return None
        counts["overflow"] += count
        return data[HEAD.size :]


def _read(file: FileIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def _by_number(key: bytes) -> bytes:
    """An integer's key, so that it compares as the number does."""
    return key[::-1]


def _as(name: str, key: bytes) -> bytes:
    return _by_number(key) if name == "free" else key
