"""A progress bar on standard error, for people."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from capline.cli.render.console import note


@contextmanager
def progress_bar(
    doing: str, total: int | None, unit: str = "", *, wanted: bool | None = None, done: int = 0
) -> Generator[Callable[..., None]]:
    """Show a bar within the block; call what it yields with how much is done so far, and the total once it is known.

    `total` is None if it is not known yet. `wanted` shows or hides the bar; left out, it is shown on a terminal and
    removed at the end. `done` was done before.
    """
    if not (note.is_terminal if wanted is None else wanted):
        yield lambda *_done: None
        return
    from rich.console import Console  # noqa: PLC0415 - slow to import, and most calls show no bar
    from rich.filesize import decimal  # noqa: PLC0415 - as above
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(doing),
        BarColumn(),
        DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, force_terminal=True) if wanted else note
    with Progress(*columns, console=console, transient=not wanted) as bar:
        task = bar.add_task("", total=total, completed=done, rate="")

        def advance(completed: int, total: int | None = None) -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            shown = decimal(int(speed or 0)) if unit == "bytes" else f"{speed or 0:,.0f} {unit}".rstrip()
            bar.update(task, completed=completed, total=total, rate=f"{shown}/s" if speed else "")

        yield advance
