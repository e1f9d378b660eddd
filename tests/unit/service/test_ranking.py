"""Who is refused and who uses most: compared with exact counts, also where not all are kept."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from capline.service.record.kept import Row
from capline.service.record.ranking import NAMED, Group, ranking

DECISIONS = st.lists(
    st.tuples(
        st.sampled_from("pq"), st.integers(0, 30), st.sampled_from([None, "1/day", "9/week", ""]), st.integers(1, 5)
    ),
    max_size=300,
)
Decision = tuple[str, int, str | None, int]


def rows_of(decisions: list[Decision]) -> list[list[Row]]:
    rows = [
        Row((policy, None, None, None, cost, 0, ""), 2**51 + place, subject, limit is None, None, limit or None)
        for place, (policy, subject, limit, cost) in enumerate(decisions)
    ]
    return [rows[at : at + 7] for at in range(0, len(rows), 7)]


@given(DECISIONS, st.sampled_from([100_000, 40, 10, 1]))
def test_a_count_is_short_by_no_more_than_it_says(decisions: list[Decision], most: int) -> None:
    exact: Counter[tuple[Group, int]] = Counter()
    totals: Counter[Group] = Counter()
    for policy, subject, limit, cost in decisions:
        group, units = (policy, limit), cost if limit is None else 1
        exact[group, subject] += units
        totals[group] += units
    found = ranking(rows_of(decisions), most)
    assert (found.decisions, found.totals) == (len(decisions), totals)
    assert found.since_us == (2**51 if decisions else None)
    for group, named in found.most.items():
        for subject, count in named:
            assert 0 <= exact[group, subject] - count <= found.short_by  # pyright: ignore[reportArgumentType] - numbers here
    for (group, subject), count in exact.items():
        named = found.most.get(group, [])
        least = named[-1][1] if len(named) == NAMED else 0
        assert subject in dict(named) or count - found.short_by <= least, "who is not named had no more"
    if most >= len(exact):
        assert found.short_by == 0
