"""Sources: every bad row is one line that names file, row and fix; every good one is taken as it stands."""

import gzip
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from capline.model.errors import SegmentError
from capline.segment import IdSet, build_segments, count_rows, expand, read_audience, read_rows
from capline.segment.build import source as source_module
from capline.segment.build.source import Paths

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")


def write_csv(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_parquet(path: Path, ids: Any, segments: Any = None, **options: Any) -> Path:
    columns = {"id": ids} if segments is None else {"id": ids, "segment": segments}
    parquet.write_table(pa.table(columns), path, **options)
    return path


def pairs(*paths: Path | str, **options: Any) -> list[tuple[int, str]]:
    return [
        (one, batch.names[code])
        for batch in read_rows(paths, **options)
        for one, code in zip(batch.ids.tolist(), batch.codes.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", ["u.csv", "u.csv.gz"])
@pytest.mark.parametrize(
    "text",
    [
        "id,segment\n1,new\n4294967295,active\n0,new\n",
        "segment,extra,id\nnew,,1\nactive,x,4294967295\nnew,y,0",
        'id,segment\r\n"1","new"\r\n\r\n4294967295,active\r\n0000,new\r\n\r\n',
        "\ufeffid,segment\n01,new\n4294967295,active\n0,new\n",
    ],
)
def test_csv(tmp_path: Path, name: str, text: str) -> None:
    assert pairs(write_csv(tmp_path / name, text)) == [(1, "new"), (4294967295, "active"), (0, "new")]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_parquet_of_any_integer(tmp_path: Path, kind: str) -> None:
    path = write_parquet(tmp_path / "u.parquet", pa.array([1, 0, 9], kind), ["new", "active", "new"])
    assert pairs(path) == [(1, "new"), (0, "active"), (9, "new")]
    assert read_audience(path) == IdSet([0, 1, 9])


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ("1 18446744073709551615", None),
        ("18446744073709551615 9223372036854775808", None),
        ("9223372036854775807 18446744073709551616", "row 2: id 18446744073709551616 is below 0 or above"),
        ("18446744073709551615 -1", "row 2: id -1 is below 0 or above"),
        ("18446744073709551615 1.5", "row 2: id 1.5 is of another type"),
        ('18446744073709551615 "x"', "row 2: id 'x' is of another type"),
    ],
)
def test_json_lines_of_any_integer(tmp_path: Path, ids: str, said: str | None) -> None:
    path = tmp_path / "u.jsonl"
    path.write_text("".join(f'{{"id": {one}, "segment": "new"}}\n' for one in ids.split()))
    if said is None:
        assert pairs(path, kind="uint64") == [(int(one), "new") for one in ids.split()]
    else:
        with pytest.raises(SegmentError, match=said):
            pairs(path, kind="uint64")


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_parquet_of_any_text(tmp_path: Path, kind: str) -> None:
    names = pa.array(["new", "a.b-c", "new"])
    names = names.dictionary_encode() if kind == "dictionary" else names.cast(kind)
    assert pairs(write_parquet(tmp_path / "u.pq", [1, 0, 9], names)) == [(1, "new"), (0, "a.b-c"), (9, "new")]


def test_a_parquet_dictionary_of_more_names_than_16_bits_number(tmp_path: Path) -> None:
    """Unused ones, as of a table that was cut down before it was written."""
    names = [f"unused-{number}" for number in range(1 << 16)]
    names[3] = "active"
    column = pa.DictionaryArray.from_arrays(pa.array([3, 1 << 16, 3], "int32"), pa.array([*names, "new"]))
    path = write_parquet(tmp_path / "u.parquet", [1, 2, 3], column)
    assert build_segments(read_rows(path)) == {"active": IdSet([1, 3]), "new": IdSet([2])}


def test_other_columns_and_many_files(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", "user,tier\n1,new\n")
    write_csv(tmp_path / "b.csv.gz", "tier,user\nold,2\n")
    wanted = [(1, "new"), (2, "old")]
    assert pairs(tmp_path / "a.csv", tmp_path / "b.csv.gz", id_column="user", segment_column="tier") == wanted
    assert pairs(f"{tmp_path}/*", id_column="user", segment_column="tier") == wanted


def test_rows_are_counted_over_batches(tmp_path: Path) -> None:
    lines = [f"{number},new" for number in range(450_000)]  # more than the block of 4 MiB that is read at once
    lines[420_000] = "x,new"
    path = write_csv(tmp_path / "long.csv", "\n".join(["id,segment", *lines]))
    with pytest.raises(SegmentError, match=r"long\.csv, row 420001: id 'x' is not a number"):
        pairs(path)
    lines[420_000] = "1"
    with pytest.raises(SegmentError, match=r"long\.csv, row 420001: 1 values where the header has 2: '1'"):
        pairs(write_csv(path, "\n".join(["id,segment", *lines])))
    ids = list(range(300_000))
    ids[299_998] = -7
    with pytest.raises(SegmentError, match=r"long\.parquet, row 299999: id -7 is negative"):
        pairs(write_parquet(tmp_path / "long.parquet", ids, ["new"] * len(ids)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-5", "id -5 is negative; ids are 0 to 4294967295"),
        ("4294967296", "id 4294967296 is above 4294967295"),
        ("18446744073709551616", "id 18446744073709551616 is above 4294967295"),
        ("9" * 60, f"id {'9' * 40}… is above 4294967295"),
        ("", "id is empty; every row needs an id"),
        ("1.5", "id '1.5' is not written as a whole number"),
        ("1.0", "id '1.0' is not written as a whole number"),
        ("1e3", "id '1e3' is not written as a whole number"),
        ("+7", r"id '\+7' is not written as a whole number"),
        ("abc", "id 'abc' is not a number"),
        ("0x10", "id '0x10' is not a number"),
        (" 7", "id ' 7' is not a number"),
        ("nan", "id 'nan' is not a number"),
        ("NULL", "id 'NULL' is not a number"),
        ("٣", "id '٣' is not a number"),
    ],
)
def test_a_bad_id_in_csv(tmp_path: Path, text: str, why: str) -> None:
    path = write_csv(tmp_path / "u.csv", f"id,segment\n1,new\n{text},new\n2,new\n")
    with pytest.raises(SegmentError, match=rf"u\.csv, row 2: {why}"):
        pairs(path)
    with pytest.raises(SegmentError, match=rf"u\.csv, row 2: {why}"):
        read_audience(path)


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (pa.array([1, None]), "row 2: id is null"),
        (pa.array([1, -5]), "row 2: id -5 is negative"),
        (pa.array([1, 1 << 32]), "row 2: id 4294967296 is above"),
        (pa.array([1, (1 << 64) - 1], "uint64"), "row 2: id 18446744073709551615 is above"),
        (pa.array([1.0, 2.0]), "column 'id' holds double; ids are whole numbers"),
        (pa.array(["1", "2"]), "column 'id' holds string; ids are whole numbers"),
        (pa.array([True, False]), "column 'id' holds bool; ids are whole numbers"),
        (pa.array([[1], [2]]), "column 'id' holds list"),
    ],
)
def test_a_bad_id_in_parquet(tmp_path: Path, ids: Any, why: str) -> None:
    path = write_parquet(tmp_path / "u.parquet", ids, ["new", "new"])
    for read in (pairs, read_audience):
        with pytest.raises(SegmentError, match=rf"u\.parquet(, |: ){why}"):
            read(path)


@pytest.mark.parametrize(
    ("segments", "why"),
    [
        (pa.array(["new", None]), "row 2: segment is null"),
        (pa.array(["new", ""]), "row 2: segment is empty"),
        (pa.array(["new", "né"]), "row 2: segment name 'né' is not 1 to 64 letters"),
        (pa.array([1, 2]), "column 'segment' holds int64; segments are names"),
    ],
)
def test_a_bad_segment_in_parquet(tmp_path: Path, segments: Any, why: str) -> None:
    with pytest.raises(SegmentError, match=rf"u\.parquet(, |: ){why}"):
        pairs(write_parquet(tmp_path / "u.parquet", [1, 2], segments))


@pytest.mark.parametrize("bad", [" new", "new/old", "..", "-new", "x" * 65, "new\t"])
def test_a_bad_segment_in_csv(tmp_path: Path, bad: str) -> None:
    with pytest.raises(SegmentError, match=r"u\.csv, row 2: segment name .* is not 1 to 64 letters"):
        pairs(write_csv(tmp_path / "u.csv", f"id,segment\n1,new\n2,{bad}\n"))
    with pytest.raises(SegmentError, match=r"u\.csv, row 2: segment is empty"):
        pairs(write_csv(tmp_path / "u.csv", "id,segment\n1,new\n2,\n"))


@pytest.mark.parametrize("name", ["u.csv", "u.csv.gz", "u.parquet"])
def test_a_missing_column_lists_those_that_are_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "u.parquet":
        parquet.write_table(pa.table({"user": [1], "tier": ["new"]}), path)
    else:
        write_csv(path, "user,tier\n1,new\n")
    with pytest.raises(SegmentError, match="no column 'id'; its columns are: user, tier"):
        pairs(path)
    with pytest.raises(SegmentError, match="no column 'segment'; its columns are: user, tier"):
        pairs(path, id_column="user")
    with pytest.raises(SegmentError, match="no column 'id'"):
        read_audience(path)


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match="more than one column 'id'"):
        pairs(write_csv(tmp_path / "u.csv", "id,id,segment\n1,2,new\n"))


def test_a_row_too_short_or_too_long(tmp_path: Path) -> None:
    for row in ("2", "2,new,x"):
        with pytest.raises(SegmentError, match=r"u\.csv, row 2: [13] values where the header has 2: '2.*fix the row"):
            pairs(write_csv(tmp_path / "u.csv", f"id,segment\n1,new\n{row}\n3,new\n"))


def test_an_open_quote_does_not_swallow_rows(tmp_path: Path) -> None:
    swallowing = 'id,note\n1,x\n2,"open\n3,y\n4,z\n'
    with pytest.raises(SegmentError, match=r"u\.csv, row 2: not readable as CSV .unexpected end"):
        read_audience(write_csv(tmp_path / "u.csv", swallowing))
    swallowing = 'id,segment\n1,new\n2,"new\n3,new\n'
    with pytest.raises(SegmentError, match=r"u\.csv, row 2: not readable as CSV .unexpected end"):
        pairs(write_csv(tmp_path / "u.csv", swallowing))


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_bytes(b"id,segment\n1,new\n2,\xff\n")
    with pytest.raises(SegmentError, match=r"u\.csv: cannot be read: not UTF-8 text .invalid start byte"):
        pairs(tmp_path / "u.csv")


def test_a_parquet_cut_short_at_any_length(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "u.parquet", [1, 2, 3], ["new", "old", "new"]).read_bytes()
    cut = tmp_path / "cut.parquet"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        with pytest.raises(SegmentError, match=r"cut\.parquet: cannot be read: .*; it is damaged, cut short or"):
            pairs(cut)


def test_a_parquet_page_that_was_changed(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "u.parquet",
        list(range(1000)),
        ["new"] * 1000,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(SegmentError, match=r"u\.parquet: cannot be read: .*CRC"):
        pairs(path)


def test_a_gzip_cut_short_at_any_length(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "u.csv.gz", "id,segment\n" + "".join(f"{n},new\n" for n in range(50))).read_bytes()
    cut = tmp_path / "cut.csv.gz"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        with pytest.raises(SegmentError, match=r"cut\.csv\.gz: cannot be read"):
            pairs(cut)
    for place in range(10, len(data)):
        cut.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(SegmentError, match=r"cut\.csv\.gz"):
            pairs(cut)


def test_empty_sources(tmp_path: Path) -> None:
    with pytest.raises(SegmentError, match=r"u\.csv: cannot be read: it is empty; a CSV"):
        pairs(write_csv(tmp_path / "u.csv", ""))
    header = write_csv(tmp_path / "h.csv", "id,segment\n")
    with pytest.raises(SegmentError, match=r"h\.csv: no rows"):
        pairs(header)
    with pytest.raises(SegmentError, match=r"h\.csv: an empty audience"):
        read_audience(header)
    nobody = write_parquet(tmp_path / "n.parquet", pa.array([], "int64"), pa.array([], "string"))
    with pytest.raises(SegmentError, match=r"h\.csv, .*n\.parquet: no rows"):
        list(read_rows([header, nobody]))
    IdSet().to_file(tmp_path / "e.roaring")
    with pytest.raises(SegmentError, match="an empty audience"):
        read_audience(tmp_path / "e.roaring")
    # An empty part among others is how cluster jobs write.
    assert pairs(header, nobody, write_csv(tmp_path / "one.csv", "id,segment\n1,new\n")) == [(1, "new")]


def test_paths_that_name_nothing(tmp_path: Path) -> None:
    cases: tuple[tuple[Paths, str], ...] = (
        (tmp_path / "none.csv", "no such file"),
        (f"{tmp_path}/*.csv", "no file matches"),
        (tmp_path, r"a directory; name its files, like '.*/\*\.parquet'"),
        ([], "no source file named"),
    )
    for paths, why in cases:
        with pytest.raises(SegmentError, match=why):
            expand(paths)
    with pytest.raises(SegmentError, match=r"u\.txt: its name does not say what it is; .*\.csv\.gz, \.parquet"):
        pairs(write_csv(tmp_path / "u.txt", "id,segment\n1,new\n"))
    (tmp_path / "pipe.parquet").write_text("id\n1\n")
    with pytest.raises(SegmentError, match=r"cannot be read: .*not what it is named"):
        pairs(tmp_path / "pipe.parquet")


def test_globs_are_sorted_deep_and_free_of_repeats(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.csv").touch()
    for name in ("b.csv", "a.csv", "odd[1].csv"):
        (tmp_path / name).touch()
    assert [path.name for path in expand([f"{tmp_path}/?.csv", tmp_path / "a.csv"])] == ["a.csv", "b.csv"]
    assert len(expand(f"{tmp_path}/**/*.csv")) == 4
    assert expand(f"{tmp_path}/odd[1].csv") == (tmp_path / "odd[1].csv",)


def test_rows_are_known_beforehand_for_parquet_only(tmp_path: Path) -> None:
    one = write_parquet(tmp_path / "a.parquet", [1, 2], ["new", "new"])
    write_parquet(tmp_path / "b.parquet", [3], ["new"])
    assert count_rows(f"{tmp_path}/*.parquet") == 3
    assert count_rows([one, write_csv(tmp_path / "u.csv", "id,segment\n1,new\n")]) is None


def test_an_audience_in_any_order_from_any_file(tmp_path: Path) -> None:
    IdSet([7, 8]).to_file(tmp_path / "a.roaring")
    write_csv(tmp_path / "b.csv", "id\n5\n1\n")
    write_parquet(tmp_path / "c.parquet", [4, 2])
    seen: list[int] = []
    audience = read_audience([tmp_path / "a.roaring", tmp_path / "b.csv", tmp_path / "c.parquet"], progress=seen.append)
    assert list(audience) == [1, 2, 4, 5, 7, 8]
    assert seen == [2, 4, 6]


@pytest.mark.parametrize("gathered", [1, 5, 4_000_000])
def test_duplicates_are_counted_and_the_first_ten_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gathered: int
) -> None:
    monkeypatch.setattr(source_module, "_GATHERED", gathered)
    write_csv(tmp_path / "a.csv", "id\n" + "".join(f"{n}\n" for n in [*range(12), 3, 3]))
    write_csv(tmp_path / "b.csv", "id\n" + "".join(f"{n}\n" for n in range(1, 30)))
    both = [tmp_path / "a.csv", tmp_path / "b.csv"]
    with pytest.raises(
        SegmentError, match=r"11 ids come more than once \(13 rows too many\): 1, 2, .*, 9, 10, …; remove"
    ):
        read_audience(both)
    assert read_audience(both, drop_duplicates=True) == IdSet(range(30))
    write_csv(tmp_path / "c.csv", "id\n7\n9\n7\n")
    with pytest.raises(SegmentError, match=r"c\.csv: 1 id comes more than once \(1 row too many\): 7; remove"):
        read_audience(tmp_path / "c.csv")
