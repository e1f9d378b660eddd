"""What runs now, from outside: `parts.json` of a run's directory, and what the kernel says of each process."""

import os
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from capline.model.errors import InvalidValueError

WITHIN_S = 10.0


class Running(msgspec.Struct, frozen=True):
    """A part: its process, None while it is away; how often it was started; its resident memory, None if not known."""

    name: str
    where: str
    starts: int
    pid: int | None
    memory_bytes: int | None = None


def running(folder: Path) -> list[Running]:
    """The parts of the run in this directory; raises where there is none."""
    try:
        rows = msgspec.json.decode((folder / "parts.json").read_bytes(), type=list[Running])
    except OSError:
        raise InvalidValueError(f"no `capline up` runs in {folder}; name its directory: --dir PATH") from None
    return [_now(row) for row in rows]


def console_link(folder: Path) -> str | None:
    """A link that signs in to the console once, as the run's own token; None where the service does not answer."""
    admin = (folder / "console.url").read_text(encoding="ascii")
    headers = {"Authorization": f"Bearer {(folder / 'you.token').read_text(encoding='ascii')}"}
    request = urllib.request.Request(f"{admin}/console/link", method="POST", headers=headers)  # noqa: S310 - our own
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError), opener.open(request, timeout=WITHIN_S) as answer:
        told: Any = msgspec.json.decode(answer.read())
        return f"{admin}{told['link']}"
    return None


def _now(row: Running) -> Running:
    stat = Path(f"/proc/{row.pid}/stat")
    try:
        fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return msgspec.structs.replace(row, pid=row.pid if _lives(row.pid) else None)
    if fields[0] == "Z":
        return msgspec.structs.replace(row, pid=None)
    return msgspec.structs.replace(row, memory_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def _lives(pid: int | None) -> bool:
    """Where the kernel has no /proc."""
    with suppress(OSError):
        if pid is not None:
            os.kill(pid, 0)
            return True
    return False
