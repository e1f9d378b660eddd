"""Rate-limit headers of an HTTP response, so that a client knows when to retry.

    draft-11  RateLimit-Policy: "api-minute";q=60;w=60     draft-ietf-httpapi-ratelimit-headers-11: every limit,
              RateLimit: "api-minute";r=3;t=7              units left, seconds until there are more
    legacy    X-RateLimit-Limit, -Remaining, -Reset        the one limit that the answer names, seconds until all of it
                                                           is back
    both      Retry-After                                  on a refusal: seconds until this cost would fit

Seconds are whole and rounded up, so never too early. A time that never comes is left out. So are limits in shadow, and
quiet hours, which have no quota; their end is in Retry-After. In an outage no limit was read, so there are no headers
of limits; `Insurance` has those of its shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from capline.model.errors import InvalidValueError, quoted
from capline.model.limit import CalendarLimit, Limit, QuietHours

if TYPE_CHECKING:
    from capline.model.limit_status import LimitStatus

HeaderForm = Literal["draft-11", "legacy"]
HEADER_FORMS = ("draft-11", "legacy")

LARGEST_INTEGER = 999_999_999_999_999
"""A structured field's integer has at most 15 digits (RFC 9651)."""


def headers_of(
    form: HeaderForm, states: Sequence[LimitStatus], limit: Limit | None, *, allowed: bool, retry_after_us: int | None
) -> dict[str, str]:
    """Header names to values; raises `InvalidValueError` for a form that is not known."""
    if form == "draft-11" and len(states) == 1 and states[0].limit.quota and not states[0].shadow:
        (state,) = states  # nearly every answer
        item, policy = _fixed_one(state.name, state.limit)
        headers = {"RateLimit-Policy": policy, "RateLimit": _left(item, state)}
    else:
        if form not in HEADER_FORMS:  # pyright: ignore[reportUnnecessaryContains] - callers may be untyped
            raise InvalidValueError(f"headers come as {' or '.join(HEADER_FORMS)}, not {quoted(form)}")
        told = [state for state in states if not state.shadow]
        quotas = [state for state in told if state.limit.quota or not isinstance(state.limit, QuietHours)]
        headers = _draft_11(quotas) if form == "draft-11" else _legacy(quotas, limit)
    if not allowed and retry_after_us is not None:
        headers["Retry-After"] = str(max(1, _seconds(retry_after_us)))
    return headers


@lru_cache(1024)
def string_item(text: str) -> str:
    """A string of a structured field (RFC 9651); all but printable ASCII is percent-encoded UTF-8."""
    said = "".join(
        character if " " <= character <= "~" else "".join(f"%{byte:02X}" for byte in character.encode())
        for character in text
    )
    return '"' + said.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _draft_11(states: Sequence[LimitStatus]) -> dict[str, str]:
    if not states:
        return {}
    items, policies = _fixed(tuple([(state.name, state.limit) for state in states]))
    left = ", ".join([_left(item, state) for item, state in zip(items, states, strict=True)])
    return {"RateLimit-Policy": policies, "RateLimit": left}


def _left(item: str, state: LimitStatus) -> str:
    frees_us, remaining = state.frees_in_us, min(state.remaining, LARGEST_INTEGER)
    return f"{item};r={remaining};t={-(-frees_us // 1_000_000)}" if frees_us else f"{item};r={remaining}"


@lru_cache(maxsize=1024)
def _fixed_one(name: str, limit: Limit) -> tuple[str, str]:
    items, policies = _fixed(((name, limit),))
    return items[0], policies


@lru_cache(maxsize=1024)
def _fixed(limits: tuple[tuple[str, Limit], ...]) -> tuple[tuple[str, ...], str]:
    """What is the same for every subject: the item of each limit, and RateLimit-Policy."""
    items = tuple(string_item(name) for name in _unlike(limits))
    policies: list[str] = []
    for item, (_, limit) in zip(items, limits, strict=True):
        # A calendar day or week has no fixed length.
        window = "" if isinstance(limit, CalendarLimit) else f";w={_seconds(limit.window_us)}"
        policies.append(f"{item};q={min(limit.quota, LARGEST_INTEGER)}{window}")
    return items, ", ".join(policies)


def limit_names(states: Iterable[LimitStatus]) -> list[str]:
    """A name for each limit, as in the header `RateLimit` but without quotes."""
    return _unlike((state.name, state.limit) for state in states)


def _unlike(limits: Iterable[tuple[str, Limit]]) -> list[str]:
    """Distinct names: the policy's and the window, then a number where that repeats."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for called, limit in limits:
        name = "-".join(part for part in (called, str(limit).partition("/")[2].replace(" ", "")) if part)
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return names


def _legacy(states: Sequence[LimitStatus], limit: Limit | None) -> dict[str, str]:
    """Of the limit that the answer names; of quiet hours, the tightest one beside them."""
    named = [state for state in states if state.limit == limit] or states
    if not named:
        return {}
    tightest = min(named, key=lambda state: state.remaining)
    return {
        "X-RateLimit-Limit": str(tightest.limit.quota),
        "X-RateLimit-Remaining": str(tightest.remaining),
        "X-RateLimit-Reset": str(_seconds(tightest.whole_in_us)),
    }


def _seconds(span_us: int) -> int:
    """Whole seconds, not less than the span."""
    return -(-span_us // 1_000_000)
