"""`capline store check | compact`: checks the file of an embedded store, or makes it smaller.

`check` reads every page and value and changes nothing; the store may be in use meanwhile. It exits 0 if all is good, 1
if something is damaged, 2 if there is no store.
"""

from pathlib import Path
from typing import Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import FAILED, Answer, out, warn
from capline.model.errors import InvalidValueError, StoreDamagedError
from capline.store.open import DEFAULT_URL, lmdb_path

app = Commands("store", "Check the file of an embedded [bold]store[/], or make it smaller.")

StoreArgument = Annotated[
    str, typer.Argument(metavar="URL|PATH", envvar="CAPLINE_STORE", help="The store: lmdb:///path, or its directory.")
]


@app.answers("capline store check lmdb:///var/lib/capline", "capline store check /var/lib/capline --json")
def check(store: StoreArgument = DEFAULT_URL) -> Answer:
    """Read every page and value, and report what is damaged. Changes nothing; the store may be in use."""
    from capline.store.local.lmdb.check import StoreReport, check_store  # noqa: PLC0415 - lmdb only where it is needed

    path = _directory(store)
    try:
        report = check_store(path)
    except StoreDamagedError as error:
        report = StoreReport(str(path), faults_found=1, faults=[str(error)])

    def lines() -> None:
        for fault in report.faults:
            warn(fault)
        if report.page_bytes:
            used, free = (_size(pages * report.page_bytes) for pages in (report.used_pages, report.free_pages))
            out.print(
                f"{report.logs:,} log(s), {report.sealed_pages:,} page(s) of long logs, {report.receipts:,} "
                f"receipt(s); {used} used, {free} free"
            )
        out.print(f"{report.faults_found:,} fault(s) found" if report.faults_found else "every page and value is whole")

    return Answer(report, lines, FAILED if report.faults_found else 0)


@app.answers(
    "capline store compact lmdb:///var/lib/capline",
    "capline store compact lmdb:///var/lib/capline --to /backup/capline",
)
def compact(
    store: StoreArgument = DEFAULT_URL,
    to: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Copy into this new directory; the store may be in use.")
    ] = None,
) -> Answer:
    """Make the file as small as its content. In place this needs a store that nobody has open.

    Checks the store first, and refuses a damaged one. An interruption leaves either the old file or the new one.
    """
    from capline.store.local.lmdb.compact import compact_store  # noqa: PLC0415 - lmdb only where it is needed

    done = compact_store(_directory(store), to)
    sizes = f"{_size(done.before_bytes)} before, {_size(done.after_bytes)} now"
    return Answer(done, f"{done.path}: {sizes}")


def _directory(store: str) -> Path:
    """The directory of a URL or a path. A path that looks like a URL is written as ./lmdb:x."""
    scheme, colon, _ = store.partition(":")
    if "://" not in store and not (colon and scheme in ("lmdb", "memory")):
        return Path(store)
    if scheme.lower() != "lmdb":
        raise InvalidValueError(f"{scheme}:// is no file; name an embedded store, like lmdb:///path")
    return lmdb_path(store)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"
