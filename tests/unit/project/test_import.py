"""What `import capline` loads: nothing that is slow to load before it is needed."""

import subprocess
import sys
from types import ModuleType

import pytest

import capline
import capline.observe
from capline.support.lazy import LazyModule, lazy_names

SLOW = ("numpy", "asyncio", "lmdb", "redis", "yaml", "logging", "ssl", "pyroaring", "typer", "httpx", "concurrent")
MOST_MODULES = 225
"""With Python's own, some 170 of them today."""


def loaded(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after this code."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize(
    "code",
    [
        "import capline",
        "from capline import Attempt, Limiter, ManualClock, Policy, StoreError, LimitExceeded",
        """
from capline import Attempt, Limiter, Policy
limiter = Limiter("memory://", [Policy("p", ["3/day", "9/week"])])
decision = limiter.decide("p", "s")
decision.limits, decision.headers(), limiter.peek("p", "s"), limiter.schedule("p", "s"), limiter.explain("p", "s")
limiter.refund("p", "s", decision.hit), limiter.decide_all([Attempt("p", "t", 2, "id")])
limiter.decide_batch([Attempt("p", "u")])
limiter.erase("s"), limiter.sweep(), limiter.close()
""",
        """
from capline import Limiter, Policy
class Nobody:
    def decided(self, event):
        event.counts
Limiter("memory://", [Policy("p", ["3/day"])], observers=[Nobody()]).decide("p", "s")
""",
    ],
    ids=["package", "names", "verbs", "observed"],
)
def test_nothing_slow_is_loaded(code: str) -> None:
    modules = loaded(code)
    assert not {module.partition(".")[0] for module in modules} & set(SLOW)
    assert len(modules) < MOST_MODULES


def test_what_is_slow_is_loaded_when_it_is_needed() -> None:
    one = 'from capline import Limiter, Policy\nlimiter = Limiter("memory://", [Policy("p", ["3/day"])])\n'
    assert "numpy" in loaded(one + 'assert limiter.decide_many("p", ["s"]).allowed.all()')
    assert "asyncio" in loaded("from capline import AsyncLimiter")
    assert "yaml" in loaded("from capline import PolicyFileError")


@pytest.mark.parametrize("package", [capline, capline.observe], ids=["capline", "capline.observe"])
def test_every_name_of_the_face_is_there(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert dir(package) == sorted(package.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'capline' has no attribute 'Limitr'"):
        getattr(capline, "Limitr")  # noqa: B009 - pyright knows that it is not there
    with pytest.raises(AttributeError):
        _ = LazyModule("math").nothing
    with pytest.raises(AttributeError):
        lazy_names("capline", {})[0]("AsyncLimiter")


def test_what_was_loaded_late_is_kept() -> None:
    late = LazyModule("math")
    assert late.sqrt(4) == 2
    assert "sqrt" in vars(late)
    assert capline.PolicyFileError is capline.PolicyFileError
    assert "PolicyFileError" in vars(capline)
