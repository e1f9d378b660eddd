"""The servers that benchmarks run against: those of the tests, which are in a checkout and not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tests.kit.servers import KINDS, Server, cluster, free_port, single

__all__ = ["KINDS", "Server", "cluster", "free_port", "single"]
