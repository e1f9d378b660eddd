"""Numbers in one value in a file: begun by `forms=next`, on a file of the present form, and shared with its users."""

import signal
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from capline import Limiter, ManualClock, Policy, StoreDamagedError
from capline.store.local.lmdb.check import check_store
from capline.store.local.log_bytes import NUMBERS, pack_words, read_words

START_US = 1_700_000_000_000_000
each_number = pytest.mark.parametrize("algorithm", ["sliding_counter", "fixed_window", "gcra"])


def opened(path: Path, *policies: Policy, forms: str = "present") -> Limiter:
    return Limiter(f"lmdb://{path}?forms={forms}", policies, clock=ManualClock(START_US))


def stored(path: Path) -> dict[str, int]:
    """The kind of each log that is kept, by its name."""
    with lmdb.open(str(path), max_dbs=8, readonly=True) as env, env.begin() as txn:
        meta = txn.cursor(env.open_db(b"meta", txn, create=False))
        names = {value[4:8]: key[len(b"log:capline:") :].decode() for key, value in meta if key.startswith(b"log:")}
        return {names[key[:4]]: value[0] for key, value in txn.cursor(env.open_db(b"logs", txn, create=False))}


@each_number
def test_sums_of_the_present_form_become_rows_in_the_step_that_adds_to_them(tmp_path: Path, algorithm: str) -> None:
    policy = Policy("p", ["5/h", "9/day"], algorithm=algorithm)
    with opened(tmp_path, policy) as limiter:
        hit = limiter.decide("p", "s", 3).hit
    before = stored(tmp_path)
    assert sorted(before) == ["p/5.3600000000us", "p/9.86400000000us"]
    with opened(tmp_path, policy, forms="next") as limiter:
        assert [state.used for state in limiter.usage("p", "s")] == [3, 3]
        assert limiter.peek("p", "s", 2).allowed
        assert not limiter.decide("p", "s", 3)
        assert stored_beside(limiter, tmp_path) == before
        assert limiter.decide("p", "s")
        assert stored_beside(limiter, tmp_path) == {"p/+numbers": NUMBERS}
        assert hit is not None
        assert limiter.refund("p", "s", hit)
    with opened(tmp_path, policy) as limiter:
        assert [limiter.decide("p", "s").allowed for _ in range(3)] == [True, True, False]
        assert [state.used for state in limiter.usage("p", "s")] == [5, 5]
        assert limiter.decide("p", "other")
    assert len(stored(tmp_path)) == 3, "what has rows keeps them, and others get none"
    assert not check_store(tmp_path).faults


@pytest.mark.parametrize("forms", ["present", "next"])
def test_levels_of_subjects_that_come_once_are_swept_on_the_way(tmp_path: Path, forms: str) -> None:
    clock, policy = ManualClock(START_US), Policy("p", ["5/s"], algorithm="gcra")
    with Limiter(f"lmdb://{tmp_path}?forms={forms}", [policy], clock=clock) as limiter:
        for subject in range(300):
            clock.advance(seconds=1)
            limiter.charge("p", subject, 1)
    with lmdb.open(str(tmp_path), max_dbs=8, readonly=True) as env, env.begin() as txn:
        assert txn.stat(env.open_db(b"logs", txn, create=False))["entries"] < 150


def stored_beside(limiter: Limiter, path: Path) -> dict[str, int]:
    """`stored`, of a file that this process has open."""
    copy = path.with_name("copy")
    copy.mkdir(exist_ok=True)
    (copy / "data.mdb").write_bytes((path / "data.mdb").read_bytes())
    assert limiter
    return stored(copy)


@each_number
def test_policies_on_a_log_find_their_sums_of_the_present_form_one_after_the_other(
    tmp_path: Path, algorithm: str
) -> None:
    policies = [
        Policy(name, [limit], algorithm=algorithm, log="both") for name, limit in (("h", "3/h"), ("d", "4/day"))
    ]
    with opened(tmp_path, *policies) as limiter:
        assert limiter.decide("h", "s", 2)
        assert limiter.decide("d", "s", 3)
    with opened(tmp_path, *policies, forms="next") as limiter, opened(tmp_path, *policies) as present:
        assert limiter.decide("h", "s")
        assert present.usage("d", "s")[0].used == 3
        assert [present.decide(name, "s").allowed for name in "hddh"] == [False, True, False, False]
    assert stored(tmp_path) == {"both/+numbers": NUMBERS}


@each_number
def test_processes_of_both_settings_share_every_number(tmp_path: Path, algorithm: str) -> None:
    policy = Policy("p", ["20/h", "30/day"], algorithm=algorithm)
    with opened(tmp_path, policy) as present, opened(tmp_path, policy, forms="next") as begins:
        allowed = 0
        for number in range(25):
            allowed += bool((begins if number % 3 == 1 else present).decide("p", "s"))
            assert present.usage("p", "s") == begins.usage("p", "s")
        assert allowed == 20
        begins.use([Policy("p", ["22/h"], algorithm=algorithm)])
        assert [begins.decide("p", "s").allowed for _ in range(3)] == [True, True, False]


def test_a_limit_of_a_second_beside_one_of_a_day_does_not_keep_a_sum_for_each_second(tmp_path: Path) -> None:
    policy, clock = Policy("p", ["9/s", "100000/day"], algorithm="sliding_counter"), ManualClock(START_US)
    for forms, times in (("present", 300), ("next", 1), ("present", 99)):
        with Limiter(f"lmdb://{tmp_path}?forms={forms}", [policy], clock=clock) as limiter:
            for _ in range(times):
                assert limiter.decide("p", "s")
                clock.advance_us(1_000_000)
    assert not check_store(tmp_path).faults
    with Limiter(f"lmdb://{tmp_path}", [policy], clock=clock) as limiter:
        assert [state.used for state in limiter.usage("p", "s")] == [1, 400]
    with lmdb.open(str(tmp_path), max_dbs=8, readonly=True) as env, env.begin() as txn:
        ((_, value),) = txn.cursor(env.open_db(b"logs", txn, create=False))
        assert len(value) < 2_000


def test_a_process_that_is_killed_as_sums_become_rows_leaves_the_sums(tmp_path: Path) -> None:
    policy = Policy("p", ["5/h"], algorithm="gcra")
    with opened(tmp_path, policy) as limiter:
        assert limiter.decide("p", "s", 3)
    before = stored(tmp_path)
    script = f"""
import os
from capline import Limiter, ManualClock, Policy
from capline.store.local.lmdb.transaction import LmdbTransaction
LmdbTransaction.remove = lambda *_: os.kill(os.getpid(), {signal.SIGKILL.value})
policy = Policy("p", ["5/h"], algorithm="gcra")
Limiter("lmdb://{tmp_path}?forms=next", [policy], clock=ManualClock({START_US})).decide("p", "s")
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert stored(tmp_path) == before
    with opened(tmp_path, policy, forms="next") as limiter:
        assert limiter.usage("p", "s")[0].used == 3


@pytest.mark.parametrize("cut", [1, 3, 6, 8, "words"])
def test_rows_that_do_not_fit_their_value_are_damage(tmp_path: Path, cut: int | str) -> None:
    policy = Policy("p", ["5/h"], algorithm="fixed_window")
    with opened(tmp_path, policy, forms="next") as limiter:
        assert limiter.decide("p", "s", 3)
    with lmdb.open(str(tmp_path), max_dbs=8) as env, env.begin(write=True) as txn:
        logs = env.open_db(b"logs", txn)
        ((key, value),) = txn.cursor(logs)
        words = read_words(value, key)[1]
        if cut == "words":
            words[1] |= 9 << 8  # an algorithm of a later release
        else:
            words = words[: -int(cut)]
        txn.put(key, pack_words(NUMBERS, words, key), db=logs)
    assert len(check_store(tmp_path).faults) == 1
    with opened(tmp_path, policy) as limiter:
        with pytest.raises(StoreDamagedError):
            limiter.decide("p", "s")
        assert limiter.sweep() == 0
        assert limiter.erase("s") == 1
        assert limiter.decide("p", "s", 5)


def test_who_was_there_before_finds_the_numbers_of_another_that_followed_them(tmp_path: Path) -> None:
    """The name was never met there: it is numbered beside the look at its logs, not within."""
    with opened(tmp_path, Policy("other", ["1/h"])) as limiter:
        assert limiter.decide("other", "s")
        with opened(tmp_path, Policy("p", ["5/h"], algorithm="gcra"), forms="next") as numbers:
            assert numbers.decide("p", "s", 3)
        limiter.use([Policy("p", ["5/h"])])
        assert [state.used for state in limiter.usage("p", "s")] == [3]
