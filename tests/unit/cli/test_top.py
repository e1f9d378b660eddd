"""The screen of `capline top` on terminals of every width: what is shown is whole, and what has no room is left out."""

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from capline.cli.render.top import screen

SERVER: dict[str, Any] = {
    "server": "127.0.0.1:10157",
    "up": True,
    "keys": 1_049,
    "memory_bytes": 3_340_000,
    "max_memory_bytes": None,
    "replicas": 1,
    "replica_lag_s": 0,
    "evicted_keys": 0,
    "save_failed": False,
    "unsaved_s": None,
    "script_mean_us": 157.0,
    "faults": {},
}
POLICY: dict[str, Any] = {"policy": "employees-api", "allowed": 5_000, "refused": 3_000, "shadow": 20}
SEEN: dict[str, Any] = {
    "at": 1_800_000_000,
    "away": "",
    "rates": {"allowed": 5.0, "refused": 3.0, "errors": 0.0},
    "seconds": {"median": 0.0025, "p99": 0.025},
    "store": {"up": True},
    "policy_count": 1,
    "attention": [],
    "policies": [POLICY | {"limits": [{"limit": "100/minute"}, {"limit": "2000/day"}]}],
    "policies_over_s": 300.0,
    "servers": [SERVER],
    "campaigns": [{"campaign": "summer", "state": "running", "policy": "promo", "done": 1_000, "audience": 10_000_000}],
}


@pytest.mark.parametrize("width", [36, 44, 60, 80, 160])
def test_what_is_shown_is_whole(width: int) -> None:
    out = StringIO()
    Console(file=out, width=width).print(screen(SEEN, "http://127.0.0.1:8081"))
    text = out.getvalue()
    assert "…" not in text
    words = ["employees-api", "100/minute", "127.0.0.1:10157", "running"]
    words += ["3.34 MB"] * (width >= 44) + ["37.4%", "10,000,000"] * (width >= 60)
    words += ["157 us", "in shadow", "0.2%"] * (width >= 80)
    assert [word for word in words if word not in text] == []
