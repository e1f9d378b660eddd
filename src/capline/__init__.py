"""capline: exact, fast, durable sliding-window limits.

>>> from capline import Limiter, Policy
>>> limiter = Limiter("memory://", policies=[Policy("promo", ["3/day", "10/week"])])
>>> limiter.decide("promo", "user:42").remaining
2
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capline.config.configuration import Configuration
    from capline.limiter.aio import AsyncLimiter
    from capline.limiter.arguments.records import Loaded, LogRecord, PastHit
    from capline.limiter.explain import Explanation
    from capline.limiter.limiter import Limiter
    from capline.limiter.outage.insurance import Insurance
    from capline.model.attempt import Attempt
    from capline.model.clock import Clock, ManualClock, SystemClock
    from capline.model.decision import Decision, Joint, LimitExceeded
    from capline.model.errors import (
        AccessError,
        CampaignError,
        CaplineError,
        ConfigConflictError,
        IdConflictError,
        InvalidTypeError,
        InvalidValueError,
        NoStoreError,
        PolicyError,
        SegmentError,
        StoreClosedError,
        StoreDamagedError,
        StoreError,
        StoreFullError,
        StoreUnavailableError,
        StoreUnknownError,
        StoreVersionError,
        UnknownNameError,
    )
    from capline.model.limit import Limit
    from capline.model.limit_status import LimitStatus
    from capline.model.policy import Policy
    from capline.policy.file import PolicyFileError
    from capline.store.columns import Decisions
else:
    from capline.support.lazy import lazy_names

    # Each is loaded with what it needs when it is first asked for, and all of capline by nobody.
    __getattr__ = lazy_names(
        __name__,
        {
            "capline.config.configuration": ("Configuration",),
            "capline.limiter.aio": ("AsyncLimiter",),
            "capline.limiter.explain": ("Explanation",),
            "capline.limiter.outage.insurance": ("Insurance",),
            "capline.limiter.limiter": ("Limiter",),
            "capline.limiter.arguments.records": ("Loaded", "LogRecord", "PastHit"),
            "capline.model.attempt": ("Attempt",),
            "capline.model.clock": ("Clock", "ManualClock", "SystemClock"),
            "capline.model.decision": ("Decision", "Joint", "LimitExceeded"),
            "capline.model.errors": (
                "AccessError",
                "CampaignError",
                "CaplineError",
                "ConfigConflictError",
                "IdConflictError",
                "InvalidTypeError",
                "InvalidValueError",
                "NoStoreError",
                "PolicyError",
                "SegmentError",
                "StoreClosedError",
                "StoreDamagedError",
                "StoreError",
                "StoreFullError",
                "StoreUnavailableError",
                "StoreUnknownError",
                "StoreVersionError",
                "UnknownNameError",
            ),
            "capline.model.limit": ("Limit",),
            "capline.model.limit_status": ("LimitStatus",),
            "capline.model.policy": ("Policy",),
            "capline.policy.file": ("PolicyFileError",),
            "capline.store.columns": ("Decisions",),
        },
    )

__version__ = "0.1.0"

__all__ = [
    "AccessError",
    "AsyncLimiter",
    "Attempt",
    "CampaignError",
    "CaplineError",
    "Clock",
    "ConfigConflictError",
    "Configuration",
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
    "LimitStatus",
    "Limiter",
    "Loaded",
    "LogRecord",
    "ManualClock",
    "NoStoreError",
    "PastHit",
    "Policy",
    "PolicyError",
    "PolicyFileError",
    "SegmentError",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreUnavailableError",
    "StoreUnknownError",
    "StoreVersionError",
    "SystemClock",
    "UnknownNameError",
    "__version__",
]


def __dir__() -> list[str]:
    return __all__
