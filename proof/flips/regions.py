"""What stands where in an LMDB file, to tell each flip by what it hit. See `capline.store.local.lmdb.pages`."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from capline.store.local.lmdb.pages import BIG, HEAD, LEAF, NODE, OVERFLOW, SUBTABLE, USED, Table, Walk, read_metas

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FREE", "KEY", "STRUCTURE", "UNUSED", "VALUE", "regions"]

PAGE_BYTES = 4096
VALUE, KEY, STRUCTURE, FREE, UNUSED = "value", "key", "structure", "free page", "unused"


def regions(data: Path) -> list[str]:
    """By byte of a whole file, up to its last page."""
    with data.open("rb", buffering=0) as file:
        meta = max(read_metas(file, PAGE_BYTES), key=lambda one: one.transaction)
        faults: list[str] = []
        walk = Walk(file, PAGE_BYTES, meta.last_page, faults.append)
        for name, table, _ in list(walk.entries("main", meta.main)):
            list(walk.entries(name.decode(), Table.of(table)))
        of_tables = bytes(walk.seen)
        walk.free(meta.free)
        if faults:
            raise ValueError(f"{data}: {faults}")
        file.seek(0)
        content = file.read((meta.last_page + 1) * PAGE_BYTES)
    found = [STRUCTURE] * len(content)
    for number in range(2, meta.last_page + 1):
        begin = number * PAGE_BYTES
        if walk.seen[number] != USED:
            found[begin : begin + PAGE_BYTES] = [FREE] * PAGE_BYTES
        elif of_tables[number]:
            _mark_page(content, begin, found)
    return found


def _mark_page(content: bytes, begin: int, found: list[str]) -> None:
    page = content[begin : begin + PAGE_BYTES]
    _, _, flags, lower, upper = HEAD.unpack_from(page)
    if flags == OVERFLOW:
        size = (lower | upper << 16) * PAGE_BYTES
        found[begin + HEAD.size : begin + size] = [VALUE] * (size - HEAD.size)
        return
    found[begin + lower : begin + upper] = [UNUSED] * (upper - lower)
    if flags != LEAF:
        return
    for (at,) in struct.iter_unpack("<H", page[HEAD.size : lower]):
        low, high, node_flags, key_bytes = NODE.unpack_from(page, at)
        key = begin + at + NODE.size
        if node_flags & SUBTABLE:
            continue
        found[key : key + key_bytes] = [KEY] * key_bytes
        if not node_flags & BIG:
            size = low | high << 16
            found[key + key_bytes : key + key_bytes + size] = [VALUE] * size
