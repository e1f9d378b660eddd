"""A load hands a store the hits of one log together, and tells its caller of each record."""

import pytest

from capline import Limiter, ManualClock, PastHit, Policy
from capline.limiter.arguments.records import MOST_HITS, LoadProgress, LogRecord
from capline.model.errors import InvalidValueError
from capline.model.limit import LARGEST_QUOTA
from capline.store.protocol import Merge

NOW_US = 1_700_000_000_000_000
PROMO = Policy("promo", ["9000/day"], channels={"push": ["9/day"]})


def test_hits_of_one_log_are_one_merge() -> None:
    progress, rule, other = LoadProgress(), object(), object()
    merges = [
        *(Merge(rule, subject, [(at, 1, 0)]) for at in range(MOST_HITS + 1) for subject in (1, "1")),
        Merge(other, 1, [(1, 1, 0), (2, 1, 0)]),
        Merge(rule, 1, [(3, 1, 0)], exported=True),
    ]
    sizes = [(type(one.subject), one.exported, len(one.hits)) for one in progress.grouped(merges)]
    plain = [(kind, False, hits) for hits in (MOST_HITS, 1) for kind in (int, str)]
    assert sizes == [*plain, (int, False, 2), (int, True, 1)]


def test_each_record_is_told_of_by_its_number() -> None:
    with Limiter("memory://", [PROMO], clock=ManualClock(NOW_US)) as limiter:
        ahead = [PastHit("promo", subject, NOW_US + at) for at in (1, -1, 2) for subject in ("s", "t")]
        log = LogRecord("promo", "s", [(NOW_US - 9, 1, 0), (NOW_US + 3, 1, 0), (NOW_US + 4, 1, 0)])
        loaded = limiter.load([*ahead, log])
        told = "hit(s) later than the store's time were left out"
        assert loaded.faults == (*((number, f"1 {told}") for number in (1, 2, 5, 6)), (7, f"2 {told}"))
        assert (loaded.records, loaded.added, loaded.ahead) == (7, 3, 6)
        most = [PastHit("promo", "s", NOW_US - at, LARGEST_QUOTA - 9) for at in (20, 30)]
        with pytest.raises(InvalidValueError, match=r"^record 2 and 1 more of its log: "):
            limiter.load([PastHit("promo", "u", NOW_US - 1), *most])
        assert len(limiter.explain("promo", "s").hits) == 2
