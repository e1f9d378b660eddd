"""`capline export | import`: logs as lines of JSON, out of a store and into one.

An export is written beside its file and put in its place when it is whole. An import may be stopped and run again: what
is in is known. Both stream, and hold a few hundred lines at a time.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec
import typer

from capline.cli.common import BAD_INPUT, INTERRUPTED, JsonOption, answer_json, examples, note, out
from capline.cli.decisions import DEFAULT_POLICIES, PoliciesOption, StoreOption
from capline.limiter.limiter import DEFAULT_URL, Limiter
from capline.limiter.records import MOST_LINE_BYTES, line_of, read_line
from capline.model.errors import CaplineError, InvalidTypeError, InvalidValueError
from capline.model.private import private_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from capline.limiter.records import Loaded, Record

__all__ = ["register"]

STDIO = Path("-")
DAMAGED = 1

PolicyOption = Annotated[
    list[str] | None, typer.Option("--policy", help="Only the logs of this policy; may be given again.")
]
ProgressOption = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar; default on a terminal.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "export",
        epilog=examples(
            "capline export logs.jsonl --store lmdb:///var/lib/capline",
            "capline export --policy promo | zstd > promo.jsonl.zst",
        ),
    )(export_logs)
    app.command(
        "import",
        epilog=examples(
            "capline import past-sends.jsonl --store lmdb:///var/lib/capline",
            "capline export --store lmdb://old | capline import - --store redis://127.0.0.1:6379/0",
        ),
    )(import_logs)


def export_logs(
    file: Annotated[Path, typer.Argument(help="Where to write the lines; - is standard output.")] = STDIO,
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    policy: PolicyOption = None,
    progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Write every log to a file, a line of JSON each; decisions go on meanwhile.

    A damaged log is reported and left out; the command then exits with 1.
    """
    if json and file == STDIO:
        raise InvalidValueError("--json answers on standard output, where the lines go; name a file for them")
    counts = {"lines": 0, "hits": 0, "damaged": 0}

    def on_fault(error: CaplineError) -> None:
        counts["damaged"] += 1
        note.print(f"left out: {error}", style="yellow", markup=False, soft_wrap=True)

    with (
        Limiter.from_file(policies, store, create=False) as limiter,
        _written(file) as target,
        _bar("exporting", None, progress) as advance,
    ):
        for record in limiter.export(policy, on_fault=on_fault):
            target.write(line_of(record))
            counts["lines"] += 1
            counts["hits"] += len(record.hits)
            advance(1)
    if json:
        answer_json(counts)
    else:
        where = note if file == STDIO else out
        where.print(f"exported {counts['hits']:,} hit(s) in {counts['lines']:,} line(s)")
    if counts["damaged"]:
        raise typer.Exit(DAMAGED)


def import_logs(
    file: Annotated[Path, typer.Argument(help="The lines; - is standard input.", show_default=False)],
    policies: PoliciesOption = DEFAULT_POLICIES,
    store: StoreOption = DEFAULT_URL,
    progress: ProgressOption = None,
    json: JsonOption = False,
) -> None:
    """Put past hits into the logs, as if each had been recorded at its own time; may be run again.

    A line is a log that was exported, or one past send:

      {"policy": "promo", "subject": 42, "at": "2026-01-31T16:00:00Z", "cost": 1, "channel": "push", "id": "m1"}

    Hits that are known or out of every window are left out. Exits 2 where a line is wrong or a hit lies in the future,
    1 where a log in the store is damaged.
    """
    read = 0

    def records(lines: BinaryIO, advance: Callable[[int], object]) -> Iterator[Record]:
        nonlocal read
        while line := lines.readline(MOST_LINE_BYTES + 1):
            read += 1
            try:
                record = read_line(line)
            except CaplineError as error:
                raise InvalidValueError(f"{file}, line {read}: {error}") from None
            advance(len(line))
            yield record

    with Limiter.from_file(policies, store) as limiter, _opened(file) as (lines, size_bytes):
        try:
            with _bar("importing", size_bytes, progress) as advance:
                loaded = limiter.load(records(lines, advance))
        except KeyboardInterrupt:
            note.print(f"stopped at line {read}; run the same command again: what is in is not counted twice")
            raise typer.Exit(INTERRUPTED) from None
        except (InvalidValueError, InvalidTypeError) as error:
            # A record's number is its line's.
            raise InvalidValueError(re.sub("^record ", lambda _: f"{file}, line ", str(error))) from None
    _answer(loaded, file, json=json)


def _answer(loaded: Loaded, file: Path, *, json: bool) -> None:
    for line, fault in loaded.faults:
        note.print(f"{file}, line {line}: {fault}", style="yellow", markup=False, soft_wrap=True)
    if json:
        answer_json(
            {**msgspec.structs.asdict(loaded), "faults": [{"line": line, "what": what} for line, what in loaded.faults]}
        )
    else:
        out.print(
            f"imported {loaded.added:,} hit(s) from {loaded.records:,} line(s); left out: {loaded.known:,} known, "
            f"{loaded.old:,} out of every window, {loaded.ahead:,} in the future"
        )
    if loaded.ahead:
        raise typer.Exit(BAD_INPUT)
    if loaded.failed:
        raise typer.Exit(DAMAGED)


@contextmanager
def _written(file: Path) -> Generator[BinaryIO]:
    """A file to write to that is there when all is written, or not at all."""
    if file == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = file.with_name(f"{file.name}.part-{os.getpid()}")
    try:
        with open(part, "wb", opener=private_opener) as target:
            yield target
            target.flush()
            if file.exists():
                os.fchmod(target.fileno(), stat.S_IMODE(file.stat().st_mode))
            os.fsync(target.fileno())
        part.replace(file)
    except OSError as error:
        raise InvalidValueError(f"{file}: {error.strerror or error}; name a file that can be written") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _opened(file: Path) -> Generator[tuple[BinaryIO, int | None]]:
    """The lines, and how many bytes they are where that is known."""
    if file == STDIO:
        yield sys.stdin.buffer, None
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InvalidValueError(f"{file}: {error.strerror or error}; name a file of lines") from None
    with opened:
        yield opened, os.fstat(opened.fileno()).st_size


@contextmanager
def _bar(doing: str, total: int | None, wanted: bool | None) -> Generator[Callable[[int], object]]:
    """A progress bar on standard error; what it yields moves it on."""
    if not (note.is_terminal if wanted is None else wanted):
        yield lambda _: None
        return
    from rich.progress import (  # noqa: PLC0415 - rich's progress is slow to import, and pipes need none
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
    )

    count = MofNCompleteColumn() if total is None else TaskProgressColumn()
    with Progress(TextColumn("{task.description}"), BarColumn(), count, console=note) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda many: bar.advance(task, many)
