"""Bad input: the fitting exception, and nothing recorded."""

from __future__ import annotations

from typing import Any

import pytest

from capline.model.errors import CaplineError, StoreError, UnknownNameError
from capline.testing.setting import StoreSetting

__all__ = ["InputLaw"]


class InputLaw(StoreSetting):
    """The checks."""

    @pytest.mark.parametrize("subject", ["", "\ud800", "x" * 513, -1, 2**64, None, 1.0, True, b"x", ["x"]])
    def test_a_subject_that_cannot_be_one(self, subject: Any) -> None:
        with pytest.raises(CaplineError) as caught:
            self.one("1/day").decide("p", subject)
        assert isinstance(caught.value, ValueError | TypeError)

    @pytest.mark.parametrize("cost", [0, -1, 1.0, float("nan"), True, "1", None, 2**53, 10**18])
    def test_a_cost_that_cannot_be_one(self, cost: Any) -> None:
        limiter = self.one("1/day")
        with pytest.raises(CaplineError) as caught:
            limiter.decide("p", "s", cost)
        assert isinstance(caught.value, ValueError | TypeError)
        assert limiter.decide("p", "s")

    @pytest.mark.parametrize(
        "names",
        [
            {"policy": "?"},
            {"policy": ["p"]},
            {"segment": "?"},
            {"channel": "?"},
            {"channel": ""},
            {"id": ""},
            {"id": 5},
            {"id": "x" * 513},
        ],
    )
    def test_a_name_that_nobody_defined(self, names: dict[str, Any]) -> None:
        limiter = self.one("1/day", by_segment={"new": ["1/day"]})
        policy = names.get("policy", "p")
        with pytest.raises(CaplineError):
            limiter.decide(policy, "s", **{name: value for name, value in names.items() if name != "policy"})
        assert limiter.peek("p", "s").remaining == 0

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(UnknownNameError, match="it has: active, new"):
            self.one("1/day", by_segment={"new": ["1/day"], "active": ["1/day"]}).decide("p", "s", segment="actve")

    def test_a_closed_limiter_says_so(self) -> None:
        limiter = self.one("1/day")
        limiter.decide("p", "s")
        limiter.close()
        limiter.close()
        if not self.url.startswith("memory:"):
            with pytest.raises(StoreError, match="closed"):
                limiter.decide("p", "s")
