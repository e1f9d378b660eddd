"""The conformance suite: what every store must do, by example. Random histories are the state machine's part.

Each check is a method; `conformance(url)` makes a pytest class of them for one store. Time is a `ManualClock`, so no
check sleeps, but for the few that run real threads and processes.
"""

from __future__ import annotations

from collections.abc import Callable

from capline.testing.law.bulk.at_once import AtOnceLaw
from capline.testing.law.bulk.counted import CountedLaw
from capline.testing.law.bulk.looked_up import LookedUpLaw
from capline.testing.law.bulk.many import ManyLaw
from capline.testing.law.bulk.receipts import ReceiptLaw
from capline.testing.law.joint.attempts import JointLaw
from capline.testing.law.joint.policies import JointPolicyLaw
from capline.testing.law.joint.slots import JointSlotLaw
from capline.testing.law.joint.time import JointTimeLaw
from capline.testing.law.limits.algorithms import AlgorithmLaw
from capline.testing.law.limits.calendars import CalendarLaw
from capline.testing.law.limits.changes import ChangeLaw
from capline.testing.law.limits.clocks import ClockLaw
from capline.testing.law.limits.denied import DeniedLaw
from capline.testing.law.limits.kept import KeptLaw
from capline.testing.law.limits.rule import RuleLaw
from capline.testing.law.limits.states import StateLaw
from capline.testing.law.verbs.charges import ChargeLaw
from capline.testing.law.verbs.hits import HitLaw
from capline.testing.law.verbs.inputs import InputLaw
from capline.testing.law.verbs.logs import LogLaw
from capline.testing.law.verbs.reservations import ReservationLaw
from capline.testing.law.verbs.slots import SlotLaw
from capline.testing.setting import Awaited

__all__ = ["Awaited", "StoreConformance", "conformance", "url_of"]


def conformance(
    url: str | Callable[[], str], *, asynchronous: bool = False, layout: str = "subject"
) -> type[StoreConformance]:
    """A test class that holds the store at this URL to the law; `{tmp}` becomes an empty directory for each test.

    A function in place of the URL is called by each test: it may start the server at the first. `asynchronous` asks
    through `AsyncLimiter` instead; every policy has this `layout`. A store whose URL names a file or a server is also
    asked by several processes at once; one that lives in a process is not. Each test has a namespace of its own, so
    that one server may serve them all.
    """
    members = {"store_url": staticmethod(url_of(url)), "asynchronous": asynchronous, "layout": layout}
    return type("Conformance", (StoreConformance,), members)


def url_of(url: str | Callable[[], str]) -> Callable[[], str]:
    """The URL as a function that gives it."""
    return url if callable(url) else lambda: url


class StoreConformance(
    RuleLaw,
    HitLaw,
    LogLaw,
    SlotLaw,
    ManyLaw,
    InputLaw,
    AtOnceLaw,
    CalendarLaw,
    ClockLaw,
    DeniedLaw,
    KeptLaw,
    ReceiptLaw,
    AlgorithmLaw,
    JointLaw,
    JointTimeLaw,
    JointSlotLaw,
    JointPolicyLaw,
    CountedLaw,
    LookedUpLaw,
    StateLaw,
    ChangeLaw,
    ChargeLaw,
    ReservationLaw,
):
    """Every check. A subclass names the store."""
