"""`--retry-failed`: exactly those who failed, within the caps as they then are, whatever is killed meanwhile."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import Far, Site, ledger_of, with_sender

from capline import Limiter
from capline.campaign import Job, Ledger, Report, Stop, report_of, run
from capline.campaign.senders.protocol import DELIVERED, PERMANENT

FAILING = {subject for subject in range(400) if subject % 9 == 4}


class Killed(BaseException):
    """What kill -9 is to a process."""


def go(
    job: Job,
    limiter: Limiter,
    directory: Path,
    *,
    retry_failed: bool = False,
    around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda step: step,
) -> Report:
    with closing(Stop()) as stop, ledger_of(job, directory) as ledger:
        for name in ("claim", "record", "put_again"):
            setattr(ledger.store, name, around(getattr(ledger.store, name)))
        run(job, limiter, ledger, stop, retry_failed=retry_failed, pause=lambda _s: None)
        return report_of(ledger)


def down(until: dict[int, int]) -> Far:
    """A far side that refuses some subjects until they were tried so often."""
    return Far(lambda subject, tries: PERMANENT if tries <= until.get(subject, 0) else DELIVERED)


def hits(limiter: Limiter) -> list[int]:
    """The units of each subject that count."""
    return [sum(hit.units for hit in limiter.explain("promo", subject).hits) for subject in range(400)]


def test_exactly_the_failed_are_tried_again(tmp_path: Path) -> None:
    far = down(dict.fromkeys(FAILING, 1))
    job = with_sender(Site(tmp_path).job(), far)
    with job.open_limiter("memory://") as limiter:
        first = go(job, limiter, tmp_path / "run")
        assert (first.total.failed, first.total.sent) == (len(FAILING), 400 - len(FAILING))
        assert go(job, limiter, tmp_path / "run") == first, "without the option nothing is tried again"
        second = go(job, limiter, tmp_path / "run", retry_failed=True)
        assert (second.total.failed, second.total.sent, second.total.audience) == (0, 400, 400)
        assert (second.state, second.failures) == ("finished", {})
        assert {subject for subject, tries in far.tries.items() if tries == 2} == FAILING
        assert {len(keys) for keys in far.keys.values()} == {1}
        assert hits(limiter) == [1] * 400
        assert go(job, limiter, tmp_path / "run", retry_failed=True) == second, "nobody is left to try"
    assert [part.audience for part in second.segments] == [part.audience for part in first.segments]


def test_a_retry_keeps_the_caps_as_they_then_are(tmp_path: Path) -> None:
    far = down(dict.fromkeys(FAILING, 1))
    job = with_sender(Site(tmp_path).job(), far)
    with job.open_limiter("memory://") as limiter:
        go(job, limiter, tmp_path / "run")
        capped = sorted(FAILING)[-3:]
        for subject in capped:
            assert limiter.decide("promo", subject, segment="new" if subject < 200 else None)
        report = go(job, limiter, tmp_path / "run", retry_failed=True)
        assert (report.total.refused, report.total.refused_by) == (3, {"1/day": 3})
        assert (report.total.sent, report.total.failed) == (397, 0)
        assert not set(capped) & set(far.delivered())
        assert hits(limiter) == [1] * 400


def test_who_fails_again_may_be_tried_again(tmp_path: Path) -> None:
    far = down({subject: 1 + subject // 9 % 3 for subject in FAILING})
    job = with_sender(Site(tmp_path).job(batch="20"), far)
    with job.open_limiter("memory://") as limiter:
        left = [go(job, limiter, tmp_path / "run").total.failed]
        while left[-1]:
            left.append(go(job, limiter, tmp_path / "run", retry_failed=True).total.failed)
        assert left == [sum(subject // 9 % 3 >= n for subject in FAILING) for n in range(4)]
        assert far.delivered() == list(range(400))
        assert hits(limiter) == [1] * 400
    with Ledger.read(tmp_path / "run") as ledger:
        assert all(len(rows) <= 20 for rows in ledger.batches())
        assert ledger.state().done == 400


def test_a_first_pass_that_was_cut_off_is_finished_before_the_failed_are_tried_again(tmp_path: Path) -> None:
    far = down(dict.fromkeys(FAILING, 1))
    job = with_sender(Site(tmp_path).job(), far)
    with job.open_limiter("memory://") as limiter:
        with pytest.raises(Killed):
            go(job, limiter, tmp_path / "run", around=_dying_at(9))
        assert go(job, limiter, tmp_path / "run", retry_failed=True).total.sent == 400
        assert hits(limiter) == [1] * 400


def _dying_at(step: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Die before and after so many steps, counting both."""
    count = 0

    def around(take: Callable[..., Any]) -> Callable[..., Any]:
        def taken(*args: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                raise Killed
            answer = take(*args, **named)
            count += 1
            if count == step:
                raise Killed
            return answer

        return taken

    return around


def test_killed_at_any_step_of_a_retry_it_ends_the_same(tmp_path: Path) -> None:
    def outcome(path: Path, step: int) -> tuple[Any, ...] | None:
        """What becomes of a run whose retry dies at this step; None where it was over before."""
        path.mkdir()
        site = Site(path)
        site.audience(range(60))
        far = down({subject: 1000 if subject % 2 else 1 for subject in FAILING})
        job = with_sender(site.job(batch="20", segments=None), far)
        with job.open_limiter("memory://") as limiter:
            go(job, limiter, path / "run")
            died = False
            try:
                go(job, limiter, path / "run", retry_failed=True, around=_dying_at(step))
            except Killed:
                died = True
                with Ledger.read(path / "run") as ledger:
                    state = ledger.state()
                    over = state.finished and state.batches > job.batches
                if not over:  # else it died after its last step
                    go(job, limiter, path / "run", retry_failed=True)
            if step and not died:
                return None
            with Ledger.read(path / "run") as ledger:
                report = report_of(ledger)
            return report.total, far.delivered(), hits(limiter)

    expected = outcome(tmp_path / "unkilled", 0)
    assert expected is not None
    assert expected[0].failed == sum(subject % 2 for subject in FAILING if subject < 60) > 0
    step = 1
    while (found := outcome(tmp_path / str(step), step)) is not None:
        total, delivered, counted = found
        # What was under way may have been taken: it is not known, and keeps its hit.
        assert (total.sent, total.failed + total.not_known) == (expected[0].sent, expected[0].failed), step
        assert delivered == expected[1]
        assert sum(counted) == sum(expected[2]) + total.not_known
        assert all(mine >= theirs for mine, theirs in zip(counted, expected[2], strict=True))
        step += 1
    assert step > 10
