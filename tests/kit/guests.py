"""Packages that cannot live beside capline's own, or that few tests need: a venv, build/guests, made at the first call.

It is made of tools/guests.lock, by hash, and sees the packages of this interpreter after its own. So a program in it
has capline with all that it needs, and the guests' own pins (arq's is redis-py 5).
"""

import fcntl
import hashlib
import site
import subprocess
import sys
from pathlib import Path

__all__ = ["guests"]

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "tools" / "guests.lock"
PLACE = ROOT / "build" / "guests"


def guests() -> Path:
    """The interpreter of the venv. Making it takes half a minute, and raises where a package cannot be had."""
    stamp = PLACE / ".capline-setup"
    made_from = f"{ROOT}\n{sys.prefix} {sys.version}\n{hashlib.sha256(LOCK.read_bytes()).hexdigest()}\n"
    PLACE.parent.mkdir(exist_ok=True)
    with (PLACE.parent / "guests.turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != made_from:
            stamp.unlink(missing_ok=True)
            _run(sys.executable, "-m", "venv", "--clear", str(PLACE))
            _run(str(PLACE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(LOCK))
            ours = "\n".join([str(ROOT / "src"), *site.getsitepackages()])
            (own,) = PLACE.glob("lib/python*/site-packages")
            (own / "capline.pth").write_text(f"{ours}\n", encoding="utf-8")
            stamp.write_text(made_from, encoding="utf-8")
    return PLACE / "bin" / "python"


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{PLACE} could not be made:\n{done.stderr[-2000:]}")
