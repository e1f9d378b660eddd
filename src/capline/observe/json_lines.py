"""Decisions as lines of JSON through `logging`, one for each call.

    {"verb":"decide","policy":"promo","segment":null,"channel":"push","allowed":0,"refused":1,"errors":0,
     "would_allow":0,"would_refuse":0,"limits":{"3/day":1},"origins":{"store":1},"seconds":0.000012,"left_out":0}

Peeks decide nothing, so they count only in `would_allow` and `would_refuse`. `limits` has refusals by binding limit,
`seconds` may be null, and `left_out` is the number of calls since the last line that were not logged.
"""

import logging
from collections import deque
from collections.abc import Callable
from threading import Lock
from time import monotonic

import msgspec

from capline.model.errors import InvalidTypeError, InvalidValueError
from capline.observe.event import Decided
from capline.observe.protocol import Observer
from capline.support.fork import wait_at_fork
from capline.support.override import override

MOST_LINES = 100_000


class LogObserver(Observer):
    """Logs each call as a line of JSON, at `level` on `logger` (default `capline.decisions`).

    `lines_per_second`  at most so many (1 to 100,000) in any second
    `allowed_ratio`     the share (0 to 1) of plain calls to log; a call is plain if the store allowed all of it.
                        Refusals, errors and fallback answers are always logged
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.INFO,
        lines_per_second: int = 100,
        allowed_ratio: float = 1.0,
        now: Callable[[], float] = monotonic,
    ) -> None:
        if type(lines_per_second) is not int:
            raise InvalidTypeError(f"lines_per_second is a whole number, not {lines_per_second!r}")
        if not 1 <= lines_per_second <= MOST_LINES:
            raise InvalidValueError(f"lines_per_second is 1 to {MOST_LINES}, not {lines_per_second}")
        if isinstance(allowed_ratio, bool) or not isinstance(allowed_ratio, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped callers
            raise InvalidTypeError(f"allowed_ratio is a number from 0 to 1, not {allowed_ratio!r}")
        if not 0 <= allowed_ratio <= 1:
            raise InvalidValueError(f"allowed_ratio is a number from 0 to 1, not {allowed_ratio}")
        self._logger = logger or logging.getLogger("capline.decisions")
        self._level = level
        self._ratio = allowed_ratio
        self._now = now
        self._stamps: deque[float] = deque(maxlen=lines_per_second)
        self._plain = 0
        self._left_out = 0
        self._lock = Lock()
        wait_at_fork(self._lock)

    @override
    def decided(self, event: Decided) -> None:
        if not self._logger.isEnabledFor(self._level):
            return
        plain = event.by_origin == {"store": event.size} and event.allowed + event.would_allow == event.size
        with self._lock:
            if not self._has_line(plain):
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
        self._logger.log(self._level, "%s", _line(event, left_out))

    def _has_line(self, plain: bool) -> bool:
        if plain:
            self._plain += 1
            if int(self._plain * self._ratio) == int((self._plain - 1) * self._ratio):
                return False
        stamps, now = self._stamps, self._now()
        if len(stamps) == stamps.maxlen and now - stamps[0] < 1:
            return False
        stamps.append(now)
        return True


_FIELDS = "verb", "policy", "segment", "channel", "allowed", "refused", "errors", "would_allow", "would_refuse"


def _line(event: Decided, left_out: int) -> str:
    fields = {
        **{name: getattr(event, name) for name in _FIELDS},
        "limits": {str(limit): count for limit, count in event.refused_by_limit.items()},
        "origins": event.by_origin,
        "seconds": event.seconds,
        "left_out": left_out,
    }
    return msgspec.json.encode(fields).decode()
