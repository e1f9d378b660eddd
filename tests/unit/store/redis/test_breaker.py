"""The circuit breaker of one server, on a clock that is an argument."""

from capline.store.redis.cluster.breaker import FAILURES, FIRST_S, LONGEST_S, Breaker


def test_when_the_pause_is_over_one_caller_tries_and_the_others_wait() -> None:
    breaker = Breaker()
    for _ in range(FAILURES):
        assert not breaker.blocks(10.0)
        breaker.failed(10.0, "no answer")
    assert breaker.blocks(10.0)
    now = 10.0 + 2 * FIRST_S
    assert [breaker.blocks(now) for _ in range(3)] == [False, True, True]
    breaker.answered()
    assert not breaker.blocks(now)


def test_failures_that_are_not_in_a_row_leave_it_closed() -> None:
    breaker = Breaker()
    for _ in range(10):
        for _ in range(FAILURES - 1):
            breaker.failed(10.0, "no answer")
        breaker.answered()
        assert breaker.failures == 0
    assert not breaker.blocks(10.0)


def test_pauses_double_up_to_the_longest() -> None:
    breaker, now, pauses = Breaker(), 0.0, list[float]()
    for _ in range(FAILURES - 1):
        breaker.failed(now, "no answer")
    for _ in range(12):
        assert not breaker.blocks(now)
        breaker.failed(now, "no answer")
        pauses.append(breaker.open_until - now)
        now += 2 * LONGEST_S
    for number, pause_s in enumerate(pauses):
        longest_s = min(FIRST_S * 2**number, LONGEST_S)
        assert longest_s / 2 <= pause_s <= longest_s


def test_calls_that_were_under_way_together_cost_one_pause() -> None:
    """Nine callers wait on a server that stalls: their failures are one, and only a trial that fails doubles."""
    breaker = Breaker()
    for _ in range(9):
        assert not breaker.blocks(10.0)
    for _ in range(9):
        breaker.failed(10.25, "no answer")
    assert breaker.open_until <= 10.25 + FIRST_S
    now = 11.0
    assert not breaker.blocks(now)
    for _ in range(9):
        breaker.failed(now, "no answer")
    assert breaker.open_until <= now + 2 * FIRST_S


def test_failures_that_come_late_do_not_push_the_trial_out() -> None:
    breaker = Breaker()
    for _ in range(20):
        assert not breaker.blocks(10.0)
    for number in range(20):
        breaker.failed(10.0 + number, "no answer")
    assert breaker.open_until <= 10.0 + FAILURES - 1 + FIRST_S
