"""capline: exact, fast, durable sliding-window limits.

>>> from capline import Limiter, Policy
>>> limiter = Limiter("memory://", policies=[Policy("promo", ["3/day", "10/week"])])
>>> limiter.decide("promo", "user:42").remaining
2
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capline.config.configuration import Configuration as Configuration
    from capline.limiter.aio import AsyncLimiter as AsyncLimiter
    from capline.limiter.arguments.records import Loaded as Loaded
    from capline.limiter.arguments.records import LogRecord as LogRecord
    from capline.limiter.arguments.records import PastHit as PastHit
    from capline.limiter.explain import Explanation as Explanation
    from capline.limiter.limiter import Limiter as Limiter
    from capline.limiter.outage.insurance import Insurance as Insurance
    from capline.model.attempt import Attempt as Attempt
    from capline.model.clock import Clock as Clock
    from capline.model.clock import ManualClock as ManualClock
    from capline.model.clock import SystemClock as SystemClock
    from capline.model.decision import Decision as Decision
    from capline.model.decision import Joint as Joint
    from capline.model.decision import LimitExceeded as LimitExceeded
    from capline.model.errors import AccessError as AccessError
    from capline.model.errors import CampaignError as CampaignError
    from capline.model.errors import CaplineError as CaplineError
    from capline.model.errors import ConfigConflictError as ConfigConflictError
    from capline.model.errors import IdConflictError as IdConflictError
    from capline.model.errors import InvalidTypeError as InvalidTypeError
    from capline.model.errors import InvalidValueError as InvalidValueError
    from capline.model.errors import NoStoreError as NoStoreError
    from capline.model.errors import PolicyError as PolicyError
    from capline.model.errors import SegmentError as SegmentError
    from capline.model.errors import StoreClosedError as StoreClosedError
    from capline.model.errors import StoreDamagedError as StoreDamagedError
    from capline.model.errors import StoreError as StoreError
    from capline.model.errors import StoreFullError as StoreFullError
    from capline.model.errors import StoreUnavailableError as StoreUnavailableError
    from capline.model.errors import StoreUnknownError as StoreUnknownError
    from capline.model.errors import StoreVersionError as StoreVersionError
    from capline.model.errors import UnknownNameError as UnknownNameError
    from capline.model.limit import Limit as Limit
    from capline.model.limit_status import LimitStatus as LimitStatus
    from capline.model.policy import Policy as Policy
    from capline.policy.file import PolicyFileError as PolicyFileError
    from capline.store.columns import Decisions as Decisions
else:
    from capline.support.lazy import lazy_names

    # Each is loaded with what it needs when it is first asked for, and all of capline by nobody.
    __getattr__, __all__, __dir__ = lazy_names(
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
        "__version__",
    )

__version__ = "0.1.0"
