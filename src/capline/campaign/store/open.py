"""Opens the campaign store that a URL names: a file of this machine, or Redis or Valkey servers."""

import time
from collections.abc import Callable

from capline.campaign.store.protocol import CampaignStore
from capline.campaign.store.redis_store import RedisCampaignStore
from capline.campaign.store.server import PATIENCE_S, Server
from capline.campaign.store.sqlite_store import SqliteCampaignStore, sqlite_path
from capline.model.errors import CampaignError


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
        path = sqlite_path(url)
        if not make and not path.is_file():
            raise CampaignError(
                f"{url}: no such file; begin a campaign there with: capline campaign enqueue --queue {url}"
            )
        return SqliteCampaignStore(path, make=make, alone=False if work else None)
    return RedisCampaignStore(Server(url, patience_s=patience_s, pause=pause))
