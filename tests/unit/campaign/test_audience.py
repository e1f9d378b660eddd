from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.campaign import Site

from capline.campaign.audience import AudienceSource, read
from capline.campaign.prepare import limiter_kinds
from capline.model.errors import CaplineError
from capline.segment import IdSet, Snapshot

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")
SNAPSHOT = Snapshot({"active": IdSet([1, 2]), "new": IdSet([7])}, "v1")


def csv(path: Path, text: str, **more: Any) -> AudienceSource:
    path.write_text(text)
    return AudienceSource("csv", (str(path),), **more)


def test_ids_are_sorted_and_classified(tmp_path: Path) -> None:
    audience = read(csv(tmp_path / "a.csv", "id\n7\n4294967295\n1\n0\n"), SNAPSHOT)
    assert audience.ids[:].tolist() == [0, 1, 7, 4294967295]
    assert [audience.segments[code] for code in audience.codes] == [None, "active", "new", None]
    assert audience.sizes() == ((None, 2), ("active", 1), ("new", 1))


def test_without_a_snapshot_nobody_is_in_a_segment(tmp_path: Path) -> None:
    assert read(csv(tmp_path / "a.csv", "id\n7\n1\n"), None).sizes() == ((None, 2),)


def test_columns_follow_their_ids_and_the_first_row_of_a_duplicate_counts(tmp_path: Path) -> None:
    text = 'email,id,name\ng@x,7,Gus\na@x,1,"Ann, A"\nz@x,7,Zoe\n'
    source = csv(tmp_path / "a.csv", text, columns=("name", "email"), drop_duplicates=True)
    audience = read(source, SNAPSHOT)
    assert audience.columns(np.arange(0, 2)) == {"name": ["Ann, A", "Gus"], "email": ["a@x", "g@x"]}
    assert audience.columns(np.arange(1, 2)) == {"name": ["Gus"], "email": ["g@x"]}


def test_columns_of_parquet_may_be_text_of_any_kind_or_numbers_and_null(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([9, 2], pa.int64()),
            "email": pa.array(["nine@x", None]),
            "kind": pa.array(["a", "b"]).dictionary_encode(),
            "age": pa.array([30, 40]),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    source = AudienceSource("parquet", (str(tmp_path / "a.parquet"),), columns=("email", "kind", "age"))
    assert read(source, None).columns(np.arange(0, 2)) == {
        "email": ["", "nine@x"],
        "kind": ["b", "a"],
        "age": ["40", "30"],
    }


def test_the_digest_sees_ids_and_columns(tmp_path: Path) -> None:
    digests = {
        read(csv(tmp_path / "a.csv", f"id,n\n{row}\n", columns=("n",)), None).digest()
        for row in ("1,a", "2,a", "1,b", "1,a\n2,a")
    }
    assert len(digests) == 4
    assert read(csv(tmp_path / "a.csv", "n,id\nb,2\na,1\n", columns=("n",)), None).digest() == (
        read(csv(tmp_path / "b.csv", "id,n\n1,a\n2,b\n", columns=("n",)), SNAPSHOT).digest()
    )


def test_an_expression_and_a_bitmap(tmp_path: Path) -> None:
    assert read(AudienceSource("segments", expression="active | new"), SNAPSHOT).ids[:].tolist() == [1, 2, 7]
    IdSet([5, 3]).to_file(tmp_path / "a.roaring")
    assert read(AudienceSource("bitmap", (str(tmp_path / "a.roaring"),)), SNAPSHOT).ids[:].tolist() == [3, 5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id\n1\n-3\n", "row 2: id -3 is negative"),
        ("id\n18446744073709551616\n", "above 18446744073709551615"),
        ("id\nseven\n", "is not a number"),
        ("id\n1.5\n", "not written as a whole number"),
        ("id\n7\n7\n", "more than once"),
        ("id\n", "empty audience"),
        ("name\nx\n", "no column 'id'; its columns are: name"),
    ],
)
def test_bad_ids_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CaplineError, match=said):
        read(csv(tmp_path / "a.csv", text), SNAPSHOT)


def test_ids_of_64_bits(tmp_path: Path) -> None:
    audience = read(csv(tmp_path / "a.csv", f"id,n\n{2**64 - 1},z\n7,g\n", columns=("n",)), None)
    assert (audience.kind, audience.ids[0:2].tolist()) == ("uint64", [7, 2**64 - 1])
    assert audience.columns(audience.find(np.array([2**64 - 1], np.uint64))) == {"n": ["z"]}


def test_text_by_the_columns_type_or_by_a_key(tmp_path: Path) -> None:
    names = ["zoe@x.org", "042", "42", "Zoë"]
    parquet.write_table(pa.table({"id": pa.array(names).dictionary_encode()}), tmp_path / "a.parquet")
    for source in (
        AudienceSource("parquet", (str(tmp_path / "a.parquet"),)),
        csv(tmp_path / "a.csv", "id\n" + "\n".join(names), ids="text"),
    ):
        audience = read(source, None)
        assert (audience.kind, audience.ids[0:4].tolist()) == ("text", sorted(names))
        assert audience.find(np.array(sorted(names), object)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"id\nann\n{'é' * 256}x\n", "row 2: id is longer than 512 bytes"),
        ('id\nann\n""\n', "row 2: id is empty"),
        ("id\nann\nb\tob\n", r"row 2: id 'b\\tob' has a control character"),
        ("id\nann\nb\x85ob\n", r"row 2: id 'b\\x85ob' has a control character"),
        ("id\n" + "bob\nann\n" * 3, r"2 ids come more than once \(4 rows too many\): ann, bob; remove them"),
        ("id\n", "empty audience"),
    ],
)
def test_bad_texts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(CaplineError, match=said):
        read(csv(tmp_path / "a.csv", text, ids="text"), None)


def test_numbers_and_texts_do_not_mix(tmp_path: Path) -> None:
    for name, ids in (("a", [1, 2]), ("b", ["1", "x"])):
        parquet.write_table(pa.table({"id": ids}), tmp_path / f"{name}.parquet")
    both = tuple(str(tmp_path / f"{name}.parquet") for name in "ab")
    with pytest.raises(CaplineError, match="ids are numbers in one file and text in another"):
        read(AudienceSource("parquet", both), None)
    with pytest.raises(CaplineError, match=r"a\.parquet: column 'id' holds int64; text ids are stored as text"):
        read(AudienceSource("parquet", both, ids="text"), None)
    with pytest.raises(CaplineError, match=r"b\.parquet: column 'id' holds string; ids are whole numbers"):
        read(AudienceSource("parquet", both, ids="number"), None)
    with pytest.raises(CaplineError, match="row 2: id 'x' is not a number"):
        read(csv(tmp_path / "a.csv", "id\n1\nx\n"), None)


def test_an_expression_of_nobody_and_of_no_segment(tmp_path: Path) -> None:
    with pytest.raises(CaplineError, match="empty audience"):
        read(AudienceSource("segments", expression="active & new"), SNAPSHOT)
    with pytest.raises(CaplineError, match="no segment 'old'; there are: active, new"):
        read(AudienceSource("segments", expression="old"), SNAPSHOT)


def test_segments_that_the_policy_does_not_list_have_its_plain_limits(tmp_path: Path) -> None:
    job = Site(tmp_path).job()
    part = replace(job.part(0), codes=job.audience.codes)
    names, zones, codes = limiter_kinds(job.policy, part, job.audience.segments, job.audience.zones)
    assert (names, zones) == ([None, "new", "active"], None)
    assert codes[[0, 99, 100, 199, 200, 299, 300]].tolist() == [2, 2, 1, 1, 0, 0, 0]
    assert [name for name, _ in job.audience.sizes()] == [None, "active", "churned", "new"]


def test_batches_cover_the_audience_once(tmp_path: Path) -> None:
    job = Site(tmp_path).job(batch="150")
    parts = [job.rows(number) for number in range(job.batches)]
    assert np.concatenate([job.audience.ids[part] for part in parts]).tolist() == list(range(400))
    assert [part.stop - part.start for part in parts] == [150, 150, 100]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": "promotion"}, "no policy 'promotion'; there are: promo"),
        ({"channel": "fax"}, "has no channel 'fax'; it has: email, push"),
        ({"policies": "none.yaml"}, "none.yaml: cannot be read"),
        ({"segments": "nowhere"}, "nowhere: cannot open it"),
        ({"audience": "{csv: none.csv}"}, "none.csv: no such file"),
    ],
)
def test_unknown_names_are_refused_and_listed(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    with pytest.raises(CaplineError, match=said):
        Site(tmp_path).job(**settings)


def test_a_segment_with_limits_that_the_snapshot_lacks_is_a_slip(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [1/day], by_segment: {actve: [3/day]}}}")
    with pytest.raises(
        CaplineError, match=r"limits for segment 'actve', which is not in .*; there are: active, churned"
    ):
        site.job()


def test_a_policy_of_channels_alone_needs_one(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "policies.yaml").write_text("policies: {promo: {limits: [], channels: {push: [3/day]}}}")
    with pytest.raises(CaplineError, match="limits channels only; add 'channel:', one of push"):
        site.job()
    assert site.job(channel="push").batches == 4
