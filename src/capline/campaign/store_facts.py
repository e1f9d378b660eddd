"""Which store a campaign uses and what it holds: shown before anything is sent, and stored with the run.

A URL says where a store is, but not whether it is still the same store. For that the embedded store has an identity, a
random number from its creation. Servers have none, so their URL must do.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from capline.campaign.ledger.inputs import Input
from capline.campaign.report import StoreFacts
from capline.model.instant import instant_text
from capline.store.redis.io.url import safe_url

if TYPE_CHECKING:
    from capline.limiter.limiter import Limiter

__all__ = ["new_store", "store_facts", "store_input"]


def store_facts(url: str, limiter: Limiter) -> StoreFacts:
    """The facts of an open store; takes twenty microseconds."""
    stats = limiter.stats()
    if "logs" not in stats:
        return StoreFacts(safe_url(url), None, None, None)
    return StoreFacts(safe_url(url), stats["logs"], instant_text(stats["begun_us"]), not stats["logs"])


def new_store(url: str) -> StoreFacts:
    """The facts of a store that does not exist yet."""
    return StoreFacts(safe_url(url), 0, None, is_new=True)


def store_input(limiter: Limiter) -> Input:
    """The store's identity as an input of a run."""
    stats = limiter.stats()
    digest = hashlib.sha256(str(stats.get("identity", "")).encode()).hexdigest()
    return Input("store identity", digest, f"made {instant_text(stats['begun_us'])}" if "begun_us" in stats else "")
