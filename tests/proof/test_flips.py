"""One bit flipped in the embedded store's file, in short; the long form is `python -m proof.flips`."""

from pathlib import Path

import lmdb
import pytest
from proof.flips.regions import FREE, KEY, STRUCTURE, VALUE, regions
from proof.flips.trials import Outcome, flips
from tests.profiles import size, sized

from capline import Limiter, Policy


@sized
def test_a_flip_in_a_value_lets_nobody_in_and_what_is_wrong_elsewhere_is_found(tmp_path: Path) -> None:
    outcome = flips(tmp_path, size(24, 40, 60), seed=1)
    assert outcome, outcome.text()
    assert outcome.of(VALUE, "noticed") > size(8, 12, 20)
    assert outcome.of(KEY, "wrong"), "that there are such is why there is a check"


@pytest.mark.deep
def test_without_checksums_flips_in_values_let_people_in(tmp_path: Path) -> None:
    outcome = flips(tmp_path, 160, seed=1, checksums=False)
    assert not outcome
    assert outcome.of(VALUE, "wrong")
    assert "not found by the check: wrong" in outcome.text()


@pytest.mark.parametrize(("region", "what"), [(VALUE, "wrong"), (VALUE, "crashed"), (VALUE, "raw error")])
def test_what_must_not_come_of_a_flip(region: str, what: str) -> None:
    outcome = Outcome()
    outcome.counts[KEY, "wrong"] += 1
    assert outcome
    outcome.counts[region, what] += 1
    assert not outcome
    assert not Outcome(unfound=["wrong"])


def test_a_byte_of_a_file_is_known_by_what_stands_there(tmp_path: Path) -> None:
    with Limiter(f"lmdb://{tmp_path}", [Policy("p", ["3/day"])]) as limiter:
        assert limiter.decide_many("p", [f"user:{n}" for n in range(1000)], receipt="r").allowed.all()
        assert limiter.decide("p", "user:7")
    with lmdb.open(str(tmp_path), readonly=True, max_dbs=8) as env, env.begin() as txn:
        rows = [(bytes(key), bytes(value)) for key, value in txn.cursor(env.open_db(b"logs", txn, create=False))]
    places = regions(tmp_path / "data.mdb")
    content = (tmp_path / "data.mdb").read_bytes()[: len(places)]
    assert set(places[:8192]) == {STRUCTURE}
    assert FREE in places
    for key, value in rows[::25]:
        node = len(value).to_bytes(4, "little") + bytes(2) + len(key).to_bytes(2, "little")
        found = [at for at in occurrences(content, node + key + value) if places[at] != FREE]
        wanted = [STRUCTURE] * 8 + [KEY] * len(key) + [VALUE] * len(value)
        assert wanted in [places[at : at + len(wanted)] for at in found]


def occurrences(content: bytes, part: bytes) -> list[int]:
    found: list[int] = []
    at = content.find(part)
    while at >= 0:
        found.append(at)
        at = content.find(part, at + 1)
    return found
