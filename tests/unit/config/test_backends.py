"""Every configuration store is held to one law: memory, lmdb, Redis and Valkey; a cluster in the deep part."""

from pathlib import Path

import pytest
from tests.kit.servers import shared
from tests.unit.config.law import Law, SharedLaw

from capline.config.configuration import Configuration
from capline.config.servers import ServerBackend
from capline.model.errors import StoreUnavailableError
from capline.store.redis.io.url import parse_url

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


NOBODY = "redis+cluster://127.0.0.1:1?deadline=1s"


def test_a_cluster_that_cannot_be_reached_is_an_outage() -> None:
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1.*no connection"):
        Configuration(NOBODY)


def test_a_cluster_that_cannot_be_reached_is_shown_as_away() -> None:
    (server,) = ServerBackend(parse_url(NOBODY), NOBODY, "capline").servers()
    assert (server.server, server.up) == ("127.0.0.1:1", False)
