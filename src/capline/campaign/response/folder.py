"""The folder of a service's replies: what came back after messages, a file a day and kind, for `capline response`.

    by-key-2026-11-27.jsonl    {"key": …, "time": …, "event": …}
    by-id-2026-11-27.jsonl     {"id": …, "time": …, "event": …}

The rule: who writes holds the folder's lock, and a line is whole or not there. A file is kept for `KEPT_DAYS`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import msgspec

from capline.model.subject import Subject
from capline.segment.files import replacing
from capline.support.private import private_opener
from capline.support.system import lock_file

KEPT_DAYS = 90

Kind = Literal["key", "id"]
KINDS: tuple[Kind, ...] = "key", "id"


def reply_files(folder: Path) -> list[Path]:
    """Its files, the oldest of a kind first."""
    return sorted(folder.glob("by-*.jsonl"))


def add_replies(folder: Path, day: str, kind: Kind, replies: Sequence[dict[str, str]]) -> None:
    """Add replies to a day's file, all or none; with the first of a day, files that are too old go."""
    path = folder / f"by-{kind}-{day}.jsonl"
    lines = b"".join(msgspec.json.encode(reply) + b"\n" for reply in replies)
    with _locked(folder):
        if not path.exists():
            last = str(date.fromisoformat(day) - timedelta(days=KEPT_DAYS))
            for old in reply_files(folder):
                if old.stem[-len(last) :] < last:
                    old.unlink()
        with open(path, "ab", buffering=0, opener=private_opener) as target:
            before = os.fstat(target.fileno()).st_size
            if target.write(lines) < len(lines):
                os.truncate(target.fileno(), before)
                raise OSError(errno.ENOSPC, "there is no room for it")
            os.fsync(target.fileno())


def erase_replies(folder: Path, subject: Subject) -> int:
    """Erase what came back of a subject, of a number and its text alike; how many replies that were."""
    word, erased = str(subject), 0

    def is_of(line: bytes) -> bool:
        reply = msgspec.json.decode(line, type=dict[str, str])
        return word in {reply.get("id"), unquote("".join(reply.get("key", "").split("/", 2)[2:]))}

    with _locked(folder):
        for path in reply_files(folder):
            lines = path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if not is_of(line)]
            if len(kept) < len(lines):
                with replacing(path, private_opener) as target:
                    target.write(b"".join(kept))
                erased += len(lines) - len(kept)
    return erased


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    with open(folder / ".replies.lock", "ab", opener=private_opener) as lock:
        lock_file(lock.fileno())
        yield
