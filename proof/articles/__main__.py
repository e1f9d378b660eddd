"""`python -m proof.articles`: every case, the table, and docs/articles.md; exit 1 where one is wrong."""

from __future__ import annotations

import logging
import sys

from tests.kit.servers import single

from proof.articles.cases import outcomes
from proof.articles.page import PAGE, markdown, text


def main() -> int:
    """Play on a server of our own."""
    logging.getLogger("capline").setLevel(logging.ERROR)  # That server keeps nothing on disk, on purpose.
    with single("redis") as server:
        found = outcomes(server.url)
    print(text(found))
    PAGE.write_text(markdown(found), encoding="utf-8")
    wrong = [outcome.case.fault for outcome in found if not outcome.holds]
    print(f"\nNOT AS EXPECTED: {', '.join(wrong)}" if wrong else f"\n{PAGE.name} is written")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
