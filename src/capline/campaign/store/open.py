"""Opens the campaign store that a URL names: a file of this machine, or a Redis or Valkey server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from capline.campaign.store.redis_store import RedisCampaignStore
from capline.campaign.store.server import PATIENCE_S, Server
from capline.campaign.store.sqlite_store import SqliteCampaignStore, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from capline.campaign.store.protocol import CampaignStore


def open_store(
    url: str,
    *,
    work: bool = False,
    make: bool = False,
    patience_s: float = PATIENCE_S,
    pause: Callable[[float], object] = time.sleep,
) -> CampaignStore:
    """Open a campaign store. `work`: to deliver its batches; `make`: a file that is missing is made.

    `pause` is called with the seconds between two tries to reach a server, at most `patience_s` in all. Raises
    `CampaignError` for a URL that names none, and for a file that cannot be used.
    """
    if url.startswith("sqlite://"):
        return SqliteCampaignStore(sqlite_path(url), make=make, alone=False if work else None)
    return RedisCampaignStore(Server(url, patience_s=patience_s, pause=pause))
