"""Rows out of an object store, by URL: CSV, gzip and Parquet, globs, and what is not there."""

import gzip
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit.s3 import S3
from tests.kit.segments import s3_site

from capline.model.errors import SegmentError
from capline.segment import build_segments, count_rows, read_rows
from capline.segment.objects.address import open_objects

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")
NAMES = ("new", "active")


@pytest.fixture
def bucket(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket with the same rows as CSV, packed CSV and two files of Parquet."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    site = s3_site(s3)
    text = "id,segment\n" + "".join(f"{number},{NAMES[number % 2]}\n" for number in range(20_000))
    (tmp_path / "rows.csv").write_text(text)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    for part in range(2):
        numbers = range(part * 10_000, part * 10_000 + 10_000)
        columns = {"id": pa.array(numbers, pa.uint32()), "segment": [NAMES[number % 2] for number in numbers]}
        parquet.write_table(pa.table(columns), tmp_path / f"part-{part}.parquet", row_group_size=3000)
    for file in tmp_path.iterdir():
        site.write(f"export/{file.name}", file.read_bytes())
    site.write("export/deeper/part-2.parquet", (tmp_path / "part-0.parquet").read_bytes())
    return site.url


@pytest.mark.parametrize("files", ["rows.csv", "rows.csv.gz", "part-*.parquet", "part-[01].p*", "r*.csv"])
def test_rows_come_out_of_a_bucket_as_out_of_files(bucket: str, files: str) -> None:
    sets = build_segments(read_rows(f"{bucket}/export/{files}"))
    assert {name: len(ids) for name, ids in sets.items()} == {"active": 10_000, "new": 10_000}
    assert sets["active"].page(limit=3) == [1, 3, 5]


def test_parquet_tells_how_many_rows_there_are_without_reading_them(bucket: str) -> None:
    assert count_rows(f"{bucket}/export/part-*.parquet") == 20_000


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("export/none.csv", "there is no such object"),
        ("export/none-*.csv", "no object matches"),
        ("export/part-*.parquet/x", "no object matches"),
    ],
)
def test_what_is_not_there_is_one_line(bucket: str, path: str, problem: str) -> None:
    with pytest.raises(SegmentError, match=problem) as told:
        list(read_rows(f"{bucket}/{path}"))
    assert "\n" not in str(told.value)


def test_a_denied_bucket_is_one_line(own_s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in own_s3.environment.items():
        monkeypatch.setenv(name, value)
    site = s3_site(own_s3)
    site.write("rows.csv", b"id,segment\n1,new\n")
    assert [len(ids) for ids in build_segments(read_rows(f"{site.url}/rows.csv")).values()] == [1]
    own_s3.restart(auth=True)
    for path in ("rows.csv", "*.csv"):
        with pytest.raises(SegmentError, match="access denied; check the credentials") as told:
            list(read_rows(f"{site.url}/{path}"))
        assert "\n" not in str(told.value)


def test_a_url_that_names_no_object() -> None:
    with pytest.raises(SegmentError, match="names no object; write it like"):
        list(read_rows("s3:///rows.csv"))


def test_an_object_cut_short_is_an_error(s3: S3, bucket: str, tmp_path: Path) -> None:
    whole = (tmp_path / "part-0.parquet").read_bytes()
    open_objects(bucket, s3.options).put("export/cut.parquet", whole[: len(whole) // 2])
    with pytest.raises(SegmentError, match=r"cut\.parquet"):
        list(read_rows(f"{bucket}/export/cut.parquet"))


FORKED = """
import os, signal, sys
from capline.model.errors import SegmentError
from capline.segment import count_rows
from capline.segment.objects.address import open_objects
url = sys.argv[1]
count_rows(f"{url}/export/part-0.parquet")
if os.fork() == 0:
    signal.alarm(40)
    store = open_objects(url)
    print(len(store.list("export")), flush=True)
    store.close()
    for name in ("part-0.parquet", "part-*.parquet"):
        try:
            count_rows(f"{url}/export/{name}")
        except SegmentError as error:
            print(error, flush=True)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_process_that_was_forked_after_rows_were_read(bucket: str) -> None:
    """obstore would hang there for ever: its threads are not in the child."""
    done = subprocess.run(
        [sys.executable, "-c", FORKED, bucket], capture_output=True, text=True, check=False, timeout=60
    )
    listed, *told = done.stdout.splitlines()
    assert (listed, len(told), done.returncode) == ("5", 2, 0), done.stderr
    assert all("cannot be read in a process that was forked" in line for line in told)
