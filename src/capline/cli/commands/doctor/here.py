"""This installation, and the files that are named."""

import platform
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from capline import __version__
from capline.cli.commands.doctor.finding import Finding, readable, wrong
from capline.cli.input.options import DEFAULT_POLICIES
from capline.cli.render.console import counted
from capline.limiter.policies.rules import Rules
from capline.model.policy import Policy
from capline.policy.file import PolicyFile, load

_FOR = {
    "batch": "decide_many and its like, capline replay",
    "segments": "segments, Parquet",
    "rules": "segments by rules over events",
    "campaign": "campaigns",
    "redis": "stores on Redis and Valkey",
    "kafka": "campaigns into Kafka",
    "sqs": "campaigns into SQS",
    "http": "httpx that waits for its slot",
    "requests": "requests that waits for its slot",
    "report": "capline demo",
    "prometheus": "metrics for Prometheus",
    "otel": "metrics for OpenTelemetry",
    "serve": "capline serve",
    "grpc": "Envoy",
}
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?(?:.*extra == ['\"]([\w-]+)['\"])?")


def installation() -> Iterator[Finding]:
    """capline, Python, and each extra: what is there of it, what it is for. A missing extra is no fault."""
    yield Finding("capline", __version__, ok=True)
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", ok=True)
    for extra, packages in _requirements().items():
        found = {package: _version(package) for package in packages}
        missing = [package for package, number in found.items() if number is None]
        there = ", ".join(f"{package} {number}" for package, number in found.items() if number)
        if missing and not extra:
            said = f"{', '.join(missing)} is missing: pip install --force-reinstall capline"
            yield wrong("core", said, "docs/howto/installing.md")
        elif missing:
            yield Finding(extra, f'not installed, for {_FOR[extra]}: pip install "capline[{extra}]"', ok=True)
        else:
            yield Finding(extra or "core", there, ok=True)


def _requirements() -> dict[str, list[str]]:
    """The packages of the core (under an empty name) and of each extra, with those of the extras that it names."""
    packages = {name: list[str]() for name in ("", *_FOR)}
    others: dict[str, list[str]] = {}
    lines: list[str] = []
    with suppress(PackageNotFoundError):  # run from a clone that nobody installed
        lines = requires("capline") or []
    for line in lines:
        name, more, extra = _REQUIREMENT.findall(line)[0]
        if name == "capline":
            others[extra] = more.split(",")
        elif extra in packages:
            packages[extra].append(name)
    return {extra: [*_with_others(extra, packages, others)] for extra in packages}


def _with_others(extra: str, packages: dict[str, list[str]], others: dict[str, list[str]]) -> Iterator[str]:
    yield from packages[extra]
    for other in others.get(extra, ()):
        yield from _with_others(other, packages, others)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def files(
    policies: Path, segments: str | None, tokens: Path | None
) -> tuple[list[Finding], PolicyFile | None, frozenset[str] | None]:
    """Whether each file that is named can be read; the policy file, and the names of the segments."""
    found: list[Finding] = []
    read: PolicyFile | None = None
    names: frozenset[str] | None = None

    def policy_file() -> str:
        nonlocal read
        file = load(policies)
        Rules(file.policies, file.namespace)
        read = file
        return f"{policies}: {counted(len(file.policies), 'policy', 'policies')}"

    def snapshot() -> str:
        from capline.segment import fetch_snapshot  # noqa: PLC0415 - an extra

        nonlocal names
        opened, version = fetch_snapshot(segments or "")
        names = frozenset(opened.names)
        return f"{segments}: version {version}"

    def token_file() -> str:
        from capline.service.access.tokens import TokenFile  # noqa: PLC0415 - few have one

        return f"{tokens}: {counted(len(TokenFile(tokens or '').tokens), 'token', 'tokens')}"

    if policies != DEFAULT_POLICIES or policies.exists():
        found.append(readable("policies", policy_file, "docs/reference/policies.md"))
    if segments is not None:
        found.append(readable("segments", snapshot, "docs/howto/publishing.md"))
    if tokens is not None:
        found.append(readable("tokens", token_file, "docs/reference/service.md"))
    return found, read, names


def lacking(policies: Iterable[Policy], names: frozenset[str]) -> Iterator[Finding]:
    """The segments that policies list and the snapshot, which has these, does not."""
    for policy in policies:
        if missing := [repr(name) for name in policy.by_segment if name not in names]:
            said = (
                f"policy {policy.name} lists {', '.join(missing)}, not published: nobody is in it; mend one of the two"
            )
            yield wrong("segments", said, "docs/howto/publishing.md")
