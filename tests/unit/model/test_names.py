"""Policies may be named like routes; their logs are then named so that none can be taken for another."""

from pathlib import Path

import pytest

from capline import Attempt, Limiter, ManualClock, Policy, PolicyError
from capline.cli.input.target import read_also

ROUTE = "GET:/api/v1/search"
NAMES = [ROUTE, "/search", "GET::", "a:b/c", "a/b:c", "/" * 64, "x" + ":" * 63]


@pytest.mark.parametrize("url", ["memory://", "lmdb://{}/store"])
def test_every_name_has_logs_of_its_own(url: str, tmp_path: Path) -> None:
    policies = [Policy(name, ["2/day"], channels={"b": ["1/day"]}) for name in [*NAMES, "GET_search"]]
    with Limiter(url.format(tmp_path), policies, clock=ManualClock(1_700_000_000_000_000)) as limiter:
        for name in NAMES:
            decision = limiter.decide(name, "s", channel="b")
            assert [state.name for state in decision.limits] == [name, f"{name}/b"]
            assert (decision.allowed, bool(limiter.decide(name, "s", channel="b"))) == (True, False)
            assert limiter.peek(name, "s").remaining == 0
        assert limiter.decide_all([Attempt(ROUTE, "t"), Attempt("/search", "t")])
        records = list(limiter.export())
        assert len({record.log for record in records}) == 2 * len(NAMES)
        loaded = limiter.load(records)
        assert (loaded.records, loaded.added) == (len(records), 0)
        assert limiter.erase("s") == 2 * len(NAMES)


def test_a_policy_that_is_changed_keeps_its_log() -> None:
    policy = Policy(ROUTE, ["1/day"])
    assert policy.log == "GET%3A%2Fapi%2Fv1%2Fsearch"
    assert policy.having(limits=["2/day"]).log == policy.log
    assert Policy("/" * 64, ["1/day"]).having(limits=["2/day"]).log == "%2F" * 64


@pytest.mark.parametrize("name", ["", ":a", "-a", "a b", "a" * 65, "a%2F", "a\n", "{a}", "é"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(PolicyError, match="policy name"):
        Policy(name, ["1/day"])


@pytest.mark.parametrize("log", ["a:b", "a/b", "a%41", "%3Aa"])
def test_a_log_is_not_named_like_a_route(log: str) -> None:
    with pytest.raises(PolicyError, match="log name"):
        Policy("p", ["1/day"], log=log)


def test_the_command_line_takes_them() -> None:
    asked = read_also([f"{ROUTE}=acme", "/search:3=acme", "a:b:1=acme"], None, as_text=False)
    assert [(one.policy, one.cost) for one in asked] == [(ROUTE, 1), ("/search", 3), ("a:b", 1)]
