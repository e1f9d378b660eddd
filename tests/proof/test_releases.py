"""`python -m proof.releases` asks two releases, and tells where one answers as the reference does not."""

from pathlib import Path

import pytest
from proof.releases.__main__ import main

WRONG = """
class CaplineError(Exception):
    pass

class Limiter:
    def __init__(self, *args, **named):
        pass
    __enter__ = lambda self: self
    __exit__ = lambda self, *error: None
    decide = lambda self, *args, **named: True

class ManualClock(Limiter):
    now_us = advance_us = lambda self, *by_us: 0

Decision = Policy = Limiter
"""


@pytest.mark.parametrize(("store", "forms"), [("redis", "next"), ("lmdb", "present")])
def test_this_release_beside_itself(capsys: pytest.CaptureFixture[str], store: str, forms: str) -> None:
    assert main(["--steps", "700", "--logs", "1", "--store", store, "--forms", forms, "--seed", "1"]) == 0
    assert "no difference" in capsys.readouterr().out


def test_a_release_that_answers_otherwise_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "capline.py").write_text(WRONG, encoding="utf-8")
    assert main(["--before", str(tmp_path), "--steps", "1500", "--logs", "1", "--store", "lmdb", "--seed", "1"]) == 1
    assert "the release before says True" in capsys.readouterr().out
