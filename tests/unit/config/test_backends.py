"""Every configuration store is held to one law: memory, lmdb, Redis and Valkey; a cluster in the deep part."""

# pyright: reportPrivateUsage=false
# What an older release leaves is made by hand.

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.kit.server import Server
from tests.kit.servers import shared, single
from tests.profiles import size, sized
from tests.unit.config.law import Law, SharedLaw

from capline import Policy
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


class TestPagesOfOverrides:
    """On a server each costs what there is of its policy, whatever others have."""

    POLICIES = "few", "many"
    PLACES = ".config:capline:{head}:places"

    @pytest.fixture
    def server(self) -> Iterator[Server]:
        with single("redis") as server:
            yield server

    @pytest.fixture
    def one(self, server: Server) -> Iterator[Configuration]:
        with Configuration(server.url + PATIENT) as configuration:
            configuration.set_policies([Policy(name, ["3/day"]) for name in self.POLICIES])
            yield configuration

    def listed(self, one: Configuration, policy: str, most: int) -> list[Any]:
        """By pages of so many."""
        found: list[Any] = []
        while True:
            page, following = one.overrides_page(policy, found[-1] if found else None, most)
            found += [subject for subject, _ in page]
            if following is None:
                return found

    def cost(self, server: Server, one: Configuration, policy: str) -> int:
        """Commands of its first page, those in scripts too."""
        before = int(server.info("stats")["total_commands_processed"])
        one.overrides_page(policy, None, 50)
        return int(server.info("stats")["total_commands_processed"]) - before

    def test_few_cost_few_commands_however_many_another_policy_has(self, server: Server, one: Configuration) -> None:
        one.override_many("few", {number: ["5/day"] for number in range(3)})
        one.override_many("many", {number: ["5/day"] for number in range(10_000)})
        assert self.cost(server, one, "few") < 40
        assert self.cost(server, one, "many") < 300
        one.override_many("many", dict.fromkeys(range(5, 10_000)))
        assert set(self.listed(one, "many", 2)) == set(range(5))
        assert self.cost(server, one, "many") < 30, "who walks says where nothing is left"

    def test_what_a_release_without_places_has_written_is_found(self, server: Server, one: Configuration) -> None:
        one.override_many("few", {1: ["5/day"]})
        for key in (b"", b"few"):
            server.command("HDEL", self.PLACES, key)
        assert self.listed(one, "few", 50) == [1]
        assert self.cost(server, one, "few") < 40

    @sized
    @pytest.mark.parametrize("seed", range(size(1, 3, 9)))
    def test_pages_have_all_whoever_writes_them(self, server: Server, one: Configuration, seed: int) -> None:
        """Sets, removals, removals to come, pages that are read between, and commits of an older release."""
        draw = Random(seed)
        there: dict[str, set[int]] = {name: set() for name in self.POLICIES}
        for _ in range(size(15, 80, 80)):
            policy, subjects = draw.choice(self.POLICIES), draw.sample(range(40), draw.randrange(1, 9))
            before = server.command("DUMP", self.PLACES)
            if draw.random() < 0.5:
                one.override_many(policy, {subject: [f"{draw.randrange(1, 9)}/day"] for subject in subjects})
                there[policy] |= {*subjects}
            elif draw.random() < 0.3:
                has = [subject for subject in subjects if subject in there[policy]]
                one.override_many(policy, dict.fromkeys(has), effective_at="2040-01-01T00:00Z")
            else:
                one.override_many(policy, dict.fromkeys(subjects))
                there[policy] -= {*subjects}
            if draw.random() < 0.2 and before is not None:
                server.command("RESTORE", self.PLACES, 0, before, "REPLACE")
            if draw.random() < 0.3:
                name = draw.choice(self.POLICIES)
                assert sorted(self.listed(one, name, draw.choice([1, 7, 50]))) == sorted(there[name])


NOBODY = "redis+cluster://127.0.0.1:1?deadline=1s"


def test_a_cluster_that_cannot_be_reached_is_an_outage() -> None:
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1.*no connection"):
        Configuration(NOBODY)


def test_a_cluster_that_cannot_be_reached_is_shown_as_away() -> None:
    (server,) = ServerBackend(parse_url(NOBODY), NOBODY, "capline").servers()
    assert (server.server, server.up) == ("127.0.0.1:1", False)
