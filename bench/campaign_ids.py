"""Campaigns by kind of id: what preparing an audience takes, what its outcomes take, and how soon one is found.

Dense numbers, scattered numbers of 64 bits, and UUIDs, from one Parquet file in random order, each prepared and run in
a process of its own, whose peak of memory is told. The run decides in memory and sends to nobody, so that the figures
are the campaign's own. Checked: each id is in one batch and in no other, all are sent to, and the outcome of each that
is asked for is its own. Needs some 2 GB of disk and 3 GB of memory for 10,000,000 ids (`--ids`).
"""

from __future__ import annotations

import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _harness import Report, arguments, check

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = """\
campaign: bench
policies: policies.yaml
policy: promo
store: memory://
audience: {parquet: ids.parquet}
sender: {file: out}
"""
ASKED = 200
KINDS = ("dense numbers", "numbers of 64 bits", "UUIDs")


def main() -> None:
    """Write, prepare, run and ask, for each kind; print the table."""
    options = arguments(__doc__, ids=10_000_000)
    report = Report(f"Campaigns: {options.ids:,} ids")
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as directory:
            found: dict[str, float] = {}
            steps: tuple[Callable[[Path, int, str], dict[str, float]], ...] = (write, prepared, ran)
            for step in steps:
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                    found |= alone.submit(step, Path(directory), options.ids, kind).result()
        text = kind == KINDS[-1]
        report.add(f"{kind}: preparing, peak memory", found["peak_mb"], "MB", at_most=1000)
        report.add(f"{kind}: preparing", found["prepare_s"], "s of processor")
        report.add(f"{kind}: outcomes on disk, per 10M", found["store_mb"], "MB", at_most=250 if text else 60)
        report.add(f"{kind}: outcome of one", found["one_ms"], "ms", at_most=50)
    report.show(as_json=options.json)


def write(directory: Path, ids: int, kind: str) -> dict[str, float]:
    """An audience in random order."""
    # pyarrow ships no types: imported by name it is Any.
    pa: Any = import_module("pyarrow")
    random = np.random.default_rng(7)
    (directory / "policies.yaml").write_text("policies: {promo: {limits: [1/day]}}")
    (directory / "campaign.yaml").write_text(TEXT)
    with import_module("pyarrow.parquet").ParquetWriter(
        directory / "ids.parquet", pa.schema({"id": pa.string() if kind == KINDS[2] else pa.uint64()})
    ) as file:
        order = random.permutation(ids) if kind == KINDS[0] else None
        for start in range(0, ids, 1 << 18):
            count = min(1 << 18, ids - start)
            if kind == KINDS[2]:
                digits = random.bytes(16 * count).hex()
                some = [
                    "-".join((digits[at : at + 8], digits[at + 8 : at + 12], digits[at + 12 : at + 16],
                              digits[at + 16 : at + 20], digits[at + 20 : at + 32]))
                    for at in range(0, 32 * count, 32)
                ]  # fmt: skip
                column = pa.array(some)
            else:
                column = pa.array(
                    random.integers(0, 1 << 64, count, np.uint64)
                    if order is None
                    else order[start : start + count].astype(np.uint64)
                )
            file.write_table(pa.table({"id": column}))
    return {}


def prepared(directory: Path, ids: int, kind: str) -> dict[str, float]:
    """Read the audience; each of its ids is in one batch."""
    del kind  # the file says it
    from capline.campaign import load_campaign, prepare  # noqa: PLC0415 - its memory counts

    began = time.process_time()
    job = prepare(load_campaign(directory / "campaign.yaml"))
    prepare_s = time.process_time() - began
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    last, count = None, 0
    for number in range(job.batches):
        some = job.part(number).ids.tolist()
        check((last is None or last < some[0]) and all(a < b for a, b in pairwise(some)), "ascend")
        last, count = some[-1], count + len(some)
    check(count == ids, "an id is missing")
    return {"prepare_s": prepare_s, "peak_mb": peak_mb}


def ran(directory: Path, ids: int, kind: str) -> dict[str, float]:
    """Run it, and ask for some outcomes."""
    del kind
    from dataclasses import replace  # noqa: PLC0415 - its memory counts

    from capline import Limiter  # noqa: PLC0415
    from capline.campaign import Ledger, Stop, load_campaign, prepare, report_of, run  # noqa: PLC0415
    from capline.campaign.outcomes import outcome_of  # noqa: PLC0415

    job = prepare(load_campaign(directory / "campaign.yaml"))
    job = replace(job, file=replace(job.file, sender=replace(job.file.sender, sender=_Nobody())))
    stop = Stop()
    with Limiter("memory://", job.policies.policies) as limiter, Ledger.begin(directory / "run", job.run()) as ledger:
        run(job, limiter, ledger, stop)
    stop.close()
    with Ledger.read(directory / "run") as ledger:
        check(report_of(ledger).total.sent == ids, "not all were sent to")
        asked = np.random.default_rng(1).integers(0, ids, ASKED)
        subjects = job.audience.ids[np.sort(asked)].tolist()
        began = time.process_time()
        found = [outcome_of(ledger, subject) for subject in subjects]
        one_ms = (time.process_time() - began) / ASKED * 1000
    same = all(one is not None and one.subject == subject for one, subject in zip(found, subjects, strict=True))
    check(same, "an outcome is another's")
    size = (directory / "run" / "ledger.sqlite").stat().st_size
    return {"store_mb": size / ids * 10, "one_ms": one_ms}


class _Nobody:
    """A sender whose messages are all taken."""

    most = None

    def open(self, _run: object) -> None:
        """Nothing to open."""

    def send(self, messages: Any) -> Any:
        """All are delivered."""
        from capline.campaign.senders.protocol import Outcomes  # noqa: PLC0415 - as above

        return Outcomes.delivered(len(messages))

    def close(self) -> None:
        """Nothing to close."""


if __name__ == "__main__":
    main()
