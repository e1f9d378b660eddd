"""What goes on in a thread with a store of its own: the renewal of a batch's lease, however long a step takes."""

import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress

from capline.campaign.store.open import open_store
from capline.campaign.store.protocol import CampaignStore
from capline.campaign.store.records import Claimed
from capline.model.errors import CampaignError


@contextmanager
def repeating(url: str, name: str, interval_s: float, what: Callable[[CampaignStore], object]) -> Generator[None]:
    """In the block, call `what` with the store of this URL at once, and each `interval_s` seconds: in a thread."""
    over = threading.Event()

    def repeat() -> None:
        with open_store(url, patience_s=0.0) as store:
            what(store)
            while not over.wait(interval_s):
                what(store)

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class LeaseKeeper:
    """Renews the lease of a batch every `interval_s` seconds, in the block of `running`.

    Failures are ignored: each step renews the lease itself and notices when it is lost.
    """

    def __init__(self, url: str, interval_s: float) -> None:
        self._url, self._interval_s = url, interval_s
        self._claimed: Claimed | None = None

    def running(self) -> AbstractContextManager[None]:
        """Start the thread, which ends with the block."""
        return repeating(self._url, "capline-lease", self._interval_s, self._renew)

    @contextmanager
    def renewing(self, claimed: Claimed) -> Generator[None]:
        """Renew the batch's lease inside the block."""
        self._claimed = claimed
        try:
            yield
        finally:
            self._claimed = None

    def _renew(self, store: CampaignStore) -> None:
        if (claimed := self._claimed) is not None:
            with suppress(CampaignError):
                store.renew(claimed)
