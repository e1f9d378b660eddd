"""`python -m proof.articles`: every case, the table, and docs/explanation/articles.md; exit 1 where one is wrong."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from tests.kit.servers import single

from proof.articles.cases import outcomes
from proof.articles.page import PAGE, markdown, text
from proof.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Play on a server of our own."""
    about = "Play published limiters and capline on the cases that break limiters; write docs/explanation/articles.md."
    Options("python -m proof.articles", about, "").parse_args(arguments)
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
