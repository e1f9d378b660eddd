"""Renews a batch's lease in the background, however long a step takes."""

import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from functools import partial

from capline.campaign.store.open import open_store
from capline.campaign.store.records import Claimed
from capline.model.errors import CampaignError


class LeaseKeeper:
    """Renews the lease of a batch every second, in a thread with a connection of its own.

    Failures are ignored: each step renews the lease itself and notices when it is lost.
    """

    def __init__(self, url: str, interval_s: float) -> None:
        self._open = partial(open_store, url, patience_s=0.0)
        self._interval_s = interval_s
        self._over = threading.Event()
        self._taken: Claimed | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._renew, name="capline-lease", daemon=True)
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def renewing(self, claimed: Claimed) -> Generator[None]:
        """Renew the batch's lease inside the block."""
        self._taken = claimed
        try:
            yield
        finally:
            self._taken = None

    def _renew(self) -> None:
        with closing(self._open()) as store:
            while not self._over.wait(self._interval_s):
                claimed = self._taken
                if claimed is not None:
                    with suppress(CampaignError):
                        store.renew(claimed)
