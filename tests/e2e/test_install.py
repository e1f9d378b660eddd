"""What `pip install capline` gives, alone and with each extra.

The quick part hides an extra's packages from this interpreter: whoever needs one says what to install, in one line. The
deep part builds the wheel and installs it into a new environment beside exactly the packages that it asks for. Those
come out of this environment, so nothing is downloaded.
"""

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]

README = (ROOT / "README.md").read_text(encoding="utf-8")

NEEDS = {
    "batch": [
        "from capline import Limiter, Policy; Limiter('memory://', [Policy('p', ['3/day'])]).decide_many('p', [1])",
    ],
    "redis": [
        "from capline import Limiter; Limiter('redis://127.0.0.1:1')",
        "from capline import AsyncLimiter; AsyncLimiter('redis+cluster://127.0.0.1:1')",
    ],
    "segments": ["from capline.segment import IdSet", "from capline.segment import load_snapshot; load_snapshot('.')"],
    "rules": [
        "from capline.segment import IdSet; from capline.segment.build.by_rules import _duckdb; _duckdb()",
    ],
    "campaign": ["from capline.campaign.senders.find import _load; _load('webhook')"],
    "kafka": ["from capline.campaign.senders.find import _load; _load('kafka')"],
    "sqs": ["from capline.campaign.senders.find import _load; _load('sqs')"],
    "http": ["import capline.middleware.httpx"],
    "requests": ["import capline.middleware.requests"],
    "prometheus": ["from capline.observe import PrometheusObserver; PrometheusObserver()"],
    "otel": ["from capline.observe import OpenTelemetryObserver; OpenTelemetryObserver()"],
    "serve": ["from capline.service.parts import check_service_parts; check_service_parts()"],
    "grpc": ["from capline.service.parts import check_grpc_parts; check_grpc_parts()"],
}
"""What asks for an extra's packages, by extra."""

HIDDEN = {
    "batch": ("numpy",),
    "redis": ("redis", "hiredis"),
    "segments": ("pyroaring", "pyarrow", "obstore"),
    "rules": ("duckdb",),
    "campaign": ("httptools",),
    "kafka": ("confluent_kafka",),
    "sqs": ("botocore",),
    "http": ("httpx",),
    "requests": ("requests",),
    "prometheus": ("prometheus_client",),
    "otel": ("opentelemetry",),
    "serve": ("uvicorn", "httptools", "uvloop", "jinja2", "multipart"),
    "grpc": ("grpc", "grpc_health", "grpc_reflection", "envoy"),
}

WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def run(python: str | Path, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if python == sys.executable:
        clean["PYTHONPATH"] = str(ROOT / "src")
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, cwd=folder, env=clean)


def says_what_to_install(done: subprocess.CompletedProcess[str], *extras: str) -> None:
    """The last line, which is all that a command shows of it, names one of these extras."""
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    said = re.fullmatch(r'capline\.[\w.]+Error: .*pip install "capline\[(\w+)\]"', last)
    assert said is not None, last
    assert said[1] in extras, last


CASES = [
    pytest.param(extra, code, id=f"{extra}-{number}") for extra in NEEDS for number, code in enumerate(NEEDS[extra])
]


def test_every_extra_is_looked_at() -> None:
    assert set(NEEDS) == set(HIDDEN) == set(EXTRAS) - {"all", "dev", "report"}  # report is segments


@pytest.mark.parametrize(("extra", "code"), CASES)
def test_who_needs_an_extra_says_what_to_install(extra: str, code: str, tmp_path: Path) -> None:
    says_what_to_install(run(sys.executable, WITHOUT.format(hidden=HIDDEN[extra]) + code, tmp_path), extra)


@pytest.mark.parametrize("extra", ["redis", "segments", "serve"])
def test_an_extra_that_counts_on_arrays_says_so_without_numpy(extra: str, tmp_path: Path) -> None:
    says_what_to_install(run(sys.executable, WITHOUT.format(hidden=("numpy",)) + NEEDS[extra][-1], tmp_path), extra)


def test_the_service_needs_no_extra_that_its_settings_do_not_use(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {p: {limits: [1/day]}}", encoding="utf-8")
    asked = asked_for("serve")
    hidden = tuple(name for names in HIDDEN.values() for name in names if canonicalize_name(name) not in asked)
    assert "envoy" in hidden
    start = "sys.argv[1:] = ['serve', '--check']; from capline.cli.start import main; main()"
    done = run(sys.executable, WITHOUT.format(hidden=hidden) + start, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


COMMANDS = {
    "batch": ["replay", "data.csv", "--limit", "3/day"],
    "redis": ["peek", "p", "42", "--store", "redis://127.0.0.1:1"],
    "segments": ["segments", "contains", ".", "42"],
    "serve": ["serve", "--check"],
}


@pytest.mark.deep
def test_a_command_that_needs_an_extra_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "policies.yaml").write_text("policies: {p: {limits: [1/day]}}", encoding="utf-8")
    (tmp_path / "data.csv").write_text("customer_id,date\n", encoding="utf-8")
    all_hidden = tuple(name for names in HIDDEN.values() for name in names)
    start = "from capline.cli.start import main; main()"
    for extra, words in COMMANDS.items():
        code = f"{WITHOUT.format(hidden=all_hidden)}sys.argv[1:] = {words!r}; {start}"
        done = run(sys.executable, code, tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.count("\n") == 1
        assert f'pip install "capline[{extra}]"' in done.stderr
    works = (["--help"], ["--version"], ["campaign", "--help"], ["policies", "check", "policies.yaml"], ["doctor"])
    for words in (*works, *([verb, "p", "42", "--store", "memory://"] for verb in ("decide", "peek"))):
        code = f"{WITHOUT.format(hidden=all_hidden)}sys.argv[1:] = {words!r}; {start}"
        done = run(sys.executable, code, tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_what_windows_cannot_install_is_not_asked_for_there() -> None:
    (uvloop,) = (Requirement(one) for one in EXTRAS["serve"] if one.startswith("uvloop"))
    assert uvloop.marker is not None
    assert [uvloop.marker.evaluate({"sys_platform": one}) for one in ("linux", "darwin", "win32")] == [
        True,
        True,
        False,
    ]


# --- the wheel ------------------------------------------------------------------------------------------------------


def asked_for(extra: str | None) -> set[str]:
    """The distributions that capline asks for with this extra, and all that those ask for."""
    names: set[str] = set()
    waiting = [("capline", frozenset({extra} if extra else ()))]
    seen: set[tuple[str, frozenset[str]]] = set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == "capline":
            wanted = [*project["dependencies"], *(one for each in extras for one in EXTRAS[each])]
        else:
            names.add(name)
            wanted = metadata.requires(name) or []
        for text in wanted:
            each = Requirement(text)
            if each.marker is None or any(each.marker.evaluate({"extra": one}) for one in (*extras, "")):
                waiting.append((canonicalize_name(each.name), frozenset(each.extras)))
    return names


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


def built(folder: Path) -> Path:
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (made,) = folder.glob("capline-*.whl")
    return made


def installed(wheel: Path, extra: str | None, folder: Path, *others: Path) -> Path:
    """A new environment's folder of programs: the wheels by pip, and beside them what capline asks for, as links."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel, *others], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    owners = metadata.packages_distributions()
    for name in asked_for(extra):
        for file in metadata.files(name) or ():
            # A folder that several packages share (opentelemetry is one) is linked file by file: only this one's.
            shared = len(set(owners.get(file.parts[0], ()))) > 1
            link = Path(*(file.parts if shared else file.parts[:1]))
            if file.parts[0] not in ("..", "__pycache__") and not (site / link).exists():
                (site / link).parent.mkdir(parents=True, exist_ok=True)
                (site / link).symlink_to(Path(str(metadata.distribution(name).locate_file(link))))
    return folder / "bin"


BELOW = {
    "campaign": ["segments"],
    "rules": ["segments"],
    "kafka": ["segments", "campaign"],
    "sqs": ["segments", "campaign"],
}
"""What an extra stands on."""
MOST_BYTES = 20_000_000
"""Of the core with all that it asks for, without byte code."""


def _size_bytes(name: str) -> int:
    files = [Path(str(file.locate())) for file in metadata.files(name) or () if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.exists())


@pytest.mark.deep
@pytest.mark.parametrize("extra", [None, *NEEDS, "all"])
def test_the_wheel_in_a_new_environment(wheel: Path, extra: str | None, tmp_path: Path) -> None:
    programs = installed(wheel, extra, tmp_path / "new")
    (tmp_path / "policies.yaml").write_text("policies: {p: {limits: [1/day]}}", encoding="utf-8")
    for words in (["--version"], ["--help"], ["decide", "p", "42"], ["policies", "check", "policies.yaml"]):
        command = [programs / "capline", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    there = asked_for(extra)
    if extra is None:
        sizes = {name: _size_bytes(name) for name in there}
        sizes["capline"] = sum(part.file_size for part in zipfile.ZipFile(wheel).infolist())
        assert sum(sizes.values()) < MOST_BYTES, sizes
    if extra == "batch":
        for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:2]:  # the third needs FastAPI
            done = run(programs / "python", block.replace("/tmp/capline-readme", str(tmp_path / "readme")), tmp_path)  # noqa: S108 - the example's own path, replaced
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
    if extra == "all":
        done = subprocess.run([programs / "capline", "demo"], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stdout.count("FAILS"), "holds" in done.stdout) == (0, 0, True), (
            done.stdout + done.stderr
        )
    if extra in ("campaign", "all"):
        tutorial = (ROOT / "docs" / "tutorial" / "campaign.md").read_text(encoding="utf-8")
        block = "\n".join(re.findall(r"^\$ (.*)", tutorial, re.MULTILINE))
        (tmp_path / "empty").mkdir()
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", "-euc", block]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"PATH": path}
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path / "empty", env=clean)
        assert done.returncode == 0, done.stderr
    for other, codes in NEEDS.items():
        has_all = asked_for(other) <= there
        for code in codes:
            done = run(programs / "python", code, tmp_path)
            if has_all:
                assert "pip install" not in done.stderr
            else:
                # What is missing first of what they stand on is told first.
                says_what_to_install(done, other, *BELOW.get(other, ()))
