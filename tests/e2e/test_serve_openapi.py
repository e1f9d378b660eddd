"""A real `capline serve` against its own description, and programs in other languages against it."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from tests.kit.campaign_store import filled
from tests.kit.examples import EXAMPLES
from tests.kit.segments import make
from tests.kit.serving import Serving
from tests.profiles import DEEP, size, sized

from capline import Configuration, Policy
from capline.campaign.store.open import open_store
from capline.segment import Publisher

WITHIN_S = 600
PROGRAMS = {"java": ("java", "Client.java"), "go": ("go", "run", "client.go")}
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example]
# 422 also says what no schema can: a policy that nobody defined, an instant that has gone by. A wrong row of a batch
# fails no other, so such a body is taken.
CHECKS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 422, 503]
[[operations]]
include-path = "/v1/decide/batch"
checks.negative_data_rejection.enabled = false
"""
FEW = (
    *("POST /v1/decide", "GET /check", "GET /v1/policies", "GET /v1/policies/{name}", "GET /v1/subjects/{subject}"),
    *("GET /v1/campaigns", "GET /v1/campaigns/{name}"),
)
RARE = (
    *("PUT /v1/policies", "POST /v1/policies", "POST /v1/overrides"),
    *("POST /v1/campaigns", "GET /v1/campaigns/{name}/o", "PUT /v1/audiences"),
)
"""What random forms hardly ever fit; the answers are those of other changes."""
OURS: dict[str, object] = {
    "policy": "promo",
    "name": "promo",
    "limits": ["3/day"],
    "expression": "active",
    "attempts": [{"policy": "promo", "subject": "v"}],
    "hits": [1],
}


@pytest.fixture
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service with all of its parts: a configuration store, overrides, published segments."""
    folder = tmp_path_factory.mktemp("serving")
    store = f"lmdb://{folder}/configuration"
    with Configuration(store) as configuration:
        configuration.set_policies([Policy("promo", ["3/day"], reservations=True), Policy("psp", ["10/s"])])
        configuration.override("promo", "u", ["5/day"])
    segments = f"{folder}/published"
    with Publisher(Path(segments)) as publisher:
        for version in ("monday", "tuesday"):
            publisher.publish(make(folder, version, active=range(9)), version=version)
    queue = f"sqlite://{folder}/queue.sqlite"
    with closing(open_store(queue, make=True)) as campaigns:
        filled(campaigns)
    (folder / "kept").mkdir()
    (folder / "kept" / "day.csv").write_text("id\n1\n")
    (folder / "capline.yaml").write_text("audiences: kept\nrecord: {keep: 60}\n")
    words = ("--config", "capline.yaml", "--config-store", store, "--segments", segments, "--queue", queue)
    with Serving(folder, *words) as service:
        yield service


@sized
def test_every_answer_is_as_described(serving: Serving) -> None:
    schemathesis: Any = import_module("schemathesis")  # takes a second: only here
    config = import_module("schemathesis.config").SchemathesisConfig.from_str(CHECKS)
    seen: Counter[str] = Counter()
    schema = schemathesis.openapi.from_url(f"{serving.url}/openapi.json", config=config)
    for found in schema.get_all_operations():
        operation: Any = found.ok()
        if operation.label in FEW or (DEEP and operation.label != "DELETE /v1/policies/{name}"):  # all ask for these
            _ask(operation, seen)
    never = {label for label, count in seen.items() if not count and not label.startswith(RARE)}
    assert not never, "none that succeeded: nothing was compared"


def _ask(operation: Any, seen: Counter[str]) -> None:
    of_path = {"name": "active", "id": "7"} if "segments" in operation.label else {}
    of_path |= {"to": "monday", "if_current": None} if "rollback" in operation.label else {}
    of_path |= {"name": "sale", "id": "1"} if "campaigns" in operation.label else {}
    of_path |= {"name": "day.csv"} if "audiences" in operation.label else {}
    of_path |= {"subject": "u", "effective_at": None} if "overrides" in operation.label else {}

    @settings(max_examples=size(1, 20), derandomize=True, deadline=None, suppress_health_check=SLOW)
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        for names in (case.path_parameters, case.query, case.body):
            if isinstance(names, dict):
                sent = cast("dict[str, Any]", names)
                sent |= {name: ours for name, ours in {**OURS, **of_path}.items() if name in sent}
                if "subject" in sent:
                    sent.pop("segment", None)  # which promo does not list
        answer = case.call_and_validate()
        seen[operation.label] += answer.status_code < 300

    ask()


@pytest.mark.deep
def test_schemathesis_finds_nothing(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CHECKS, encoding="utf-8")
    words = ("--seed", "1", "--max-examples", "10", "--phases", "examples,coverage,fuzzing,stateful")
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{serving.url}/openapi.json", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.deep
@pytest.mark.parametrize("language", PROGRAMS)
def test_programs_in_other_languages(language: str, serving: Serving, tmp_path: Path) -> None:
    if shutil.which(language) is None:
        pytest.skip(f"{language} is not installed; its program of examples/service is not run here")
    serving.client.delete("/v1/subjects/user:42")
    done = subprocess.run(
        [*PROGRAMS[language], serving.url],
        cwd=EXAMPLES / "service",
        env={**os.environ, "GOCACHE": str(tmp_path), "GOFLAGS": "-mod=mod", "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    answered = "decide: allowed true, remaining 2\nwait: allowed true\nrefund: true\nbatch: [true,true,true]\n"
    assert (done.stdout, done.returncode) == (answered, 0), done.stderr
