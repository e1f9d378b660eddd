"""What `make lint` makes of the answers of the package index."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "tools" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", SOURCE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD: dict[str, Any] = {"name": "good", "version": "1", "vulns": []}
UNASKED = {"name": "far", "version": "1", "skip_reason": "not found"}
BAD: dict[str, Any] = {
    "name": "bad",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3", "4"]}, {"id": "CVE-2", "fix_versions": []}],
}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([], 0, "could not be asked about vulnerabilities; nothing is known"),
        ([UNASKED], 0, "nothing is known"),
        ([GOOD], 0, "1 packages, 0 known vulnerabilities\n"),
        ([GOOD, UNASKED], 0, "1 packages, 0 known vulnerabilities; 1 could not be asked about"),
        ([GOOD, BAD], 1, "bad 2 has PYSEC-1; fixed in: 3, 4; type: make lock UPGRADE=1"),
        ([BAD], 1, "bad 2 has CVE-2; fixed in: no version yet"),
    ],
)
def test_a_known_vulnerability_fails_and_an_index_that_is_out_of_reach_does_not(
    audit: Any, capsys: pytest.CaptureFixture[str], packages: list[Any], code: int, said: str
) -> None:
    assert audit.report(packages) == code
    assert said in capsys.readouterr().out


def test_a_tool_that_answers_nothing_is_an_index_that_could_not_be_asked(
    audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LOCK", Path("/nowhere/requirements.lock"))
    assert audit.answers() == []
