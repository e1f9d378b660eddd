"""Whatever the ids of a campaign are: read once each, in one batch each, found again, and erased without the others."""

import csv
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.campaign_store import FACTS, RUN, fill
from tests.profiles import size

from capline.campaign.audience import AudienceSource, read
from capline.campaign.erase import ErasedFrom, erase
from capline.campaign.ledger import Ledger
from capline.campaign.outcomes import outcome_of
from capline.campaign.part import Part
from capline.campaign.report import report_of
from capline.campaign.store.records import Claimed
from capline.campaign.store.rows import DELIVERED, BatchRows
from capline.campaign.store.sqlite_store import SqliteCampaignStore

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")

Ids = list[int] | list[str]
plain = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=12)
all_ids: st.SearchStrategy[Ids] = st.one_of(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40),
    st.lists(st.integers(0, 99), min_size=1, max_size=40),
    st.lists(plain, min_size=1, max_size=40),
)


@given(all_ids, st.booleans())
@settings(max_examples=size(60, 400, 1000))
def test_each_id_is_there_once_with_its_first_row(ids: Ids, as_csv: bool) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory, "a.csv" if as_csv else "a.parquet")
        rows = [str(row) for row in range(len(ids))]
        if as_csv:
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("id", "row"), *zip(ids, rows, strict=True)])
        else:
            of = pa.string() if isinstance(ids[0], str) else pa.uint64()
            parquet.write_table(pa.table({"id": pa.array(ids, of), "row": rows}), path)
        kind = "text" if isinstance(ids[0], str) else "number"
        source = AudienceSource(
            path.suffix[1:], (str(path),), columns=("row",), drop_duplicates=True, ids=kind if as_csv else None
        )
        audience = read(source, None)
    once: list[Any] = sorted(set(ids))
    assert audience.ids[0 : len(audience)].tolist() == once
    assert audience.columns(np.arange(len(once)))["row"] == [str(ids.index(each)) for each in once]
    assert [audience.row_of(each) for each in once] == list(range(len(once)))


@contextmanager
def sent(ids: list[Any], per_batch: int) -> Generator[SqliteCampaignStore]:
    """A campaign of these ids, of which the last batch waits."""
    with TemporaryDirectory() as directory, SqliteCampaignStore(Path(directory, "store")) as store:
        text = isinstance(ids[0], str)
        parts = [
            Part(number, np.array(some, object if text else np.uint64), np.zeros(len(some), np.uint16), {})
            for number, some in enumerate(ids[at : at + per_batch] for at in range(0, len(ids), per_batch))
        ]
        facts = replace(FACTS, ids="text" if text else "uint64", audience=len(ids), segments=((None, len(ids)),))
        run = replace(RUN, facts=facts, batches=len(parts))
        store.begin(run)
        fill(store, run, ((part.number, len(part), part.pack(), 0, None) for part in parts))
        for part in parts[:-1]:
            settle(store, part)
        yield store


def settle(store: SqliteCampaignStore, part: Part) -> None:
    claimed = store.claim("sale", "a", 60)
    assert isinstance(claimed, Claimed)
    none, small = np.full(len(part), -1, np.int64), np.zeros(len(part), np.uint8)
    states, zeros = small + np.uint8(DELIVERED), np.zeros(len(part), np.int16)
    rows = BatchRows(
        part.number, 5, ("1/day",), part.ids, part.codes.astype(np.uint16), zeros, none, none, states, small, small
    )
    assert store.record(claimed, rows, decided=True)


@given(all_ids, st.integers(1, 7), st.data())
@settings(max_examples=size(30, 200, 500), deadline=None)
def test_who_is_erased_is_in_nothing_and_the_others_are_as_they_were(
    ids: Ids, per_batch: int, data: st.DataObject
) -> None:
    once: list[Any] = sorted(set(ids))
    gone: set[Any] = data.draw(st.sets(st.sampled_from(once), max_size=5))
    with sent(once, per_batch) as store:
        waiting = once[(len(once) - 1) // per_batch * per_batch :]
        for each in gone:
            was_sent = each not in waiting
            assert erase(store, each) == [ErasedFrom("sale", 1 - was_sent, int(was_sent), 0)]
            assert erase(store, each) == []
            assert erase(store, str(each) if isinstance(each, int) else 7) == [], "the same digits of another kind"
        ledger = Ledger.of(store, "sale")
        found = [outcome_of(ledger, each) for each in once]
        assert [one is not None for one in found] == [each not in gone and each not in waiting for each in once]
        total = report_of(ledger).total
        left = len(once) - len(gone)
        undecided = len([each for each in waiting if each not in gone])
        assert (total.audience, total.sent, total.undecided) == (left, left - undecided, undecided)
        claimed = store.claim("sale", "a", 60)
        assert isinstance(claimed, Claimed)
        part = Part.claimed(claimed, ledger.run)
        assert part.ids.tolist() == [each for each in waiting if each not in gone]
        settle(store, part)
        state = store.state("sale")
        assert (state.finished, state.done, report_of(ledger).total.sent) == (True, left, left)
