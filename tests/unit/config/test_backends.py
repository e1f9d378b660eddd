"""Every configuration store is held to one law: memory, lmdb, Redis and Valkey; a cluster in the deep part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.kit.servers import shared
from tests.unit.config.law import Law, SharedLaw

if TYPE_CHECKING:
    from pathlib import Path

PATIENT = "?deadline=20s"


class TestMemory(Law):
    @pytest.fixture
    def url(self) -> str:
        return "memory://"


class TestLmdb(SharedLaw):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"lmdb://{tmp_path}"


class TestServer(SharedLaw):
    @pytest.fixture(params=["redis", "valkey"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture
    def url(self, kind: str) -> str:
        return shared(kind).url + PATIENT


@pytest.mark.deep
class TestCluster(SharedLaw):
    @pytest.fixture
    def url(self) -> str:
        return shared("redis", "cluster").url + PATIENT
