"""An explanation as a dict for JSON: what the command line and the service both show."""

from __future__ import annotations

from capline import Limiter, ManualClock, Policy


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
