"""Fixtures of more than one folder of tests."""

import asyncio
import compileall
import gc
import inspect
import logging
import os
import platform
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.combinations import is_another_s, left_out, mark_deep
from tests.kit.cli import CommandLine
from tests.kit.s3 import S3
from tests.kit.server import Limiters
from tests.profiles import DEEP, PROOF, load_profile, sized

load_profile()  # before any test module is read: their settings build on it
gc.disable()  # what collecting the tests makes stays to the end: to look for garbage among it takes long
os.environ.setdefault("CAPLINE_DRAIN", "0")  # no balancer is before the services of tests, but where one says so
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script's shell starts what ends with `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else no program of a test would hear of Ctrl-C


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Compile what is new, once: each worker would compile all of it for itself."""
    if sys.dont_write_bytecode:
        return
    compiler: Any = rewrite  # there is no other way to have a test's file rewritten and not run
    state = config.stash[compiler.assertstate_key]
    for path in Path(__file__).parent.rglob("*.py"):
        if path.name.startswith("test_") or path.name == "conftest.py":
            folder = compiler.get_cache_dir(path)
            kept = folder / f"{path.stem}{compiler.PYC_TAIL}"
            if compiler._read_pyc(path, kept) is None and compiler.try_makedirs(folder):
                source, code = compiler._rewrite_test(path, config)
                compiler._write_pyc(state, code, source, kept)
    for name in ("src", "proof", "tests/kit"):
        compileall.compile_dir(config.rootpath / name, quiet=2)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Most combinations of settings are left to the deep part, and most examples of what Hypothesis draws."""
    longest = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    mark_deep(others)
    for item in longest:
        item.add_marker(pytest.mark.deep)
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(sized)
    if DEEP and not PROOF and (left := {*longest, *left_out(others)}):
        config.hook.pytest_deselected(items=[*left])
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Where nothing is asked but what is asked all day."""
    return [] if "not deep" in collector.config.option.markexpr and is_another_s(collector, name) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop that ends with it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_runtest_teardown() -> None:
    """What a program silenced that ran in this process is heard again: its warnings are what other tests look for."""
    logging.disable(logging.NOTSET)
    logging.getLogger("capline").setLevel(logging.NOTSET)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which Python the result holds for."""
    terminalreporter.write_line(f"on Python {platform.python_version()}")


def pytest_collection_finish() -> None:
    """From here on garbage is looked for, but not among the tests themselves."""
    _first_run()
    gc.freeze()
    gc.enable()


@settings(max_examples=1)
@given(st.none())
def _first_run(_: None) -> None:
    """In the first run Hypothesis looks for who holds its generator, and sees nothing that is frozen."""


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def limiters(request: pytest.FixtureRequest) -> Iterator[Limiters]:
    """Of both kinds, one after the other."""
    made = Limiters(request.param)
    yield made
    made.close()


@pytest.fixture
def sync_limiters() -> Iterator[Limiters]:
    """Where the kind makes no difference."""
    made = Limiters(asynchronous=False)
    yield made
    made.close()


@pytest.fixture
def capline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "CommandLine":
    """The command, typed in the test's folder; loaded where a test asks for it."""
    return import_module("tests.kit.cli").CommandLine(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """A real S3 server on loopback."""
    with S3() as server:
        yield server


@pytest.fixture
def own_s3() -> Iterator[S3]:
    """One that may be stopped and started."""
    with S3() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def regular_expressions() -> None:
    """Load a part of Hypothesis before any test asks for it.

    Otherwise that happens deep inside a draw, where pytest's rewriting of it now and then ends in a SystemError of
    CPython 3.11: "AST constructor recursion depth mismatch".
    """
    st.from_regex(r"a").validate()
