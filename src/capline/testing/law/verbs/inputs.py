"""Bad input: the fitting exception, and nothing recorded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from capline.limiter.arguments.records import PastHit
from capline.limiter.outage.insurance import Insurance
from capline.model.attempt import Attempt
from capline.model.errors import CaplineError, StoreError, UnknownNameError
from capline.testing.setting import START_US, StoreSetting

ONE = (Attempt("p", "s"),)

VERBS: dict[str, Callable[[Any], Any]] = {
    "decide": lambda limiter: limiter.decide("p", "s"),
    "decide with an id": lambda limiter: limiter.decide("p", "s", 2, id="x"),
    "peek": lambda limiter: limiter.peek("p", "s"),
    "refund": lambda limiter: limiter.refund("p", "s", 5),
    "schedule": lambda limiter: limiter.schedule("p", "s"),
    "schedule not at once": lambda limiter: limiter.schedule("p", "s", not_before=1),
    "decide_all": lambda limiter: limiter.decide_all(ONE),
    "peek_all": lambda limiter: limiter.peek_all(ONE),
    "refund_all": lambda limiter: limiter.refund_all(ONE, [5]),
    "decide_batch": lambda limiter: limiter.decide_batch(ONE),
    "decide_batch of none": lambda limiter: limiter.decide_batch([]),
    "decide_many": lambda limiter: limiter.decide_many("p", ["s"]),
    "decide_many with a receipt": lambda limiter: limiter.decide_many("p", ["s"], receipt="r"),
    "peek_many": lambda limiter: limiter.peek_many("p", ["s"]),
    "refund_many": lambda limiter: limiter.refund_many("p", ["s"], [5]),
    "explain": lambda limiter: limiter.explain("p", "s"),
    "export": lambda limiter: list(limiter.export()),
    "load": lambda limiter: limiter.load([PastHit("p", "s", START_US)]),
    "erase": lambda limiter: limiter.erase("s"),
    "sweep": lambda limiter: limiter.sweep(),
    "now_us": lambda limiter: limiter.now_us(),
}

LISTED: dict[str, Callable[[Any, Any], Any]] = {
    "decide_batch": lambda limiter, values: limiter.decide_batch(values),
    "decide_all": lambda limiter, values: limiter.decide_all(values),
    "peek_all": lambda limiter, values: limiter.peek_all(values),
    "refund_all": lambda limiter, values: limiter.refund_all(values, [5]),
    "hits of refund_all": lambda limiter, values: limiter.refund_all(ONE, values),
    "decide_many": lambda limiter, values: limiter.decide_many("p", values),
    "peek_many": lambda limiter, values: limiter.peek_many("p", values),
    "refund_many": lambda limiter, values: limiter.refund_many("p", values, [5]),
    "hits of refund_many": lambda limiter, values: limiter.refund_many("p", ["s"], values),
    "codes": lambda limiter, values: limiter.decide_many(
        "p", ["s"], segment=["new"], codes=0 if values is None else values
    ),
    "export": lambda limiter, values: list(limiter.export(values)),
    "ids of explain": lambda limiter, values: limiter.explain("p", "s", ids=values),
}


class InputLaw(StoreSetting):
    """The checks."""

    @pytest.mark.parametrize("subject", ["", "\ud800", "x" * 513, -1, 2**64, None, 1.0, True, b"x", ["x"]])
    def test_a_subject_that_cannot_be_one(self, subject: Any) -> None:
        with pytest.raises(CaplineError) as caught:
            self.one("1/day").decide("p", subject)
        assert isinstance(caught.value, ValueError | TypeError)

    def test_a_policy_may_be_named_like_a_route_and_a_subject_be_of_any_length(self) -> None:
        names = ["GET:/search/now", "/" * 64, "a:b", "a/b"]
        policies = [self.policy(name, ["1/day"], channels={"b": ["1/day"]}) for name in names]
        limiter = self.limiter(*policies, long_subjects="hash")
        subject = "k" * 4096
        for name in names:
            answers = [limiter.decide(name, subject, channel="b") for _ in range(2)]
            assert [answer.allowed for answer in answers] == [True, False]
        records = list(limiter.export())
        assert len({record.log for record in records}) == 2 * len(names)
        assert limiter.load(records).added == 0
        assert limiter.erase(subject) == 2 * len(names)

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

    def test_a_closed_limiter_says_so_whatever_it_is_asked(self) -> None:
        limiter = self.one("1/day")
        limiter.decide("p", "s")
        limiter.close()
        limiter.close()
        for name, verb in VERBS.items():
            with pytest.raises(StoreError, match="was closed; make a new one") as caught:
                verb(limiter)
            assert "\n" not in str(caught.value), name

    @pytest.mark.parametrize("choice", ["allow", "deny", Insurance(hosts=1)])
    def test_a_closed_limiter_is_no_outage(self, choice: Any) -> None:
        limiter = self.limiter(self.policy("p", ["1/day"]), on_store_error=choice, deny_cache=10)
        limiter.decide("p", "s")
        limiter.decide("p", "s")
        limiter.close()
        for verb in ("decide", "decide_batch", "decide_many", "schedule", "peek"):
            with pytest.raises(StoreError, match="closed"):
                VERBS[verb](limiter)

    # --- many at once -----------------------------------------------------------------------------------------

    def test_what_is_no_attempt_among_others_fails_no_other(self) -> None:
        limiter = self.one("1/day")
        wrong: list[Any] = [None, 5, "p", {"policy": "p"}, ("p", "a"), object()]
        answers = limiter.decide_batch([Attempt("p", "a"), *wrong, Attempt("p", "b")])
        assert answers[0].allowed
        assert answers[-1].allowed
        for item, answer in zip(wrong, answers[1:], strict=False):
            assert isinstance(answer, CaplineError)
            assert isinstance(answer, TypeError)
            for verb in (limiter.decide_all, limiter.peek_all):
                with pytest.raises(CaplineError, match="an attempt is like Attempt"):
                    verb([Attempt("p", "c"), item])
        assert limiter.decide("p", "c")

    def test_what_is_no_list_is_one_line_that_says_so(self) -> None:
        limiter = self.one("1/day", by_segment={"new": ["1/day"]})
        for name, verb in LISTED.items():
            for wrong in (None, 5, 1.5, "text", b"bytes", object(), iter(["s"]), np.array(5)):
                if name == "export" and wrong is None:
                    continue
                with pytest.raises(CaplineError) as caught:
                    verb(limiter, wrong)
                assert isinstance(caught.value, TypeError), name
                assert "\n" not in str(caught.value), name
        assert limiter.explain("p", "s").hits == ()

    def test_records_come_one_by_one(self) -> None:
        limiter = self.one("3/day")
        for wrong in (None, 5):
            with pytest.raises(CaplineError, match="records come one by one"):
                limiter.load(wrong)
        assert limiter.load(iter([PastHit("p", "s", START_US)])).added == 1

    # --- one segment, one zone for each row -------------------------------------------------------------------

    def test_one_segment_for_each_row(self) -> None:
        limiter = self.limiter(
            *(self.policy(name, ["2/day"], by_segment={"new": ["1/day"], "vip": ["5/day"]}) for name in ("p", "q"))
        )
        subjects = ["a", "b", "a", "c", "a", "b"]
        segments = [None, "new", "vip", "vip", None, "new"]
        many = limiter.decide_many("p", subjects, segment=segments)
        assert list(many) == [limiter.decide("q", s, segment=name) for s, name in zip(subjects, segments, strict=True)]
        peeked = limiter.peek_many("p", subjects, segment=tuple(segments))
        assert list(peeked) == [limiter.peek("q", s, segment=name) for s, name in zip(subjects, segments, strict=True)]
        nones: list[dict[str, Any]] = [{"segment": []}, {"segment": [], "codes": []}, {"segment": ["vip"], "codes": []}]
        for none in (*nones, {}):
            assert len(limiter.decide_many("p", [], **none)) == len(limiter.peek_many("p", [], **none)) == 0
        assert len(limiter.decide_many("p", [], segment=[], receipt="r")) == 0
        bad = limiter.decide_many("p", ["d", "", "e"], segment=["vip", "new", "new"])
        assert (bad.allowed.tolist(), bad.remaining.tolist(), list(bad.errors)) == ([True, False, True], [4, 0, 0], [1])

    def test_one_segment_and_one_zone_for_each_row(self) -> None:
        limits = {"by_segment": {"new": ["1/calendar-day"]}}
        limiter = self.limiter(*(self.policy(name, ["2/calendar-day"], **limits) for name in ("p", "q")))
        rows = [("a", None, "UTC"), ("b", "new", "Asia/Tokyo"), ("c", "new", None), ("a", None, "Asia/Tokyo")] * 2
        subjects, segments, zones = zip(*rows, strict=True)
        many = limiter.decide_many("p", subjects, segment=segments, zone=zones)
        assert list(many) == [limiter.decide("q", s, segment=name, zone=zone) for s, name, zone in rows]
        one_zone = limiter.decide_many("p", ["x", "y"], segment=["new", None], zone="Asia/Tokyo")
        assert one_zone.remaining.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("names", "says"),
        [
            ({"segment": ["new"]}, "1 names of a segment for 2 subjects"),
            ({"zone": ["UTC"] * 3}, "3 names of a zone for 2 subjects"),
            ({"segment": ["new", 5]}, "segment number 1 is a name or None, not 5"),
            ({"segment": 5}, "names of a segment come as a list"),
            ({"segment": ["new", "?"]}, "has no segment '\\?'"),
            ({"codes": [0, 0]}, "codes point into a list of names"),
            ({"segment": ["new"], "codes": ["a", "b"]}, "codes point into the list of 1"),
            ({"segment": ["new"], "codes": [[0], [0, 1]]}, "codes are whole numbers"),
        ],
    )
    def test_names_that_do_not_fit_the_rows(self, names: dict[str, Any], says: str) -> None:
        limiter = self.one("1/day", by_segment={"new": ["1/day"]})
        with pytest.raises(CaplineError, match=says):
            limiter.decide_many("p", ["s", "t"], **names)
        assert limiter.peek_many("p", ["s", "t"]).allowed.all()
