"""`capline segments publish | rollback | pin | gc | watch`, and `list` of an address: the published versions.

Exit codes: 2 for bad input, 3 where somebody else published meanwhile (look at it, then try again).
"""

# ruff: noqa: PLC0415 - imports inside functions: no other command waits for them

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from msgspec.structs import asdict

from capline import segment as segments
from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, note, plain, table
from capline.cli.render.manifests import print_table
from capline.model.errors import InvalidValueError, SegmentConflictError
from capline.support.instant import instant_text

if TYPE_CHECKING:
    from capline.segment import WatchStatus

app = Commands()

LOST = 3
"""Another publisher was faster."""

_T = TypeVar("_T")
_HOUR_US = 3_600_000_000
_LONGEST_GRACE_HOURS = 876_000
"""A hundred years."""

Address = Annotated[
    str,
    typer.Argument(metavar="URL", help="The publication's address: a directory, s3://bucket/prefix, gs://… or az://…."),
]


def versions_answer(url: str) -> Answer:
    """The versions at an address, in the order of their publication."""
    with segments.Publisher(url) as publisher:
        pointer = publisher.pointer()
        by = publisher.publishers(pointer)
    versions: list[dict[str, object]] = []
    shown = table("version", "published", "", "by", numbers=("ids", "bytes", "manifest"))
    for each in pointer.versions:
        published, who = instant_text(each.published_us, "seconds"), by.get(each.version)
        is_current = each.version == pointer.current
        versions.append({**asdict(each), "published": published, "current": is_current, "who": who})
        marks = " ".join(["current"] * is_current + ["pinned"] * each.pinned)
        row = (each.version, published, marks, plain(who or ""), f"{each.cardinality:,}", f"{each.bytes:,}")
        shown.add_row(*row, each.manifest[:12])
    facts = {"url": url, "sequence": pointer.sequence, "current": pointer.current, "versions": versions}
    return Answer(facts, lambda: print_table(shown))


@app.answers(
    "capline segments publish segments/today s3://bucket/segments",
    "capline segments publish segments/today /srv/segments --version 2025-03-01 --expect 2025-02-28",
)
def _publish(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A snapshot's directory.")],
    url: Address,
    version: Annotated[str | None, typer.Option(help="Its published name; the snapshot's own, if left out.")] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Publish only if this version is current.")
    ] = None,
    who: Annotated[
        str | None, typer.Option(envvar="CAPLINE_WHO", help="Who publishes it; your user name, if left out.")
    ] = None,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send files that are there too, to fix damaged ones.")
    ] = False,
    new_dictionary: Annotated[
        bool, typer.Option("--new-dictionary", help="For text ids: the dictionary is a new one on purpose.")
    ] = False,
    *,
    json: bool,
) -> Answer:
    """Verify a snapshot, send its missing files, and make it the served version.

    Exits 3 where somebody else published meanwhile.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("sending"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with (
        segments.Publisher(url) as publisher,
        Progress(*columns, console=note, transient=True, disable=json or not note.is_terminal) as progress,
    ):
        task = progress.add_task("", total=None)

        def advance(sent: int, total: int) -> None:
            progress.update(task, completed=sent, total=total)

        send = partial(publisher.publish, directory, version=version, expected=expect, resend=resend, who=who)
        done = _or_lost(lambda: send(new_dictionary=new_dictionary, progress=advance))
    sent = f"; sent {done.sent_bytes:,} bytes in {done.sent_files} files, "
    sent += f"{done.reused_bytes:,} bytes in {done.reused_files} were there"
    current = f"{url}: version {done.version} is current{sent if done.flipped else ' already'}"
    return Answer({"url": url, **asdict(done)}, current)


@app.answers(
    "capline segments rollback s3://bucket/segments", "capline segments rollback s3://bucket/segments --to 2025-03-01"
)
def _rollback(
    url: Address,
    to: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Serve this version; left out, the one before the current.")
    ] = None,
) -> Answer:
    """Serve an earlier version again. Later versions stay, so you can roll forward too."""
    with segments.Publisher(url) as publisher:
        pointer = _or_lost(lambda: publisher.rollback(to))
    facts = {"url": url, "current": pointer.current, "sequence": pointer.sequence}
    return Answer(facts, f"{url}: version {pointer.current} is current")


@app.answers(
    "capline segments pin s3://bucket/segments 2025-03-01",
    "capline segments pin s3://bucket/segments 2025-03-01 --remove",
)
def _pin(
    url: Address,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A published version.")],
    remove: Annotated[bool, typer.Option("--remove", help="Unpin it.")] = False,
) -> Answer:
    """Keep a version until it is unpinned: neither gc nor a publication retires it."""
    with segments.Publisher(url) as publisher:
        pointer = _or_lost(lambda: publisher.pin(version, pinned=not remove))
    pinned = [each.version for each in pointer.versions if each.pinned]
    facts = {"url": url, "version": version, "pinned": pinned, "sequence": pointer.sequence}
    return Answer(facts, f"{url}: pinned: {', '.join(pinned) or 'none'}")


@app.answers(
    "capline segments gc s3://bucket/segments --keep 30", "capline segments gc s3://bucket/segments --dry-run --json"
)
def _gc(
    url: Address,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest versions to keep.")] = 10,
    grace_hours: Annotated[float, typer.Option(help="Keep what was published or sent in the last so many hours.")] = 24,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
) -> Answer:
    """Retire old versions, then delete files that no version needs. Keeps the current and the pinned versions."""
    if not 0 <= grace_hours <= _LONGEST_GRACE_HOURS:
        raise InvalidValueError(f"--grace-hours is 0 to {_LONGEST_GRACE_HOURS:,} hours, not {grace_hours:g}")
    with segments.Publisher(url) as publisher:
        done = _or_lost(lambda: publisher.collect(keep=keep, grace_us=int(grace_hours * _HOUR_US), dry_run=dry_run))
    retire, delete = ("would retire", "would delete") if dry_run else ("retired", "deleted")
    counts = f"{retire} {len(done.retired)} versions, {len(done.kept)} stay; "
    counts += f"{delete} {done.deleted_objects} objects, {done.deleted_bytes:,} bytes"
    return Answer({"url": url, **asdict(done)}, f"{url}: {counts}")


@app.answers(
    "capline segments watch s3://bucket/segments --cache /var/cache/capline",
    "capline segments watch s3://bucket/segments --cache /var/cache/capline --once --json",
)
def _watch(
    url: Address,
    cache: Annotated[Path, typer.Option(metavar="DIR", help="The directory of this host's cache.")],
    interval: Annotated[float, typer.Option(min=0.01, max=86400, help="Seconds between polls, with jitter.")] = 10,
    version: Annotated[str | None, typer.Option(help="Follow this version alone.")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Poll once: fetch and verify; exit 2 unless the newest is good.")
    ] = False,
    *,
    json: bool,
) -> Answer | None:
    """Follow a publication: fetch and verify new versions, and print each change. Ctrl-C ends it.

    With --once it fills a host's cache before its processes start.
    """
    watch = segments.SegmentWatch(url, cache, interval_s=interval, version=version)
    try:
        if once:
            watch.poll()
            if watch.error is not None:
                raise watch.error
            return _status(url, watch.status)
        shown_before: tuple[object, ...] = ()
        watch.start()
        while True:
            status = watch.status
            now = (status.version, status.sequence, status.error)
            if now != shown_before:
                shown_before = now
                _status(url, status).show(json=json)
            time.sleep(min(interval / 2, 1))
    except KeyboardInterrupt:
        return None
    finally:
        watch.stop()


def _status(url: str, status: WatchStatus) -> Answer:
    age = "" if status.age_us is None else f", {status.age_us // 1_000_000:,} s old"
    serving = "nothing to serve" if status.version is None else f"version {status.version}{age}"
    text = f"{url}: {serving}{'' if status.error is None else f'; {status.error}'}"
    return Answer({"url": url, **asdict(status)}, text)


def _or_lost(work: Callable[[], _T]) -> _T:
    """The result of the call; exits 3 where somebody else was faster."""
    try:
        return work()
    except SegmentConflictError as error:
        note.print(f"capline: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(LOST) from None
