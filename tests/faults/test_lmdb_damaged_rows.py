"""A damaged log in the middle of a batch: its rows get the error, all others their answers, each once."""

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from capline import Attempt, Limiter, ManualClock, Policy, StoreDamagedError

START_US = 10**15
BAD = 7
MANY = 20


@pytest.fixture
def limiter(tmp_path: Path) -> Iterator[Limiter]:
    with opened(tmp_path) as made:
        made.decide_many("p", range(MANY))
    spoil(tmp_path, b"logs", BAD.to_bytes(8))
    with opened(tmp_path) as made:
        yield made


def opened(path: Path) -> Limiter:
    return Limiter(
        f"lmdb://{path}", [Policy("p", ["5/day"]), Policy("long", ["9000/day"])], clock=ManualClock(START_US)
    )


def spoil(path: Path, table: bytes, ending: bytes) -> None:
    """Flip a bit of every value whose key ends so."""
    with lmdb.open(str(path), max_dbs=8) as env, env.begin(write=True) as txn:
        found = env.open_db(table, txn)
        for key, value in [*txn.cursor(found)]:
            if key.endswith(ending):
                txn.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=found)


def others_have(limiter: Limiter, hits: int) -> bool:
    return all(len(limiter.explain("p", number).hits) == hits for number in range(MANY) if number != BAD)


def test_of_a_batch_the_damaged_row_is_its_error(limiter: Limiter) -> None:
    answers = limiter.decide_batch([Attempt("p", number) for number in range(MANY)])
    assert [number for number, one in enumerate(answers) if isinstance(one, StoreDamagedError)] == [BAD]
    assert all(one for one in answers if not isinstance(one, StoreDamagedError))
    assert others_have(limiter, 2)


@pytest.mark.parametrize("cost", [1, 2])
@pytest.mark.parametrize("receipt", [None, "r"])
def test_of_columns_the_damaged_row_is_among_the_errors(limiter: Limiter, cost: int, receipt: str | None) -> None:
    subjects = [*range(MANY), BAD]
    for _ in range(1 if receipt is None else 3):
        answers = limiter.decide_many("p", subjects, cost=cost, receipt=receipt)
        assert {row: type(error) for row, error in answers.errors.items()} == dict.fromkeys(
            (BAD, MANY), StoreDamagedError
        )
        assert answers.allowed.tolist() == [row not in (BAD, MANY) for row in range(MANY + 1)]
        assert others_have(limiter, 2)
    assert [*limiter.peek_many("p", subjects).errors] == [BAD, MANY]


def test_of_refunds_the_others_are_made_and_the_error_is_raised(limiter: Limiter) -> None:
    with pytest.raises(StoreDamagedError):
        limiter.refund_many("p", range(MANY), [START_US] * MANY)
    assert all(limiter.peek("p", number).remaining == 4 for number in range(MANY) if number != BAD)


def test_what_a_damaged_log_wrote_before_it_raised_is_dropped(tmp_path: Path) -> None:
    """Of a long log one page is damaged: the pages before it are removed on the way to it."""
    with opened(tmp_path) as limiter:
        limiter.decide_many("long", [BAD] * 1000)
    with lmdb.open(str(tmp_path), max_dbs=8) as env, env.begin() as txn:
        last = [key for key, _ in txn.cursor(env.open_db(b"pages", txn))][-1]
    spoil(tmp_path, b"pages", last)
    clock = ManualClock(START_US + 2 * 86_400_000_000)
    with Limiter(f"lmdb://{tmp_path}", [Policy("long", ["9000/day"])], clock=clock) as limiter:
        before = limiter.stats()["used_pages"]
        attempts = [Attempt("long", 1), Attempt("long", BAD), Attempt("long", 2)]
        for _ in range(2):
            first, bad, last_answer = limiter.decide_batch(attempts)
            assert isinstance(bad, StoreDamagedError)
            assert first
            assert last_answer
        assert limiter.stats()["used_pages"] == before
