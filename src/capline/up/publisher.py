"""A part of `capline up`: builds the users' segments and publishes a version a minute.

    python -m capline.up.publisher URL READY SCALE      READY is a file that is there once the first version is

Each minute one user more moves from `new` to `active`, so that versions differ; after the last the users start anew.
"""

import os
import shutil
import sys
import time
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

from capline.model.errors import CaplineError
from capline.segment import IdSet, Publisher, Snapshot, write_snapshot
from capline.up.files import SCALES, Scale

EVERY_S = 60.0
RETRY_S = 2.0
_KEPT = 10


def main() -> None:
    """Publish until it is ended; a failure is reported, and tried again."""
    url, ready, name = sys.argv[1:]
    scale = SCALES[name]
    moved = 0
    while True:
        try:
            _make_bucket(url)
            version = _publish(url, scale, moved)
        except (CaplineError, OSError) as error:
            sys.stderr.write(f"not published, to be tried again: {' '.join(str(error).split())}\n")
            time.sleep(RETRY_S)
            continue
        sys.stderr.write(f"published {version}\n")
        Path(ready).touch()
        moved = (moved + 1) % len(scale.segments["new"])
        time.sleep(EVERY_S)


def _make_bucket(url: str) -> None:
    """Make the bucket on our own server, which may have come back empty; one that is there already is fine."""
    endpoint, parts = os.environ.get("AWS_ENDPOINT_URL"), urlsplit(url)
    if parts.scheme != "s3" or endpoint is None:
        return
    request = urllib.request.Request(f"{endpoint}/{parts.netloc}", method="PUT")  # noqa: S310 - http, by our own plan
    with suppress(HTTPError), urllib.request.urlopen(request, timeout=10):  # noqa: S310 - as above # nosec B310
        pass


def _publish(url: str, scale: Scale, moved: int) -> str:
    new, active, lapsed = scale.segments.values()
    edge = new.stop - moved
    ranges = {"new": (new.start, edge - 1), "active": (edge, active[-1]), "lapsed": (lapsed.start, lapsed[-1])}
    sets = {name: IdSet.from_range(*ends) for name, ends in ranges.items()}
    version = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    snapshot = Path("snapshot")
    shutil.rmtree(snapshot, ignore_errors=True)
    write_snapshot(Snapshot(sets, version), snapshot)
    with Publisher(url) as publisher:
        publisher.publish(snapshot)
        publisher.collect(keep=_KEPT)
    return version


if __name__ == "__main__":
    main()
