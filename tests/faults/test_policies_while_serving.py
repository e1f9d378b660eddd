"""The policy file while decisions go on: replaced, broken, emptied and deleted. The last good one serves, whole."""

import threading
from pathlib import Path

import pytest

from capline import Limiter, PolicyError

# The tightest limits of each, for one that has nothing yet; of a mixture of both it would be 20/day.
FIRST = "policies: {p: {limits: [10/day, 100/week]}}\n"
SECOND = "policies: {p: {limits: [20/day, 15/week]}}\n"
BROKEN = (
    "policies: {p: {limits: [10/da]}}\n",
    "policies: {p: {limits: [20/day, 15/week]",
    "",
    "\0\0\0\0",
    "namespace: elsewhere\n" + SECOND,
    "policies: {q: {limit: [1/day]}}\n",
)
ROUNDS = 40
DECIDERS = 3


@pytest.mark.parametrize("store", ["memory", "lmdb"])
def test_a_broken_or_missing_policy_file_changes_nothing_while_decisions_go_on(store: str, tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(FIRST, encoding="utf-8")
    url = "memory://" if store == "memory" else f"lmdb://{tmp_path / 'store'}"
    seen: list[set[str]] = [set() for _ in range(DECIDERS)]
    counts = [0] * DECIDERS
    failed: list[BaseException] = []
    done = threading.Event()

    def decide(number: int) -> None:
        try:
            while not done.is_set():
                subject = f"{number} {counts[number]}"
                seen[number].add(str(limiter.peek("p", subject).limit))
                assert limiter.decide("p", subject)
                counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    with Limiter.from_file(path, url) as limiter:
        threads = [threading.Thread(target=decide, args=(number,)) for number in range(DECIDERS)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(ROUNDS):
                good = (FIRST, SECOND)[turn % 2]
                beside = tmp_path / "next"
                beside.write_text(good, encoding="utf-8")
                beside.rename(path)
                limiter.reload()
                limits = [str(limit) for limit in limiter.policies["p"].limits]
                assert limits == (["10/day", "100/week"], ["20/day", "15/week"])[turn % 2]
                if turn % 7 == 6:
                    path.unlink()
                else:
                    path.write_text(BROKEN[turn % 7], encoding="utf-8")
                for _ in range(2):
                    with pytest.raises(PolicyError, match=r"policies\.yaml"):
                        limiter.reload()
                assert [str(limit) for limit in limiter.policies["p"].limits] == limits
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert not failed, failed
        assert all(counts)
        assert set().union(*seen) == {"10/day", "15/week"}, "a decision by half of one file and half of another"
        path.write_text(SECOND, encoding="utf-8")
        limiter.reload()
        assert limiter.peek("p", "0 0").remaining == 13, "histories stay"
