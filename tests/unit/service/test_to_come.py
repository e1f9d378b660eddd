"""What is to come, of a service with more campaigns than a page: each page is bounded, and simulating rests."""

import asyncio
from typing import Any, cast

from capline.service.access.tokens import Token
from capline.service.console.campaigns import ToCome
from capline.service.console.history import Latest

WHO = Token("", ("read",), "", "")


class Told:
    """Stands for the verbs: ten thousand campaigns, of which the first loses a place to each other."""

    def __init__(self) -> None:
        self.asked = 0

    def check(self, *_: object) -> None:
        """Anybody may ask."""

    async def __call__(self, *_: object, history: str) -> dict[str, Any]:
        self.asked += 1
        campaigns = [{"campaign": f"c{number:05}"} for number in range(10_000)]
        conflicts = [{"campaign": "c00000", "taken_by": each["campaign"]} for each in campaigns[1:]]
        return {"history": history == "true", "campaigns": campaigns, "conflicts": conflicts, "unread": {}}


def test_a_page_has_a_bound_whatever_waits() -> None:
    pages = ToCome(cast("Any", Told()))

    async def view(after: str | None) -> dict[str, Any]:
        return await pages.view(WHO, after, "false")

    first = asyncio.run(view(None))
    assert (len(first["campaigns"]), first["count"], first["next"]) == (50, 10_000, "c00049")
    assert (len(first["conflicts"]), first["conflict_count"]) == (200, 9_999)
    second = asyncio.run(view("c00049"))
    assert (second["campaigns"][0]["campaign"], second["conflicts"]) == ("c00050", [])
    last = asyncio.run(view("c09989"))
    assert ([each["campaign"] for each in last["campaigns"]][-1], last["next"]) == ("c09999", None)


def test_what_took_long_is_not_asked_again_for_as_many_times_as_long() -> None:
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.02)
        return asked

    async def look(rests: int) -> None:
        latest = Latest[int](0.0, 0, rests)
        for _ in range(3):
            await latest.renew(ask)

    asyncio.run(look(1_000))
    assert asked == 1
    asyncio.run(look(0))
    assert asked == 4
