"""Where ids come from, as a campaign file names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AudienceSource:
    """Where the audience comes from: `kind` is csv, parquet, bitmap (then `paths`) or segments (then `expression`).

    `columns` are for senders; `zone_column` (None: there is none) names each subject's time zone. `ids` is number or
    text; None: as a Parquet file has them, and numbers in CSV.
    """

    kind: str
    paths: tuple[str, ...] = ()
    expression: str = ""
    column: str = "id"
    columns: tuple[str, ...] = ()
    drop_duplicates: bool = False
    zone_column: str | None = None
    ids: str | None = None
