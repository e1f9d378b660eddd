"""The directory of a run: removed only where a run made it, one run at a time."""

from pathlib import Path

import pytest

from capline.model.errors import InvalidValueError
from capline.up.folder import run_folder


def test_it_is_gone_afterwards_with_what_was_made_for_it(tmp_path: Path) -> None:
    with run_folder(tmp_path / ".capline" / "up", keep=False) as inside:
        (inside / "deep").mkdir()
        (inside / "deep" / "file").write_text("x", encoding="ascii")
    assert list(tmp_path.iterdir()) == []


def test_what_others_put_beside_it_stays(tmp_path: Path) -> None:
    with run_folder(tmp_path / ".capline" / "up", keep=False):
        (tmp_path / ".capline" / "store").mkdir()
    assert [path.name for path in (tmp_path / ".capline").iterdir()] == ["store"]


def test_one_that_is_kept_is_emptied_by_the_next_run(tmp_path: Path) -> None:
    with run_folder(tmp_path / "up", keep=True) as inside:
        (inside / "log").write_text("x", encoding="ascii")
    assert (tmp_path / "up" / "log").exists()
    with run_folder(tmp_path / "up", keep=True) as inside:
        assert not (inside / "log").exists()


def test_anybody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("x", encoding="ascii")
    with pytest.raises(InvalidValueError, match="name an empty directory"), run_folder(tmp_path, keep=False):
        pass
    assert (tmp_path / "thesis").exists()


def test_two_runs_do_not_share_one(tmp_path: Path) -> None:
    with run_folder(tmp_path / "up", keep=False) as inside:
        with pytest.raises(InvalidValueError, match="another `capline up` runs"), run_folder(inside, keep=False):
            pass
        assert inside.exists()
