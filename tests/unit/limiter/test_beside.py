"""A limiter of other policies on the same store, and the question whether a policy is there."""

import pytest

from capline import Attempt, Insurance, Limiter, ManualClock, Policy
from capline.model.errors import InvalidValueError, StoreClosedError, StoreUnavailableError, UnknownNameError
from capline.observe.event import Decided
from capline.store.local.memory import MemoryStore


def test_both_count_on_one_store_and_each_has_its_own_policies() -> None:
    with Limiter("memory://", [Policy("mail", ["2/day"])], clock=ManualClock(), namespace="shop") as limiter:
        other = limiter.beside([Policy("push", ["1/day"], log="mail"), Policy("sms", ["1/day"])])
        assert limiter.decide("mail", "ann")
        assert not other.decide("push", "ann")
        assert other.decide("sms", "ann")
        assert other.namespace == "shop"
        with pytest.raises(UnknownNameError, match="sms"):
            limiter.decide("sms", "ann")


def test_it_caches_no_refusal_and_raises_in_an_outage() -> None:
    with Limiter("memory://", [Policy("mail", ["0/day"])], deny_cache=10, on_store_error=Insurance(hosts=1)) as limiter:
        other = limiter.beside([Policy("push", ["0/day"])])
        assert [limiter.decide("mail", "ann").origin for _ in range(2)] == ["store", "deny-cache"]
        assert [other.decide("push", "ann").origin for _ in range(2)] == ["store", "store"]


def test_limits_that_come_with_the_call_raise_in_an_outage_as_its_policies_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(MemoryStore, "step", away)
    monkeypatch.setattr(MemoryStore, "compiled", away)
    with Limiter("memory://", [Policy("mail", ["1/day"])], on_store_error="allow") as limiter:
        other = limiter.beside([Policy("push", ["1/day"])])
        assert limiter.decide("call", "ann", limits=["1/day"]).origin == "fallback"
        with pytest.raises(StoreUnavailableError):
            other.decide("call", "ann", limits=["1/day"])


class _Told:
    """Notes what observers are told: the event's policy, and of each outcome the policy, the limit and the verdict."""

    def __init__(self) -> None:
        self.of: list[tuple[object, ...]] = []

    def decided(self, event: Decided) -> None:
        """As of `Observer`."""
        self.of += [(event.policy, one.policy, one.limit, one.verdict, count) for one, count in event.counts.items()]


def test_under_a_title_observers_are_told_of_one_policy_without_limits() -> None:
    told = _Told()
    with Limiter("memory://", observers=[told]) as limiter:
        other = limiter.beside([], title="any").beside([Policy(f"p{number}", ["1/day"]) for number in (1, 2)])
        other.decide("p1", "ann")
        other.decide_all([Attempt("p1", "ann"), Attempt("p2", "ann")])
        other.decide_batch([Attempt("p1", "bob"), Attempt("p2", "bob")])
        assert told.of == [
            ("any", "any", None, "allowed", 1),
            ("any", "any", None, "refused", 1),
            ("any", "any", None, "allowed", 2),
        ]


def test_as_many_subjects_in_one_attempt_as_it_is_made_for() -> None:
    with Limiter("memory://") as limiter:
        parts = [Attempt("p", f"user:{number}") for number in range(17)]
        assert limiter.beside([Policy("p", ["1/day"])], most_joint=17).decide_all(parts).allowed
        with pytest.raises(InvalidValueError, match="over 1 to 16 subjects"):
            limiter.beside([Policy("p", ["1/day"])]).decide_all(parts)


def test_it_opens_nothing_and_closing_it_closes_the_store_of_both() -> None:
    limiter = Limiter("memory://", [Policy("mail", ["2/day"])])
    other = limiter.beside([Policy("push", ["1/day"])])
    other.close()
    with pytest.raises(StoreClosedError):
        other.decide("push", "ann")


def test_a_policy_that_is_not_there_is_an_error_that_lists_those_that_are() -> None:
    with Limiter("memory://", [Policy("mail", ["2/day"]), Policy("push", ["1/day"], log="mail")]) as limiter:
        limiter.check_policy("push")
        assert limiter.log_of("push") == limiter.log_of("mail") == "mail"
        for ask in (limiter.check_policy, limiter.log_of):
            with pytest.raises(UnknownNameError, match="mail, push"):
                ask("sms")


def test_each_finds_what_the_other_began_beside_a_log() -> None:
    """As in a rolling update, where processes of the policy before refund hits that they did not make."""
    with Limiter("memory://", [Policy("promo", ["9/day"], channels={"push": ["2/day"]})]) as limiter:
        other = limiter.beside([Policy("promo", ["9/day"])])
        assert not other.refund("promo", "u", 1)
        hit = limiter.charge("promo", "u", 2, channel="push").hit
        assert other.settle("promo", "u", hit, 1)
        assert [state.used for state in limiter.usage("promo", "u", channel="push")] == [1, 1]
        assert other.erase("u") == 2
        assert [state.used for state in limiter.usage("promo", "u", channel="push")] == [0, 0]
