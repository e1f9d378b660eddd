"""Takes over what changed while the service runs: policies, tokens, certificates, each whole or not at all.

They are checked every second, and at once on SIGHUP. A refused change is logged once and counted, and the last good one
stays in force.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from capline.model.errors import CaplineError

if TYPE_CHECKING:
    from capline.service.metrics.registry import Metrics

EVERY_S = 1.0

log = logging.getLogger("capline.service")


class Followed(NamedTuple):
    """Something that may change: `reload` returns whether it did, and raises a `CaplineError` if it is refused."""

    name: str
    reload: Callable[[], bool]


async def follow(followed: list[Followed], metrics: Metrics, now: asyncio.Event) -> None:
    """Look at all of them every second, and when `now` is set, until it is cancelled."""
    refused: dict[str, str] = {}
    for source in followed:
        metrics.reloaded(source.name, refused=False, changed=False)
    while True:
        try:
            async with asyncio.timeout(EVERY_S):
                await now.wait()
        except TimeoutError:
            pass
        now.clear()
        for source in followed:
            try:
                changed = await asyncio.to_thread(source.reload)
            except CaplineError as error:
                if refused.get(source.name) != str(error):
                    refused[source.name] = str(error)
                    metrics.reloaded(source.name, refused=True, changed=True)
                    log.warning("%s not reloaded, the last good one goes on: %s", source.name, error)
                continue
            is_mended = refused.pop(source.name, None) is not None
            if changed or is_mended:
                metrics.reloaded(source.name, refused=False, changed=changed)
                log.info("%s reloaded", source.name)
