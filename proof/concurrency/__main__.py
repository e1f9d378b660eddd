"""`python -m proof.concurrency [--only TEXT]`: the long form, on every store; exit 1 where a promise was broken."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.servers import cluster, single

from proof.concurrency.callers import run
from proof.concurrency.cases import cases
from proof.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the long form; exit 1 where a promise was broken, with the records in the working directory."""
    parser = Options("python -m proof.concurrency", "Let many callers ask at once; check their records.", "--only lmdb")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose name holds this text")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases() if options.only in case.name]
    if not chosen:
        parser.error(f"no case has {options.only!r} in its name")
    totals, broken = [0, 0, 0, 0], 0
    with ExitStack() as stack:
        urls: dict[str, str] = {"memory": "memory://"}
        for case in chosen:
            if case.store not in urls:
                urls[case.store] = _url(case.store, stack)
            begun = time.monotonic()
            report, lines = run(case, urls[case.store])
            figures = report.attempts, report.hits, report.refused, report.excused
            totals = [total + one for total, one in zip(totals, figures, strict=True)]
            print(
                f"{case.name}: {'kept' if report else 'BROKEN'}; {report.attempts} attempts, {report.hits} hits, "
                f"{report.refused} refusals ({report.excused} excused); {time.monotonic() - begun:.1f} s",
                flush=True,
            )
            if not report:
                broken += 1
                path = Path(f"broken-{broken}.jsonl")
                path.write_text("\n".join(lines), encoding="utf-8")
                print(f"{report.text()}\nthe records are in {path}", flush=True)
    print(json.dumps(dict(zip(("attempts", "hits", "refused", "excused"), totals, strict=True)) | {"broken": broken}))
    return 1 if broken else 0


def _url(store: str, stack: ExitStack) -> str:
    """A store of this kind, which lives as long as the stack."""
    if store == "lmdb":
        return f"lmdb://{stack.enter_context(tempfile.TemporaryDirectory(prefix='capline-proof-'))}"
    kind, _, shape = store.partition(" ")
    server = stack.enter_context(cluster(kind, replicas=0) if shape else single(kind))
    return f"{server.url}?deadline=30s&bulk_deadline=30s"


if __name__ == "__main__":
    sys.exit(main())
