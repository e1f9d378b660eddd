"""Which store a campaign is on, and what it holds: told before anything is sent, and kept with the run.

A store's URL says where it is; whether it is still the one that was there is said by its identity, a number drawn when
it was made. The embedded store has one. Servers have none to tell: theirs is the URL.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from capline.campaign.ledger.ledger import Input
from capline.campaign.report import StoreFacts, instant_text
from capline.store.redis.io.url import safe_url

if TYPE_CHECKING:
    from capline.limiter.limiter import Limiter

__all__ = ["new_store", "store_facts", "store_input"]


def store_facts(url: str, limiter: Limiter) -> StoreFacts:
    """What an open store says of itself; twenty microseconds."""
    stats = limiter.stats()
    if "logs" not in stats:
        return StoreFacts(safe_url(url), None, None, None)
    return StoreFacts(safe_url(url), stats["logs"], instant_text(stats["begun_us"]), not stats["logs"])


def new_store(url: str) -> StoreFacts:
    """What is to be said of a store that is not there yet."""
    return StoreFacts(safe_url(url), 0, None, is_new=True)


def store_input(limiter: Limiter) -> Input:
    """The store's identity as an input of a run."""
    stats = limiter.stats()
    digest = hashlib.sha256(str(stats.get("identity", "")).encode()).hexdigest()
    return Input("store identity", digest, f"made {instant_text(stats['begun_us'])}" if "begun_us" in stats else "")
