"""Limits for a while are one commit: a process that is killed on the way leaves them with an end, or not at all."""

import subprocess
import sys
from itertools import count
from pathlib import Path

from capline import Configuration, Policy

DIES = 9
GIVE = """
import asyncio, os, sys
from capline import AsyncLimiter
from capline.config.local import LmdbBackend
from capline.service.access.tokens import Token
from capline.service.console.subject import SubjectPage
from capline.service.console.verbs import Verbs
from capline.service.http.table import routes_of
from capline.service.verbs.configuration import ConfigurationVerbs

url, writes = sys.argv[1], int(sys.argv[2])
run = LmdbBackend.run

def killed_after_so_many_writes(self, work, *, write=False):
    global writes
    done = run(self, work, write=write)
    writes -= write
    if write and not writes:
        os._exit(9)
    return done

async def give():
    async with AsyncLimiter("memory://", config=url) as limiter:
        LmdbBackend.run = killed_after_so_many_writes
        page = SubjectPage(Verbs(routes_of(ConfigurationVerbs(limiter, local=True))))
        assert await page.override(Token("ann", ("admin",), "", ""), "u", "promo", "9/day", "1") == {}

asyncio.run(give())
"""


def test_a_process_killed_at_any_write_leaves_no_limits_without_an_end(tmp_path: Path) -> None:
    left: list[bool] = []
    for writes in count(1):
        url = f"lmdb://{tmp_path / str(writes)}"
        with Configuration(url) as configuration:
            configuration.set_policies([Policy("promo", ["3/day"])])
        code = subprocess.run([sys.executable, "-c", GIVE, url, str(writes)], check=False).returncode
        with Configuration(url) as configuration:
            given = configuration.override_of("promo", "u")
        assert given is None or (given.before, given.value) == (["9/day"], None)
        left.append(given is not None)
        if code == 0:
            break
        assert code == DIES
    assert left == sorted(left), "from some write on they are there"
    assert len(left) > 1
    assert left[-1]
