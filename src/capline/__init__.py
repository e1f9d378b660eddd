"""capline: exact, fast, durable sliding-window limits.

>>> from capline import Limiter, Policy
>>> limiter = Limiter("memory://", policies=[Policy("promo", ["3/day", "10/week"])])
>>> limiter.decide("promo", "user:42").remaining
2
"""

from capline.limiter.aio import AsyncLimiter
from capline.limiter.explain import Explanation
from capline.limiter.insurance import Insurance
from capline.limiter.limiter import Limiter
from capline.limiter.records import Loaded, LogRecord, PastHit
from capline.model.attempt import Attempt
from capline.model.clock import Clock, ManualClock, SystemClock
from capline.model.decision import Decision, Joint
from capline.model.errors import (
    CampaignError,
    CaplineError,
    IdConflictError,
    InvalidTypeError,
    InvalidValueError,
    LimitExceeded,
    PolicyError,
    SegmentError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreVersionError,
    UnknownNameError,
)
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.store.columns import Decisions

__version__ = "0.1.0"

__all__ = [
    "AsyncLimiter",
    "Attempt",
    "CampaignError",
    "CaplineError",
    "Clock",
    "Decision",
    "Decisions",
    "Explanation",
    "IdConflictError",
    "Insurance",
    "InvalidTypeError",
    "InvalidValueError",
    "Joint",
    "Limit",
    "LimitExceeded",
    "Limiter",
    "Loaded",
    "LogRecord",
    "ManualClock",
    "PastHit",
    "Policy",
    "PolicyError",
    "SegmentError",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreVersionError",
    "SystemClock",
    "UnknownNameError",
    "__version__",
]
