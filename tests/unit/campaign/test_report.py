from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline.campaign.report import OutcomeCounts
from capline.campaign.store.records import RunFacts, State
from capline.campaign.store.rows import (
    DELIVERED,
    FAILED,
    NOT_KNOWN,
    PENDING,
    REFUNDED,
    REFUSED,
    RETRY,
    UNSURE,
    BatchRows,
)

STOPPED = State(0, 0, 0, 0, False, False, 0, 2_000_000, False, (), {}, 0, 0, 0, "")
SEGMENTS = (None, "active", "new")
LIMITS = ("1/day", "2/week")
HOUR_US = 3_600_000_000

rows = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([REFUSED, PENDING, DELIVERED, RETRY, FAILED, REFUNDED, UNSURE, NOT_KNOWN]),
        st.integers(0, 1),
        st.sampled_from([-1, 1, HOUR_US, 50 * HOUR_US, 7 * 24 * HOUR_US]),
        st.integers(0, 2),
    ),
    max_size=30,
)


def batch(number: int, given_rows: list[tuple[int, int, int, int, int]]) -> BatchRows:
    columns = [np.array([row[i] for row in given_rows], np.int64) for i in range(5)]
    codes, state, limit, retry_us, reason = columns
    return BatchRows(
        number,
        1_000 * number,
        LIMITS,
        np.arange(len(given_rows), dtype=np.uint32),
        codes.astype(np.uint16),
        limit.astype(np.int16),
        np.full(len(given_rows), -1, np.int64),
        retry_us,
        state.astype(np.uint8),
        np.zeros(len(given_rows), np.uint8),
        reason.astype(np.uint8),
        ["HTTP 410", "HTTP 503"],
    )


@settings(max_examples=size(15, 100), deadline=None)
@given(st.lists(rows, max_size=4))
def test_counts_are_as_one_would_count_by_hand(batches: list[list[tuple[int, int, int, int, int]]]) -> None:
    everyone = [row for part in batches for row in part]
    sizes = Counter(row[0] for row in everyone)
    counts = OutcomeCounts([(name, sizes[code] + 10) for code, name in enumerate(SEGMENTS)])
    for number, part in enumerate(batches):
        counts.add(batch(number, part))
    report = counts.report(RunFacts("c", "p", None, 1, len(everyone) + 30, (), 0, "r"), STOPPED)

    for code, part in enumerate(report.segments):
        mine = [row for row in everyone if row[0] == code]
        states = Counter(row[1] for row in mine)
        assert part.segment == SEGMENTS[code]
        assert (part.audience, part.undecided) == (len(mine) + 10, 10)
        assert (part.sent, part.refused) == (states[DELIVERED], states[REFUSED])
        assert part.failed == states[FAILED] + states[REFUNDED]
        assert part.pending == states[PENDING] + states[RETRY] + states[UNSURE]
        assert part.not_known == states[NOT_KNOWN]
        assert part.refused_by == Counter(LIMITS[row[2]] for row in mine if row[1] == REFUSED)
        assert part.audience == part.sent + part.refused + part.failed + part.not_known + part.pending + part.undecided
    assert report.total.sent == sum(row[1] == DELIVERED for row in everyone)
    failed = [row[4] for row in everyone if row[1] in (FAILED, REFUNDED) and row[4]]
    assert report.failures == Counter(("", "HTTP 410", "HTTP 503")[reason] for reason in failed)
    doubted = [row[4] for row in everyone if row[1] == NOT_KNOWN and row[4]]
    assert report.doubts == Counter(("", "HTTP 410", "HTTP 503")[reason] for reason in doubted)
    total = report.total
    assert report.per_s == (total.sent + total.refused + total.failed + total.not_known) / 2

    refused = [(number, row[3]) for number, part in enumerate(batches) for row in part if row[1] == REFUSED]
    at_us = sorted(1_000 * number + retry_us for number, retry_us in refused if retry_us >= 0)
    if not refused:
        assert report.next_eligible is None
        return
    assert report.next_eligible is not None
    assert report.next_eligible.never == sum(retry_us < 0 for _, retry_us in refused)
    if at_us:
        middle = at_us[(len(at_us) - 1) // 2]
        eligible = report.next_eligible
        assert (eligible.earliest_us, eligible.median_us, eligible.latest_us) == (at_us[0], middle, at_us[-1])
        assert sum(count for _, count in eligible.by_time) == len(at_us)
        assert eligible.by == ("hour" if at_us[-1] // HOUR_US - at_us[0] // HOUR_US < 48 else "day")


def test_instants_are_reported_in_utc() -> None:
    counts = OutcomeCounts([(None, 2)])
    counts.add(batch(0, [(0, REFUSED, 0, 30 * HOUR_US, 0), (0, REFUSED, 0, 31 * HOUR_US + 1, 0)]))
    eligible = counts.report(RunFacts("c", "p", None, 1, 2, (), 0)).next_eligible
    assert eligible is not None
    assert (eligible.earliest, eligible.latest) == ("1970-01-02T06:00:00Z", "1970-01-02T07:00:00.000001Z")
    assert eligible.by_time == [("1970-01-02T06:00:00Z", 1), ("1970-01-02T07:00:00Z", 1)]
