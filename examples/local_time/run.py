"""A digest for readers all over the world: once a day of theirs, three times a week of theirs, and never at night.

Nobody is asked again and again: a refusal says when the next digest may go, to the second, and until then the reader
is left alone. A clock that is set by hand plays a week in which Berlin changes to summer time; with the real one
(no `clock=`) the loop would sleep instead.

    python run.py            who gets it when, in their own time
    python run.py --json     the same as one document
"""

from __future__ import annotations

import argparse
import heapq
import json
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from capline import Limiter, ManualClock

READERS = {
    "ann": None,  # the policy's zone
    "bob": "America/New_York",
    "chi": "Asia/Tokyo",
    "dev": "Asia/Kolkata",
    "eva": "America/Sao_Paulo",
}
BEGIN = datetime(2024, 3, 28, 12, tzinfo=UTC)
DAYS = 7
SECOND_US = 1_000_000


def send_for_a_week() -> list[tuple[str, datetime]]:
    """Every digest that goes out: to whom, and when on their own clock."""
    clock = ManualClock(start_us=round(BEGIN.timestamp()) * SECOND_US)
    end_us = clock.now_us() + DAYS * 86_400 * SECOND_US
    sent: list[tuple[str, datetime]] = []
    due = [(clock.now_us(), name) for name in READERS]
    with Limiter.from_file(Path(__file__).parent / "policies.yaml", "memory://", clock=clock) as limiter:
        own_zone = limiter.policies["digest"].zone
        while due[0][0] < end_us:
            at_us, name = heapq.heappop(due)
            clock.advance_us(max(0, at_us - clock.now_us()))
            zone = READERS[name]
            if limiter.decide("digest", name, zone=zone):
                sent.append((name, datetime.fromtimestamp(clock.now_us() / SECOND_US, ZoneInfo(zone or own_zone))))
            wait_us = limiter.peek("digest", name, zone=zone).retry_after_us
            heapq.heappush(due, (clock.now_us() + (wait_us or 0), name))
    return sent


def main() -> None:
    """Play the week and print it."""
    parser = argparse.ArgumentParser(description="A week of digests, each in its reader's own time.")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    sent = send_for_a_week()
    if arguments.json:
        print(json.dumps([{"reader": name, "at": at.isoformat(), "zone": str(at.tzinfo)} for name, at in sent]))
        return
    for name, at in sent:
        print(f"{at.astimezone(UTC):%a %H:%M} UTC   {name}   {at:%a %Y-%m-%d %H:%M %Z}")


if __name__ == "__main__":
    main()
