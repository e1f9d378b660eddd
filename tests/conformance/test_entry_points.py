"""A store that somebody else wrote: examples/store, named by its entry point, held to the law as every store is."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.profiles import size, sized

from capline import InvalidValueError, Limiter
from capline.testing import conformance, state_machine

EXAMPLE = Path(__file__).parents[2] / "examples/store"


@pytest.fixture(autouse=True, scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The example as an installed package: its entry point is read from the path, as pip would leave it there."""
    site = tmp_path_factory.mktemp("site")
    package = site / "sqlite_store-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-store\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[capline.stores]\nsqlite = sqlite_store:SqliteStore\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(site), str(EXAMPLE), *sys.path])
        yield


TestSqlite = conformance("sqlite://{tmp}/store.db")
TestSqliteAsync = conformance("sqlite://{tmp}/store.db", asynchronous=True)
TestSqliteAtRandom = sized(state_machine("sqlite://{tmp}/store.db", steps=size(500, 800, 3_000)))


def test_it_is_named_where_a_url_names_no_store() -> None:
    with pytest.raises(InvalidValueError, match="use memory://, lmdb:///path, sqlite:// or redis://host:port"):
        Limiter("sqlite3:///x")


def test_its_size_is_an_afternoon_s() -> None:
    assert len((EXAMPLE / "sqlite_store.py").read_text().splitlines()) < 150
