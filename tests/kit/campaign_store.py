"""What the tests of campaign stores share: a run of three batches, and what becomes of them."""

from collections.abc import Iterable

import numpy as np

from capline.campaign.part import Part
from capline.campaign.store.packed import span_of
from capline.campaign.store.protocol import Batch, CampaignStore
from capline.campaign.store.records import Claimed, Input, RunFacts, StoredRun
from capline.campaign.store.rows import DELIVERED, PENDING, BatchRows

FACTS = RunFacts("sale", "promo", None, 1, 9, ((None, 9),), 1_000_000, "0123456789abcdef")
RUN = StoredRun(FACTS, (Input("cost", "aa", "1"),), "campaign: sale\n", "/sale.yaml", "", b"policies: {}", (), (), 3)
DAY_US = 86_400_000_000


def part(number: int) -> Part:
    return Part(number, np.arange(3 * number, 3 * number + 3, dtype=np.uint32), np.zeros(3, np.uint16), {})


def fill(queue: CampaignStore, run: StoredRun, batches: Iterable[Batch]) -> int:
    """Put batches, as who prepares; how many there are then."""
    name = run.facts.campaign
    held = None if queue.state(name).is_whole else queue.claim(name, "maker", 60)
    return [0, *queue.put(run, batches, held.fence if isinstance(held, Claimed) else 0)][-1]


def put(queue: CampaignStore, *numbers: int) -> int:
    return fill(queue, RUN, ((number, 3, part(number).pack(), 0, span_of(part(number).ids)) for number in numbers))


def filled(queue: CampaignStore) -> None:
    assert queue.begin(RUN)
    assert put(queue, 0, 1, 2) == 3


def claimed(queue: CampaignStore, worker: str, lease_s: float = 60) -> Claimed:
    found = queue.claim("sale", worker, lease_s)
    assert isinstance(found, Claimed), found
    return found


def rows_of(batch: Claimed, state: int = PENDING, count: int = 3) -> BatchRows:
    ids = part(batch.number).ids[:count]
    none = np.full(count, -1, np.int64)
    small = np.zeros(count, np.uint8)
    states = np.full(count, state, np.uint8)
    return BatchRows(
        batch.number,
        5,
        ("1/day",),
        ids,
        np.zeros(count, np.uint16),
        np.zeros(count, np.int16),
        none,
        none,
        states,
        small,
        small,
    )


def finish(queue: CampaignStore, batch: Claimed) -> bool:
    return queue.record(batch, rows_of(batch, DELIVERED), decided=True)
