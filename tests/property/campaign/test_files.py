"""Campaign files and audience files, whatever is in them: read whole, or refused with what to fix."""

import gzip
import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.profiles import size

from capline.campaign import CampaignFile
from capline.campaign.audience import AudienceSource, read
from capline.campaign.file import loads_campaign
from capline.model.errors import CaplineError
from capline.segment import IdSet

pa: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")

GOOD: dict[str, Any] = {
    "campaign": "summer-sale",
    "policies": "policies.yaml",
    "policy": "promo",
    "channel": "push",
    "store": "lmdb:///var/lib/capline",
    "segments": "segments/2026-11-21",
    "audience": {"csv": "a.csv", "column": "user", "columns": ["email"], "duplicates": "drop"},
    "cost": 2,
    "as_of": "2026-11-21T17:00:00Z",
    "batch": 5000,
    "retry": {"attempts": 7, "wait": 0.5},
    "sender": {"file": "out/", "format": "parquet"},
}
WORDS = st.sampled_from(
    [
        *GOOD,
        "csv",
        "segments: [",
        "{",
        "}",
        "[",
        "]",
        ":",
        "\n",
        "  ",
        "- ",
        "&a",
        "*a",
        "<<",
        "${HOME}",
        "!!x",
        "'",
        '"',
        "\0",
        "\ud800",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["a.csv", "1", "x" * 600])
)
SHAPES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*GOOD, *GOOD["audience"], "parquet", "bitmap", "webhook", "smtp", "url", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


def reads_or_refuses(text: str) -> CampaignFile | None:
    try:
        found = loads_campaign(text, Path("campaign.yaml"))
    except CaplineError as error:
        check_error(error, "campaign.yaml")
        return None
    assert isinstance(found, CampaignFile)
    assert found.cost >= 1
    assert 1 <= found.batch <= 100_000
    return found


def check_error(error: CaplineError, name: str) -> None:
    assert isinstance(error, (ValueError, TypeError))
    assert name in str(error)
    assert len(str(error)) < 8000


def test_the_good_one_is_good() -> None:
    assert reads_or_refuses(yaml.safe_dump(GOOD)) is not None


@given(st.lists(WORDS, max_size=30).map("".join) | st.text())
def test_any_text_is_a_campaign_or_refused(text: str) -> None:
    reads_or_refuses(text)


@given(st.data())
def test_a_good_file_with_some_characters_changed_is_read_or_refused(data: st.DataObject) -> None:
    text = yaml.safe_dump(GOOD, sort_keys=False)
    at = data.draw(st.integers(0, len(text)))
    reads_or_refuses(text[:at] + data.draw(st.text(max_size=5) | WORDS) + text[at + data.draw(st.integers(0, 10)) :])


@given(
    st.dictionaries(st.sampled_from(list(GOOD)), SHAPES, min_size=1, max_size=3),
    st.sets(st.sampled_from(list(GOOD)), max_size=2),
)
def test_a_good_file_with_some_values_of_another_shape_is_read_or_refused(
    changed: dict[str, Any], gone: set[str]
) -> None:
    try:
        text = yaml.safe_dump({key: value for key, value in (GOOD | changed).items() if key not in gone})
    except (yaml.YAMLError, UnicodeError):
        return
    found = reads_or_refuses(text)
    if found is not None:
        assert not gone & {"campaign", "policies", "policy", "audience", "sender"}, "without these it is no campaign"


# --- audiences --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("audiences")  # pyright: ignore[reportReturnType] - one for all examples


def ids_or_refusal(path: Path, data: bytes, kind: str) -> list[int] | None:
    path.write_bytes(data)
    try:
        audience = read(AudienceSource(kind, (str(path),)), None)
    except CaplineError as error:
        check_error(error, path.name)
        return None
    return audience.ids[:].tolist()


CELLS = st.integers(0, 2**64 + 5).map(str) | st.sampled_from(
    [
        "",
        " ",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "0x10",
        "007",
        "nan",
        "4294967296",
        f"{2**64 - 1}",
        f"{2**64}",
        "9" * 30,
        "\u0663",
        '"5"',
        '"',
        "a",
        "1 ",
        "\0",
    ]
)
slow_files = settings(
    max_examples=size(12, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@slow_files
@given(cells=st.lists(CELLS, max_size=8))
def test_a_csv_is_exactly_its_ids_or_refused(directory: Path, cells: list[str]) -> None:
    found = ids_or_refusal(directory / "a.csv", "\n".join(["id", *cells, ""]).encode(), "csv")
    plain = [cell.strip('"') if len(cell) > 2 else cell for cell in cells if cell]
    good = all(cell.isascii() and cell.isdigit() and int(cell) < 2**64 for cell in plain)
    if good and len({int(cell) for cell in plain}) == len(plain):
        assert found is None or found == sorted(map(int, plain))
        assert found is not None or not plain
    else:
        assert found is None, "an id was made up, or a row left out"


@slow_files
@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_audience_or_refused(directory: Path, data: bytes) -> None:
    for kind, name in (("csv", "a.csv"), ("csv", "a.csv.gz"), ("parquet", "a.parquet"), ("bitmap", "a.roaring")):
        ids_or_refusal(directory / name, data, kind)


@slow_files
@given(st.data())
def test_a_good_audience_that_is_damaged_has_its_ids_or_is_refused(directory: Path, data: st.DataObject) -> None:
    """Cut short, nothing is read. Gzip has a checksum as well; a bitmap's damage may be a bitmap."""
    ids = sorted(data.draw(st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=40)))
    parquet.write_table(pa.table({"id": pa.array(ids, pa.int64())}), directory / "good.parquet")
    text = "".join(f"{id}\n" for id in ("id", *ids)).encode()
    wholes = {
        "a.csv.gz": ("csv", gzip.compress(text, mtime=0)),
        "a.parquet": ("parquet", (directory / "good.parquet").read_bytes()),
        "a.roaring": ("bitmap", IdSet(ids).to_bytes()),
    }
    name = data.draw(st.sampled_from(sorted(wholes)))
    kind, whole = wholes[name]
    assert ids_or_refusal(directory / name, whole, kind) == ids
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert ids_or_refusal(directory / name, whole[:cut], kind) is None
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    found = ids_or_refusal(directory / name, broken, kind)
    if name == "a.csv.gz" and found is not None:
        assert found == ids, f"{zlib.crc32(text)}: a checksum was not looked at"
