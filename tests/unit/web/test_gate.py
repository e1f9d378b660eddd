"""The heart of `capline.web`: one attempt for all rules, nothing consumed by a refusal, outages, shadows, refunds."""

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kit.web import NOON_US, QUOTA_EXCEEDED, Down, left, limits_said, local, policies

from capline import AsyncLimiter, CaplineError, Limiter, ManualClock, Policy, StoreClosedError, StoreUnavailableError
from capline.limiter.steps import run, run_awaited
from capline.web import Rule, key
from capline.web.gate import Gate, Visit


def asking(**fields: Any) -> Any:
    return SimpleNamespace(**fields)


BY_NAME: Callable[[Any], Any] = lambda request: request.name  # noqa: E731 - a key


def gate_of(*rules: Rule, limiter: Limiter | None = None, **options: Any) -> Gate:
    return Gate(limiter or local()[0], Limiter, rules, **options)


def entered(gate: Gate, request: Any = None, rules: Any = None) -> tuple[Visit, int]:
    visit = gate.visit()
    refusal = run(visit.enter(request or asking(name="ann"), gate.rules if rules is None else rules))
    return visit, 200 if refusal is None else refusal.status


BOTH = Rule("ip", "1.2.3.4"), Rule("user", BY_NAME)


def test_a_refusal_by_one_rule_consumes_of_none() -> None:
    gate = gate_of(*BOTH)
    assert [entered(gate)[1] for _ in range(5)] == [200, 200, 200, 429, 429]
    visit, status = entered(gate, asking(name="bob"))
    assert status == 200
    assert left(visit.headers()) == {"ip-10s": 1, "ip-hour": 96, "user-minute": 2}


def test_a_refusal_says_which_limits_and_when() -> None:
    gate = gate_of(*BOTH)
    for _ in range(3):
        entered(gate)
    visit, _ = entered(gate)
    assert visit.refusal is not None
    body = json.loads(visit.refusal.body)
    assert (body["type"], body["status"], body["violated-policies"]) == (QUOTA_EXCEEDED, 429, ["user-minute"])
    assert "1.2.3.4" not in visit.refusal.body.decode()
    assert visit.headers()["Retry-After"] == "60"
    assert limits_said(visit.headers())["user-minute"] == {"q": 3, "w": 60, "r": 0, "t": 60}


def test_retry_after_is_rounded_up_and_at_least_one() -> None:
    limiter, clock = local()
    gate = gate_of(Rule("login", "a"), limiter=limiter)
    entered(gate)
    entered(gate)
    clock.advance_us(58_999_999)
    assert entered(gate)[0].headers()["Retry-After"] == "2"
    clock.advance_us(1_000_000)
    assert entered(gate)[0].headers()["Retry-After"] == "1"


def test_a_cost_that_never_fits_says_so() -> None:
    visit, status = entered(gate_of(Rule("login", "a", cost=9)))
    assert status == 429
    assert visit.refusal is not None
    assert "never" in json.loads(visit.refusal.body)["detail"]
    assert "Retry-After" not in visit.headers()


def test_a_limit_with_just_enough_left_is_not_blamed() -> None:
    gate = gate_of(Rule("login", "a"), BOTH[1])
    refusal = [entered(gate)[0] for _ in range(3)][-1].refusal
    assert refusal is not None
    assert json.loads(refusal.body)["violated-policies"] == ["login-minute"]


def test_a_rule_of_the_route_that_refuses_gives_back_what_was_consumed_before() -> None:
    gate = gate_of(*BOTH)
    limiter: Limiter = gate.limiter
    route = gate.check(Rule("login", "a"))
    statuses: list[int] = []
    visit = gate.visit()
    for _ in range(4):
        visit, _ = entered(gate)
        refusal = run(visit.enter(asking(name="ann"), route))
        statuses.append(200 if refusal is None else refusal.status)
    assert statuses == [200, 200, 429, 429]
    assert limiter.peek("user", "ann").remaining == 0, "two consumed, and this one"
    assert left(visit.headers()) == {"ip-10s": 3, "ip-hour": 98, "user-minute": 1, "login-minute": 0}
    assert visit.headers()["Retry-After"] == "60"


def test_headers_by_choice() -> None:
    for form, names in {
        "draft-11": {"RateLimit-Policy", "RateLimit"},
        "legacy": {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"},
        None: set[str](),
    }.items():
        gate = gate_of(*BOTH, headers=form)
        assert set(entered(gate)[0].headers()) == names
        refused = [entered(gate)[0] for _ in range(3)][-1]
        assert set(refused.headers()) == names | {"Retry-After"}
    assert len(entered(gate_of(*BOTH, headers="both"))[0].headers()) == 5


def test_none_skips_a_rule_and_so_does_a_cost_of_nothing() -> None:
    gate = gate_of(Rule("user", BY_NAME), Rule("login", "a", cost=lambda request: request.cost))
    visit, status = entered(gate, asking(name=None, cost=0))
    assert (status, visit.headers()) == (200, {})
    assert list(limits_said(entered(gate, asking(name=None, cost=2))[0].headers())) == ["login-minute"]
    assert entered(gate, asking(name="ann", cost=0))[1] == 200


def test_limits_by_segment() -> None:
    gate = gate_of(Rule("tier", BY_NAME, segment=lambda request: request.tier))
    assert [entered(gate, asking(name="a", tier="paid"))[1] for _ in range(5)] == [200] * 4 + [429]
    assert [entered(gate, asking(name="b", tier=None))[1] for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("bad", ["", "k" * 600, "\udcff", "a\nb\r\nSet-Cookie: c=1", "\0", 7])
def test_a_key_of_any_text_is_limited(bad: Any) -> None:
    gate = gate_of(Rule("login", BY_NAME), Rule("user", BY_NAME))
    assert [entered(gate, asking(name=bad))[1] for _ in range(3)] == [200, 200, 429]
    visit, status = entered(gate, asking(name="other"))
    assert status == 200
    assert not any("\r" in value or "\n" in value for value in visit.headers().values())


def test_two_rules_on_one_log_are_one_attempt_of_both_costs() -> None:
    gate = gate_of(Rule("ip", "1.2.3.4"), Rule("ip", BY_NAME, cost=2))
    visit, _ = entered(gate, asking(name="1.2.3.4"))
    assert left(visit.headers()) == {"ip-10s": 2, "ip-hour": 97}


SHARED = [Policy("site", ["4/minute"], log="all"), Policy("login", ["2/minute"], log="all")]


def on_one_log(*rules: Rule, **options: Any) -> Gate:
    return gate_of(*rules, limiter=Limiter("memory://", SHARED, clock=ManualClock(NOON_US)), **options)


def test_two_policies_on_one_log_are_decided_one_after_the_other() -> None:
    """As where a client sends its own address as its name."""
    seen: list[str] = []
    gate = on_one_log(Rule("site", "1.2.3.4"), Rule("login", BY_NAME), on_outcome=seen.append)
    visit, status = entered(gate, asking(name="1.2.3.4"))
    assert (status, seen) == (200, ["allowed"])
    assert left(visit.headers()) == {"site-minute": 2, "login-minute": 0}
    visit, status = entered(gate, asking(name="1.2.3.4"))
    assert (status, seen) == (429, ["allowed", "refused"])
    assert left(visit.headers()) == {"site-minute": 2, "login-minute": 0}
    assert gate.limiter.peek("site", "1.2.3.4", 0).remaining == 2, "the first was given back"
    visit, status = entered(gate, asking(name="other"))
    assert (status, left(visit.headers())) == (200, {"site-minute": 1, "login-minute": 1})


def test_rules_on_one_log_are_given_back_each_by_its_own_choice() -> None:
    gate = on_one_log(Rule("site", "a", cost=2, refund_if=500), Rule("site", "a"))
    for status, remaining in ((500, 3), (200, 0)):
        visit, _ = entered(gate)
        run(visit.leave(SimpleNamespace(status_code=status)))
        assert gate.limiter.peek("site", "a", 0).remaining == remaining
        assert left(visit.headers()) == {"site-minute": remaining}


def test_rules_of_one_policy_keep_each_its_own_segment() -> None:
    gate = gate_of(Rule("tier", "a", segment="paid"), Rule("tier", "a", segment="paid", cost=2), Rule("tier", "a"))
    visit, status = entered(gate)
    assert status == 429, "one unit is all that it may have without a segment"
    assert gate.limiter.peek("tier", "a", 0, segment="paid").remaining == 4
    gate = gate_of(*gate.rules[:2])
    visit, status = entered(gate)
    assert (status, left(visit.headers())) == (200, {"tier-minute": 1})


def test_a_later_round_that_cannot_be_consumes_nothing() -> None:
    gate = on_one_log(Rule("site", "a"), Rule("login", "a", cost=lambda _: -1))
    with pytest.raises(CaplineError, match="cost"):
        entered(gate)
    assert gate.limiter.peek("site", "a", 0).remaining == 4


def test_a_function_that_raises_consumes_nothing() -> None:
    def failing(_: Any) -> int:
        raise KeyError("items")

    gate = gate_of(Rule("ip", "1.2.3.4"), Rule("login", "a", cost=failing))
    with pytest.raises(KeyError):
        entered(gate)
    assert gate.limiter.peek("ip", "1.2.3.4").remaining == 4


@pytest.mark.parametrize("cost", [-1, 1.5, True, None])
def test_a_cost_that_is_none_raises_and_consumes_nothing(cost: Any) -> None:
    gate = gate_of(Rule("ip", "1.2.3.4"), Rule("login", "a", cost=lambda _: cost))
    with pytest.raises(CaplineError, match="cost"):
        entered(gate)
    assert gate.limiter.peek("ip", "1.2.3.4").remaining == 4


def test_an_outage_lets_requests_through_or_is_503_and_never_429() -> None:
    for choice, status, outcome in (("allow", 200, "failed-open"), ("deny", 503, "failed-closed")):
        seen: list[str] = []
        gate = gate_of(*BOTH, on_error=choice, on_outcome=seen.append)
        with Down(gate.limiter):
            visit, answered = entered(gate)
        assert (answered, seen) == (status, [outcome])
        assert visit.headers() == {}
        if visit.refusal is not None:
            assert visit.refusal.headers == {"Retry-After": "1"}


def test_an_outage_is_one_line_a_minute_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    gate = gate_of(*BOTH)
    with Down(gate.limiter):
        assert [entered(gate)[1] for _ in range(3)] == [200] * 3
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == ["requests are let through"]


def test_an_outage_in_the_route_gives_back_what_was_consumed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("the store is away; nothing was recorded")

    gate = gate_of(Rule("user", BY_NAME), on_error="deny")
    visit, _ = entered(gate)
    with monkeypatch.context() as patched:
        patched.setattr(gate.limiter, "decide", away)
        refusal = run(visit.enter(asking(name="ann"), (Rule("login", "a"),)))
    assert refusal is not None
    assert refusal.status == 503
    assert gate.limiter.peek("user", "ann").remaining == 2, "nothing is used"
    visit, _ = entered(gate)
    with Down(gate.limiter):
        refusal = run(visit.enter(asking(name="ann"), (Rule("login", "a"),)))
    assert refusal is not None
    assert refusal.status == 503, "though nothing could be given back"


def test_the_limiters_own_choice_for_an_outage_is_no_refusal_either() -> None:
    for choice, status, outcome in (("allow", 200, "failed-open"), ("deny", 503, "failed-closed")):
        for rules in (BOTH, BOTH[:1]):
            seen: list[str] = []
            gate = gate_of(*rules, limiter=local(on_store_error=choice)[0], on_outcome=seen.append)
            with Down(gate.limiter):
                assert entered(gate)[1] == status
            assert seen == [outcome]


def test_a_closed_limiter_is_no_outage() -> None:
    gate = gate_of(*BOTH)
    gate.limiter.close()
    with pytest.raises(StoreClosedError):
        entered(gate)


def test_a_shadow_decides_and_counts_and_refuses_nothing() -> None:
    seen: list[str] = []
    gate = gate_of(*BOTH, shadow=True, on_error="deny", on_outcome=seen.append)
    visits = [entered(gate) for _ in range(5)]
    assert [status for _, status in visits] == [200] * 5
    assert seen == ["allowed"] * 3 + ["shadow-refused"] * 2
    assert [visit.headers() for visit, _ in visits] == [{}] * 5
    with Down(gate.limiter):
        assert entered(gate)[1] == 200


def failed(answer: Any) -> bool:
    return answer.status_code >= 500


@pytest.mark.parametrize("refund_if", [500, range(500, 600), {500}, failed])
def test_an_answer_that_should_not_count_is_given_back(refund_if: Any) -> None:
    gate = gate_of(Rule("ip", "1.2.3.4"), Rule("login", "a", refund_if=refund_if))
    for status, remaining in ((500, 1), (200, 0)):
        visit, _ = entered(gate)
        assert visit.may_refund
        run(visit.leave(asking(status_code=status)))
        assert gate.limiter.peek("login", "a").remaining == remaining
    assert gate.limiter.peek("ip", "1.2.3.4").remaining == 2, "it counts every answer"


def test_all_units_of_a_request_are_given_back() -> None:
    limiter = Limiter("memory://", [Policy("api", ["3/day"], algorithm="gcra")], clock=ManualClock(NOON_US))
    gate = gate_of(Rule("api", "a", cost=3, refund_if=500), limiter=limiter)
    run(entered(gate)[0].leave(asking(status_code=500)))
    assert limiter.peek("api", "a").remaining == 2


def test_what_is_given_back_is_left_in_the_headers_too() -> None:
    gate = gate_of(Rule("ip", "1.2.3.4"), Rule("login", "a", refund_if=500))
    for status, remaining in ((500, 2), (200, 1), (500, 1)):
        visit, _ = entered(gate)
        run(visit.leave(asking(status_code=status)))
        assert left(visit.headers())["login-minute"] == remaining
    assert left(visit.headers()) == {"ip-10s": 2, "ip-hour": 97, "login-minute": 1}
    alone = gate_of(Rule("login", "a", refund_if=500))
    visit, _ = entered(alone)
    run(visit.leave(asking(status_code=500)))
    assert limits_said(visit.headers()) == {"login-minute": {"q": 2, "w": 60, "r": 2}}


def test_a_refusal_is_not_given_back() -> None:
    gate = gate_of(Rule("login", "a", refund_if=429))
    visits = [entered(gate)[0] for _ in range(3)]
    run(visits[-1].leave(asking(status_code=429)))
    assert gate.limiter.peek("login", "a").allowed is False


def test_paths_are_exempt_as_they_are_or_by_their_beginning() -> None:
    gate = gate_of(exempt=["/healthz", "/static/*"])
    assert [gate.is_exempt(path) for path in ("/healthz", "/healthz/x", "/static/a.css", "/")] == [
        True,
        False,
        True,
        False,
    ]
    assert not gate.is_exempt("/static-reports")


def test_one_code_for_both_kinds_of_limiter() -> None:
    async def statuses() -> list[int]:
        async with AsyncLimiter("memory://", policies(), clock=ManualClock(NOON_US)) as limiter:

            async def name_later(request: Any) -> str:
                await asyncio.sleep(0)
                return request.name

            gate = Gate(limiter, AsyncLimiter, [Rule("user", name_later), Rule("ip", "1")], may_await=True)
            answers: list[int] = []
            for _ in range(4):
                refusal = await run_awaited(gate.visit().enter(asking(name="ann"), gate.rules))
                answers.append(200 if refusal is None else refusal.status)
            with Down(limiter):
                assert await run_awaited(gate.visit().enter(asking(name="ann"), gate.rules)) is None
            return answers

    assert asyncio.run(statuses()) == [200, 200, 200, 429]


async def later(_: Any) -> str:
    await asyncio.sleep(0)
    return ""


BAD: list[Callable[[], Any]] = [
    lambda: gate_of(Rule("nobody", "a")),
    lambda: gate_of("ip"),  # pyright: ignore[reportArgumentType]
    lambda: gate_of(headers="draft-03"),
    lambda: gate_of(on_error="raise"),
    lambda: gate_of(exempt="/healthz"),
    lambda: gate_of(exempt=["healthz"]),
    lambda: gate_of(exempt=[1]),
    lambda: gate_of(headers=["legacy"]),
    lambda: gate_of(shadow="yes"),
    lambda: gate_of(on_outcome=1),
    lambda: gate_of(Rule("tier", "a", segment="gold")),
    lambda: gate_of(Rule("ip", "a", channel="sms")),
    lambda: Gate(Limiter("memory://", policies()), Limiter, Rule("ip", "a")),  # pyright: ignore[reportArgumentType]
    lambda: Rule("ip", key.ip),
    lambda: Rule("ip", key.header),
    lambda: Rule("ip", key.joined),
    lambda: Rule("ip", "a", segment=1),  # pyright: ignore[reportArgumentType]
    lambda: gate_of(Rule("ip", later)),
    lambda: gate_of(*[Rule("ip", "a")] * 17),
    lambda: Gate(AsyncLimiter("memory://"), Limiter),
    lambda: Rule("ip", ""),
    lambda: Rule("ip", "a", cost=0),
    lambda: Rule("ip", "a", refund_if="500"),  # pyright: ignore[reportArgumentType]
    lambda: Rule("ip", "a", refund_if=later),  # pyright: ignore[reportArgumentType]
    lambda: Rule(1, "a"),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize("make", BAD)
def test_bad_settings_are_one_line_before_any_request(make: Callable[[], Any]) -> None:
    with pytest.raises(CaplineError) as raised:
        make()
    assert "\n" not in str(raised.value)


def test_the_rules_of_a_route_count_with_those_of_all_requests() -> None:
    gate = gate_of(*[Rule("ip", "a")] * 15)
    assert len(gate.check(Rule("login", "a"))) == 1
    with pytest.raises(CaplineError, match="17 rules for one request; at most 16"):
        gate.check(Rule("login", "a"), Rule("user", "a"))


def test_a_policy_name_of_any_kind_does_not_split_a_header() -> None:
    limiter = Limiter("memory://", [Policy("a.b", ["1/s", "2/s"][:1])])
    visit, _ = entered(gate_of(Rule("a.b", "x"), limiter=limiter))
    assert list(limits_said(visit.headers())) == ["a.b-second"]
