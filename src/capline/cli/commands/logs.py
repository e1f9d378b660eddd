"""`capline export | import`: copies logs out of a store and into one, as lines of JSON.

An export is written to a temporary file, which is renamed when it is complete. An import may be stopped and run again:
it skips what is in the store. Both stream, with a few hundred lines in memory.
"""

import os
import re
import shutil
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from capline.cli.input.declare import Commands
from capline.cli.input.options import ProgressOption, Source
from capline.cli.render.console import BAD_INPUT, FAILED, INTERRUPTED, Answer, note, out, warn
from capline.cli.render.progress import progress_bar
from capline.limiter.arguments.records import MOST_LINE_BYTES, Loaded, Record, line_of, read_line
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError
from capline.support.interruptible import interruptible
from capline.support.private import private_opener

app = Commands()

STDIO = Path("-")

PolicyOption = Annotated[
    list[str] | None, typer.Option("--policy", help="Only the logs of this policy; may be given again.")
]


@app.answers(
    "capline export logs.jsonl --store lmdb:///var/lib/capline",
    "capline export --policy promo | zstd > promo.jsonl.zst",
)
def export(
    file: Annotated[Path, typer.Argument(help="Where to write the lines; - is standard output.")] = STDIO,
    *,
    source: Source,
    policy: PolicyOption = None,
    progress: ProgressOption = None,
    json: bool,
) -> Answer:
    """Write every log to a file, one line of JSON each. Decisions go on meanwhile.

    A damaged log is reported and left out; the command then exits 1.
    """
    if json and file == STDIO:
        raise InvalidValueError("--json answers on standard output, where the lines go; name a file for them")
    counts = {"lines": 0, "hits": 0, "damaged": 0}

    def on_fault(error: CaplineError) -> None:
        counts["damaged"] += 1
        warn(f"left out: {error}")

    with (
        source.limiter() as limiter,
        _written(file) as target,
        progress_bar("exporting", None, "lines", wanted=progress) as advance,
    ):
        for record in limiter.export(policy, on_fault=on_fault):
            target.write(line_of(record))
            counts["lines"] += 1
            counts["hits"] += len(record.hits)
            advance(counts["lines"])
    where = note if file == STDIO else out
    text = f"exported {counts['hits']:,} hit(s) in {counts['lines']:,} line(s)"
    return Answer(counts, lambda: where.print(text), FAILED if counts["damaged"] else 0)


@app.answers(
    "capline import past-sends.jsonl --store lmdb:///var/lib/capline",
    "capline export --store lmdb://old | capline import - --store redis://127.0.0.1:6379/0",
)
def import_(
    file: Annotated[Path, typer.Argument(help="The lines; - is standard input.")],
    source: Source,
    progress: ProgressOption = None,
) -> Answer:
    """Add past hits to the logs, each at its own time. May be run again.

    A line is an exported log, or one past send:

      {"policy": "promo", "subject": 42, "at": "2026-01-31T16:00:00Z", "cost": 1, "channel": "push", "id": "m1"}

    Hits that are in the store, or out of every window, are skipped. Exits 2 where a line is wrong or a hit is in the
    future, 1 where a log in the store is damaged.
    """
    read = read_bytes = 0

    def records(lines: BinaryIO, advance: Callable[[int], object]) -> Iterator[Record]:
        nonlocal read, read_bytes
        while line := lines.readline(MOST_LINE_BYTES + 1):
            read += 1
            read_bytes += len(line)
            try:
                record = read_line(line.removeprefix(BOM_UTF8) if read == 1 else line)
            except CaplineError as error:
                raise InvalidValueError(f"{file}, line {read}: {error}") from None
            advance(read_bytes)
            yield record

    with source.limiter(create=True) as limiter, _opened(file) as (lines, size_bytes):
        try:
            with progress_bar("importing", size_bytes, "bytes", wanted=progress) as advance:
                loaded = limiter.load(records(lines, advance))
        except KeyboardInterrupt:
            note.print(f"stopped at line {read}; run the same command again: nothing is counted twice")
            raise typer.Exit(INTERRUPTED) from None
        except (InvalidValueError, InvalidTypeError) as error:
            # Records are numbered like lines.
            raise InvalidValueError(re.sub("^record ", lambda _: f"{file}, line ", str(error))) from None
    return _answer(loaded, file)


def _answer(loaded: Loaded, file: Path) -> Answer:
    for line, fault in loaded.faults:
        warn(f"{file}, line {line}: {fault}")
    if loaded.ambiguous:
        warn(f"{loaded.ambiguous:,} hit(s) share their instant with a hit of other units: give each hit an id")
    faults = [{"line": line, "what": what} for line, what in loaded.faults]
    return Answer(
        {**msgspec.structs.asdict(loaded), "faults": faults},
        f"imported {loaded.added:,} hit(s) from {loaded.records:,} line(s); left out: {loaded.known:,} known, "
        f"{loaded.old:,} out of every window, {loaded.ahead:,} in the future, {loaded.ambiguous:,} ambiguous",
        BAD_INPUT if loaded.ahead else FAILED if loaded.failed else 0,
    )


@contextmanager
def _written(file: Path) -> Generator[BinaryIO]:
    """A file to write, which appears when it is complete."""
    if file == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    from capline.segment.files import replacing  # noqa: PLC0415 - imports NumPy, which `--help` does without

    try:
        with replacing(file, private_opener) as target:
            yield target
            if file.exists():
                shutil.copymode(file, target.name)
    except OSError as error:
        raise InvalidValueError(f"{file}: {error.strerror or error}; name a file that can be written") from None


@contextmanager
def _opened(file: Path) -> Generator[tuple[BinaryIO, int | None]]:
    """The lines, and their size in bytes if it is known."""
    if file == STDIO:
        with interruptible(sys.stdin.buffer) as lines:
            yield lines, None
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InvalidValueError(f"{file}: {error.strerror or error}; name a file of lines") from None
    with opened:
        yield opened, os.fstat(opened.fileno()).st_size
