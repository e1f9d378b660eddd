"""What the specification takes over from numbers: the stores are held to it, so it is shown by itself."""

from capline.model.clock import ManualClock
from capline.model.policy import Policy
from capline.testing.reference import Reference


def test_sums_give_back_what_every_window_took_over() -> None:
    clock = ManualClock(10**15)
    reference = Reference([Policy("p", ["5/20us", "11/70us"], algorithm="gcra")], clock, keeps_rows=True)
    reference.decide("p", "s", 5)
    clock.advance_us(20)
    reference.decide("p", "s", 5)
    reference.use([Policy("p", ["5/20us", "11/70us"], algorithm="bucketed", granularity="5us")])
    clock.advance_us(5)
    assert not reference.decide("p", "s", 2)
    carried = reference.hits("p", "s")[0][:2]
    assert [reference.refund("p", "s", stamp_us, units) for stamp_us, units in carried] == [True, True]
