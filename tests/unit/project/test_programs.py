"""Every program of `proof/` and `bench/` explains itself, and refuses in one line what it does not know."""

import logging
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = [
    *sorted((ROOT / "proof").rglob("__main__.py")),
    *sorted(path for path in (ROOT / "bench").glob("*.py") if not path.name.startswith("_")),
]

Said = tuple[int, str, str]


@pytest.fixture(params=PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def typed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Said]]:
    """Run one program in this process with these words."""
    logger = logging.getLogger("capline")
    level = logger.level
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", [str(request.param), *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(request.param), run_name="__main__")
        return ended.value.code, *capsys.readouterr()  # type: ignore[return-value]

    yield run
    logger.setLevel(level)  # benchmarks silence the warnings about their servers


def test_help_ends_with_an_example(typed: Callable[..., Said]) -> None:
    code, out, err = typed("--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: python ")
    assert "\nexample: python " in out


def test_an_unknown_option_is_refused_in_one_line(typed: Callable[..., Said]) -> None:
    code, out, err = typed("--nonsense=1", "word")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--nonsense=1" in err
    assert "--help" in err
