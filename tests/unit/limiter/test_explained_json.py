"""An explanation as a dict for JSON: what the command line and the service both show."""

from capline import Limiter, ManualClock, Policy


def test_used_and_left_are_of_now_as_usage_says_them_and_a_decision_is_after_it() -> None:
    with Limiter("memory://", [Policy("p", ["3/s", "9/h"])], clock=ManualClock(5_000_000)) as limiter:
        for used in range(4):
            why = limiter.explain("p", "u")
            stated = [(limit.used, limit.remaining) for limit in why.limits]
            assert stated == [(used, 3 - used), (used, 9 - used)]
            assert stated == [(limit.used, limit.remaining) for limit in limiter.usage("p", "u")]
            assert why.decision.remaining == max(0, 2 - used)
            limiter.decide("p", "u")


def test_an_explanation_is_a_dict_with_the_id_only_where_it_is_known() -> None:
    with Limiter("memory://", [Policy("p", ["2/s"])], clock=ManualClock(5_000_000)) as limiter:
        limiter.decide("p", "u")
        limiter.decide("p", "u", id="order:1")
        told = limiter.explain("p", "u", ids=["order:1"]).as_dict("new")
    assert (told["policy"], told["subject"], told["segment"], told["zone"]) == ("p", "u", "new", None)
    assert told["hits"] == [{"stamp_us": 5_000_000, "units": 1}, {"stamp_us": 5_000_001, "units": 1, "id": "order:1"}]
    decision = told["decision"]
    assert isinstance(decision, dict)
    assert (decision["allowed"], decision["limit"], decision["origin"]) == (False, "2/second", "store")
