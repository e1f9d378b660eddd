"""The `file` sender: writes the recipients as Parquet or CSV, for another system to send to.

    out/
    ├── .capline-run            the run whose parts these are
    ├── part-000000.parquet     batch 0, those allowed: id, segment, key, then the audience's further columns
    └── part-000001.parquet     …; a batch without anybody allowed has no part

The rule: a part is complete or not there, under the name of its batch: written to a temporary file, forced to disk,
renamed. A batch that is sent again replaces its own part with the same bytes, so a resumed campaign, or a late worker,
leaves the same files. A directory with the parts of another run is refused before anything is consumed.

In CSV, a text that a spreadsheet would take for a formula gets an apostrophe before it (`csv_cells`).

Cost: about 3 ms for a batch of 10,000, most of it the disk's.
"""

import io
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from capline.campaign.csv_cells import csv_cell
from capline.campaign.senders.protocol import Messages, Outcomes, RunInfo
from capline.forms.fields import Fields
from capline.model.errors import CampaignError
from capline.segment.files import beside, create, fsync_directory

_MARK = ".capline-run"
_TRIES = 5
_OWN_COLUMNS = ("id", "segment", "key")


class FileSender:
    """See the module's text. Options: `path`, the directory (made if missing), and `format`, parquet or csv."""

    main: ClassVar[str] = "path"
    tuning: ClassVar[frozenset[str]] = frozenset()
    most: int | None = None

    def __init__(self, options: Fields) -> None:
        self.directory = options.path("path", "out/")
        self._format = options.one_of("format", ("parquet", "csv"), "parquet")
        # pyarrow ships no types, and takes 0.2 s to load: imported by name it is Any, and only when it is needed.
        self._pa: Any = None

    def check(self, columns: Sequence[str]) -> None:
        """See `BuiltSender`."""
        for column in columns:
            if column in _OWN_COLUMNS:
                raise CampaignError(f"audience column {column!r} has the name of one that parts have anyway; rename it")

    def open(self, run: RunInfo) -> None:
        """Mark the directory as this run's; `CampaignError` if it holds the parts of another."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            mark = self.directory / _MARK
            # Checked before the mark: another worker of this run may just write the mark, then parts.
            has_parts = next(self.directory.glob("part-*"), None) is not None
            owner = mark.read_text().strip() if mark.exists() else ""
            if owner != run.run_id:
                if has_parts:
                    raise CampaignError(
                        f"{self.directory}: holds the parts of another run{owner and ' (' + owner + ')'}; "
                        "name an empty directory, or move them away"
                    )
                _put(mark, f"{run.run_id}\n".encode())
            for name in (f"{_MARK}.*", "part-*"):
                for left in self.directory.glob(f".{name}.tmp"):
                    left.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed("cannot be written to", error) from None
        self._pa = import_module("pyarrow")

    def send(self, messages: Messages) -> Outcomes:
        """Write the batch's part; `CampaignError` where the disk refuses."""
        final = self.directory / f"part-{messages.batch:06d}.{self._format}"
        try:
            _put(final, self._encode(messages))
            fsync_directory(self.directory)
        except OSError as error:
            raise self._failed(f"{final.name} cannot be written", error) from None
        return Outcomes.delivered(len(messages))

    def close(self) -> None:
        """Nothing is held between parts."""

    def _encode(self, messages: Messages) -> bytes:
        pa = self._pa
        cell = csv_cell if self._format == "csv" else str
        names = pa.array([cell(name or "") for name in messages.segments], pa.string())
        segment = pa.DictionaryArray.from_arrays(pa.array(messages.codes, pa.int32()), names)
        columns: dict[str, Any] = {
            "id": pa.array(list(map(cell, messages.ids)) if messages.ids.dtype == object else messages.ids),
            "segment": segment if self._format == "parquet" else segment.dictionary_decode(),
            "key": pa.array(list(map(cell, messages.keys())), pa.string()),
            **{cell(name): pa.array(list(map(cell, texts)), pa.string()) for name, texts in messages.columns.items()},
        }
        table = pa.table(columns)
        buffer = io.BytesIO()
        if self._format == "csv":
            import_module("pyarrow.csv").write_csv(table, buffer)
        else:
            import_module("pyarrow.parquet").write_table(table, buffer)
        return buffer.getvalue()

    def _failed(self, what: str, error: OSError) -> CampaignError:
        reason = (error.strerror or str(error)).lower()
        return CampaignError(
            f"{self.directory}: {what}: {reason}; nothing is lost: fix it and run the same command again"
        )


def _put(final: Path, data: bytes) -> None:
    """Write a file atomically, by a temporary file. `open` deletes the temporary files of killed processes.

    The `open` of another worker may delete this one too: it is then written again.
    """
    for left in reversed(range(_TRIES)):
        temporary = beside(final)
        try:
            create(temporary, data)
            temporary.replace(final)
        except FileNotFoundError:
            if not left:
                raise
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        else:
            return
