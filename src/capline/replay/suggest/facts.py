"""A suggestion as plain values, for JSON: of the command line, and of the service."""

from collections.abc import Callable, Sequence
from typing import Any

from capline.model.limit import Limit
from capline.model.subject import Subject
from capline.replay.suggest.suggestion import Choice, Price, Suggestion, rows_of


def suggestion_facts(
    found: Suggestion, name_of: Callable[[int], Subject], most: int | None = None, in_force: Sequence[Limit] = ()
) -> dict[str, Any]:
    """One suggestion with every quota, or `most` of them; `name_of` gives the subject of a code."""
    facts: dict[str, Any] = {
        "events": found.events,
        "subjects": found.subjects,
        "windows": {choice.window: _window(choice, name_of, most, in_force) for choice in found.choices},
        "together": {"limits": list(map(str, found.together.limits)), **_price(found.together)},
    }
    if found.frontier:
        names = [choice.window for choice in found.choices]
        facts["frontier"] = [
            [{name: limit.quota for name, limit in zip(names, price.limits, strict=True)}, price.events, price.subjects]
            for price in found.frontier
        ]
    return facts


def _window(
    choice: Choice, name_of: Callable[[int], Subject], most: int | None, in_force: Sequence[Limit]
) -> dict[str, Any]:
    events, subjects, worst = (column.tolist() for column in choice.curve)
    shown = range(1, len(events) + 1) if most is None else rows_of(choice, most)
    facts: dict[str, Any] = {
        "quotas": [(quota, events[quota - 1], subjects[quota - 1]) for quota in shown],
        "most_of_one": [worst[quota - 1] for quota in shown],
        "suggested": {"limit": str(choice.limit), **_price(choice.price)},
        "top_refused": [[name_of(code), refused, of] for code, refused, of in choice.top],
    }
    for limit in in_force:
        if limit.window_us == choice.limit.window_us and limit.quota:
            at = min(limit.quota, len(events)) - 1
            facts["in_force"] = {"limit": str(limit), "refused_events": events[at], "refused_subjects": subjects[at]}
    return facts


def _price(price: Price) -> dict[str, int]:
    return {"refused_events": price.events, "refused_subjects": price.subjects}
