"""Outcomes of campaigns as events for suggested limits: each message that was asked for, whatever became of it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from capline.campaign.response.messages import COLUMNS, HELD, NOT_KNOWN, REFUSED, SENT, TRIED, gathered
from capline.model.errors import InvalidValueError, SegmentError
from capline.model.subject import Subject
from capline.replay.events import subject_of
from capline.replay.suggest.events import Past
from capline.segment.build import table

_ASKED_FOR = (SENT, NOT_KNOWN, TRIED, REFUSED, HELD)


def are_outcomes(path: Path) -> bool:
    """Whether a file has the columns of one that `capline campaign outcomes` wrote."""
    try:
        return path.suffix in (".parquet", ".csv") and set(table.names(path)).issuperset(COLUMNS)
    except SegmentError:  # told by who reads it as something else
        return False


def events_of(parts: Iterable[Any], names: str) -> tuple[Past, list[Subject], str]:
    """The events in messages of campaigns, their subjects by code, and a line about what was taken.

    `InvalidValueError` where no message was asked for.
    """
    messages = gathered(parts)
    asked = np.flatnonzero(np.isin(messages.state, _ASKED_FOR))
    others = len(messages.state) - len(asked)
    of = f"{names}: outcomes of campaigns"
    if not len(asked):
        raise InvalidValueError(f"{of}: all {others:,} are excluded or held out; no message was asked for")
    subjects, segments = (column[asked].astype(np.int32) for column in (messages.people, messages.segments))
    past = Past(subjects, messages.at_us[asked], segments, [name or None for name in messages.segment_names])
    line = f"{of}: {len(asked):,} messages are events, {others:,} that are excluded or held out are not"
    return past, [subject_of(text) for text in messages.ids.to_pylist()], line
