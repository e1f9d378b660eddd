"""A storage for the package `limits`: flask-limiter and slowapi decide by capline, by a URL.

    import capline.contrib.limits                       # makes the URLs known
    Limiter(key_func, app=app, storage_uri="capline+lmdb:///var/lib/app/limits")

`capline+` stands before any store URL: memory, lmdb, redis, redis+cluster and so on; `async+capline+` for `limits.aio`,
which asks in threads. `moving-window`, `sliding-window-counter` and the default `fixed-window` are all an exact rolling
window here: a fixed window admits twice its quota around its end, and a storage learns the strategy only with the
first request, too late to refuse it. A cost with a fraction counts as the next whole number.

Each key is a subject, each (amount, period) a set of limits that comes with the call; `limits` itself still asks one
limit at a time, so a refusal by the second has used up the first. Only capline's own verbs decide all at once.
"""

from __future__ import annotations

import asyncio
import re
from hashlib import blake2b
from math import ceil
from typing import Any

from capline.limiter.limiter import Limiter
from capline.model.errors import CaplineError, InvalidValueError, StoreError
from capline.model.limit import Limit
from capline.store.redis.io.url import safe_url, server_schemes

try:
    from limits.aio.storage.base import MovingWindowSupport as AsyncMovingWindowSupport
    from limits.aio.storage.base import Storage as AsyncStorage
    from limits.limits import GRANULARITIES
    from limits.storage.base import MovingWindowSupport, Storage
except ImportError as error:
    raise CaplineError("capline.contrib.limits needs limits: pip install limits") from error

POLICY = "limits"
_PREFIX = "capline+"
_LONGEST_KEY_BYTES = 512
_SCHEMES = [f"{_PREFIX}{name}" for name in ("memory", "lmdb", *server_schemes())]
_END = re.compile(r".*/(\d+)/(\d+)/(\w+)", re.DOTALL)
"""How the key of a limit ends: amount, multiples, granularity."""


class CaplineStorage(Storage, MovingWindowSupport):
    """See the module's text. Options are `capline.Limiter`'s, like `on_store_error` or `namespace`."""

    STORAGE_SCHEME = _SCHEMES
    DEPENDENCIES = []  # noqa: RUF012

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: str | float | bool) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        given: dict[str, object] = dict(options)
        url = (uri or "capline+memory://").removeprefix(_PREFIX)
        self.storage = safe_url(url)  # `flask limiter config` shows it
        self._seen: set[tuple[int, int]] = set()
        self._limiter = Limiter(url, **given)  # pyright: ignore[reportArgumentType] - checked there

    @property
    def base_exceptions(self) -> type[Exception]:
        """What an outage raises."""
        return StoreError

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Whether `amount` more fit; consumes them if so."""
        if amount <= 0:
            return True
        self._seen.add((limit, expiry))
        return self._limiter.decide(POLICY, _subject(key), ceil(amount), limits=_limits(limit, expiry)).allowed

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """As `acquire_entry`: exact, where `sliding-window-counter` elsewhere estimates."""
        return self.acquire_entry(key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """No window before, whose weight would be added; the units in the window, and when the oldest leaves it."""
        began, units = self.get_moving_window(key, _limit_of(key)[0], expiry)
        return 0, 0.0, units, began + expiry - self._limiter.now_us() / 1e6

    def clear_sliding_window(self, key: str, _expiry: int) -> None:
        """As `clear`."""
        self.clear(key)

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest hit of the window was, or now if there is none; and how many units are in it."""
        seen = self._limiter.peek(POLICY, _subject(key), limits=_limits(limit, expiry))
        if not seen.limits:
            return self._limiter.now_us() / 1e6, 0  # an outage that the choice allows: nothing was read
        state = seen.limits[0]
        units = limit - state.remaining - seen.allowed
        now = self._limiter.now_us() / 1e6
        if units <= 0 or state.frees_in_us is None:
            return now, units
        return now + state.frees_in_us / 1e6 - expiry, units

    def clear(self, key: str) -> None:
        """Forget the key under its limit, which the key names."""
        limits = _limits(*_limit_of(key))
        self._limiter._with_limits(POLICY, limits).erase(_subject(key))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - its log has no policy of its own

    def check(self) -> bool:
        """Whether the store answers."""
        try:
            self._limiter.now_us()
        except StoreError:
            return False
        return True

    def reset(self) -> int:
        """Forget every key under the limits that this process has used; returns how many."""
        under = self._limiter._with_limits  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - as in `clear`
        return sum(under(POLICY, _limits(*limit)).flush(POLICY) for limit in tuple(self._seen))

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count `amount` more under the limit that the key names, if they fit.

        Returns the units in the window then, or one more than the limit where they do not fit.
        """
        limit, _ = _limit_of(key)
        if amount <= 0:
            return self.get(key)
        self._seen.add((limit, expiry))
        decision = self._limiter.decide(POLICY, _subject(key), ceil(amount), limits=_limits(limit, expiry))
        return limit - decision.remaining if decision.allowed else limit + 1

    def get(self, key: str) -> int:
        """The units in the window."""
        return self.get_moving_window(key, *_limit_of(key))[1]

    def get_expiry(self, key: str) -> float:
        """When the oldest of them leaves the window."""
        limit, expiry = _limit_of(key)
        return self.get_moving_window(key, limit, expiry)[0] + expiry

    def close(self) -> None:
        """Close the store."""
        self._limiter.close()


def _awaited(name: str) -> Any:
    async def method(self: AsyncCaplineStorage, *given: Any, **named: Any) -> Any:
        return await asyncio.to_thread(getattr(self.beside, name), *given, **named)

    return method


class AsyncCaplineStorage(AsyncStorage, AsyncMovingWindowSupport):
    """The same for `limits.aio`: each call is made in a thread. Its options are `CaplineStorage`'s."""

    STORAGE_SCHEME = [f"async+{name}" for name in _SCHEMES]  # noqa: RUF012 - as limits asks
    DEPENDENCIES = []  # noqa: RUF012

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self.beside = CaplineStorage((uri or "async+capline+memory://").removeprefix("async+"), **options)

    @property
    def base_exceptions(self) -> type[Exception]:
        """What an outage raises."""
        return StoreError

    acquire_entry = acquire_sliding_window_entry = _awaited("acquire_entry")
    get_moving_window = _awaited("get_moving_window")
    get_sliding_window = _awaited("get_sliding_window")
    clear = _awaited("clear")
    clear_sliding_window = _awaited("clear_sliding_window")
    incr, get, get_expiry = _awaited("incr"), _awaited("get"), _awaited("get_expiry")
    check, reset, aclose = _awaited("check"), _awaited("reset"), _awaited("close")


def _limit_of(key: str) -> tuple[int, int]:
    """The amount and seconds of the limit that this is a key of."""
    found = _END.fullmatch(key)
    granularity = None if found is None else GRANULARITIES.get(found[3])
    if found is None or granularity is None:
        raise InvalidValueError(f"{key!r} is not a key of limits: it ends with amount, multiples and period")
    return int(found[1]), int(found[2]) * granularity.GRANULARITY.seconds


def _limits(amount: int, seconds: int) -> tuple[Limit]:
    return (Limit(amount, seconds * 1_000_000),)


def _subject(key: str) -> str:
    """The key, or its hash where it is longer than a subject may be."""
    data = key.encode("utf-8", "surrogatepass")
    return key if len(data) <= _LONGEST_KEY_BYTES else f"hashed:{blake2b(data, digest_size=32).hexdigest()}"
