"""A part ends with who started it, also where that one ended before the kernel could be asked."""

import os
import subprocess
import sys

from capline.up import with_parent


def test_it_becomes_the_program() -> None:
    assert start(os.getpid()).stdout == "here\n"


def test_where_the_parent_is_gone_nothing_is_started() -> None:
    done = start(os.getppid())  # not who starts it
    assert (done.returncode, done.stdout) == (1, "")


def start(parent: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-I", "-S", with_parent.__file__, str(parent), "/bin/echo", "here"]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
