"""The fast core of a replay equals the specification, event by event, for every policy that it says it covers."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline import Policy
from capline.limiter.policies.rules import Rules
from capline.replay.count import ALLOWED, UnitCore
from capline.window.log import Log
from capline.window.rule import step

WINDOWS = (1, 2, 3, 10, 50)
LIMIT_SETS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from(WINDOWS)), min_size=1, max_size=3, unique_by=lambda limit: limit[1]
).map(lambda limits: [f"{quota}/{window}us" for quota, window in limits])
EVENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 1)), max_size=80)
SEGMENTS = (None, "vip")


@settings(max_examples=size(25, 200), derandomize=True, deadline=None)
@given(LIMIT_SETS, LIMIT_SETS, EVENTS, st.integers(0, 80))
@example(["1/1us"], ["3/50us"], [(0, 1, 0)] * 10 + [(0, 1, 1)], 10)  # more history than the first segment needs
@example(["2/10us"], ["1/1us"], [(0, later, 0) for later in (0, 9, 1, 9, 1, 1)], 6)  # a look right after a trim
def test_each_answer_is_the_specification_s(
    limits: list[str], vip: list[str], events: list[tuple[int, int, int]], cut: int
) -> None:
    policy = Policy("p", limits, by_segment={"vip": vip})
    assert UnitCore.covers(policy)
    core = UnitCore(policy)
    at_us, rows = 0, list[tuple[int, int, int]]()
    for subject, later_us, kind in events:
        at_us += later_us
        rows.append((subject, at_us, kind))
    answers: list[int] = []
    # The second segment comes up later, with a quota that may be larger.
    core.add_kind(None)
    first = [(subject, now_us, 0) for subject, now_us, _ in rows[:cut]]
    rows[:cut] = first
    for number, part in enumerate((rows[:cut], rows[cut:])):
        if number:
            core.add_kind("vip")
        subjects, times, kinds = [[row[column] for row in part] for column in range(3)]
        answers += core.decide(subjects, times, kinds)
    rules = Rules([policy])
    bound = [rules.rule("p", segment, None) for segment in SEGMENTS]
    logs: dict[int, tuple[Log, ...]] = {}
    for (subject, now_us, kind), answer in zip(rows, answers, strict=True):
        logs[subject], decision = step(logs.get(subject, (Log(),)), bound[kind], 1, now_us)
        assert decision.allowed == (answer == ALLOWED)
        if not decision.allowed:
            first = next(state.limit for state in decision.limits if not state.remaining)
            assert core.refusals[answer] == (SEGMENTS[kind], first, decision.limit)
