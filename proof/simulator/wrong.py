"""Engines that are wrong on purpose: each a patch of the real one, with the broken promises that must give it away.

Refunding the same hit twice is no fault that can show: the stamp is the hit's identity, so the second refund finds
nothing. What can go wrong is to refund what an earlier attempt was granted, or to refund nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from capline.limiter.outage.outage import OutagePolicy
from capline.model.decision import Decision
from capline.model.errors import StoreUnavailableError
from capline.store.redis import joint, steps
from capline.store.redis.cluster.router import Router
from capline.store.redis.io import aio, lease
from capline.store.redis.io.wire import NoReply, pack
from capline.store.redis.scripting.scripts import ATTEMPT, JOINT, ONE
from capline.store.redis.session import Session
from capline.window import rule
from capline.window.log import LogBefore
from proof.simulator import scripts
from proof.simulator.network import commands_of
from proof.simulator.run import KINDS, Outcome, run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from capline.store.protocol import Operation

    Engine = Callable[[], AbstractContextManager[Any]]

__all__ = ["WRONG", "find"]

MOST_SEEDS = 60
LATE_S, STEP_US = 0.5, 700_000
ASKED = 5
"""Where attempt.lua has costs and ids, behind the keys."""


def _instead(owner: Any, name: str, make: Callable[[Any], Any]) -> AbstractContextManager[Any]:
    """Put what `make` makes of the real thing in its place."""
    return patch.object(owner, name, make(getattr(owner, name)))


def resends_what_may_have_run() -> AbstractContextManager[Any]:
    """A call without an id is sent again when its connection is lost."""

    def verdict(real: Any) -> Any:
        def again(self: Router, call: Any, *rest: Any) -> Any:
            return real(self, msgspec.structs.replace(call, repeatable=True), *rest)

        return again

    return _instead(Router, "_verdict", verdict)


def reads_anothers_reply() -> AbstractContextManager[Any]:
    """A connection goes back to the pool with replies that nobody read."""

    def keep(self: Any, key: Any) -> None:
        line = self._lines.pop(key, None)
        self._unread.pop(key, None)
        if line is not None:
            self._pool.give(key[0], line)

    async def usable(connection: Any) -> bool:
        return connection.is_open

    patched = ExitStack()
    patched.enter_context(patch(f"{lease.__name__}.Lease._drop", keep))
    patched.enter_context(patch.object(aio, "_usable", usable))
    return patched


def forgets_the_id_on_resend() -> AbstractContextManager[Any]:
    """What is sent again is sent without its ids."""

    def requests(real: Any) -> Any:
        def without_ids(self: Router, flight: Any, *rest: Any) -> Any:
            if flight.sent:
                flight.calls = [_without_ids(call) for call in flight.calls]
            return real(self, flight, *rest)

        return without_ids

    return _instead(Router, "_requests", requests)


def _without_ids(call: Any) -> Any:
    if call.script not in (ATTEMPT, JOINT, ONE):
        return call
    [command] = commands_of(call.payload)
    if call.script is JOINT:  # of each part the last of five, after the mode and the clock
        parts = range(9 + int(command[2]), len(command), 5)
        return msgspec.structs.replace(
            call, payload=pack(*[b"" if at in parts else argument for at, argument in enumerate(command)])
        )
    if call.script is ONE:  # behind the mode, the cost and the times
        at = 4 + int(command[2])
        command[at:] = [argument[: 24 if i == 0 else None] for i, argument in enumerate(command[at:])]
        return msgspec.structs.replace(call, payload=pack(*command))
    at = 3 + int(command[2]) + ASKED
    asked = command[at]
    command[at] = b"".join([asked[i : i + 7] + bytes(8) for i in range(0, len(asked), 15)])
    return msgspec.structs.replace(call, payload=pack(*command))


def takes_an_outage_for_a_refusal() -> AbstractContextManager[Any]:
    """Who cannot be answered is refused, as if by the store."""
    refused = Decision(False, None, 0, 1_000_000, None, None)
    return _instead(OutagePolicy, "single", lambda _: lambda *_: refused)  # pyright: ignore[reportUnknownLambdaType]


def answers_after_the_deadline() -> AbstractContextManager[Any]:
    """Replies are waited for longer than was asked for."""

    def read(real: Any) -> Any:
        def later(connection: Any, many: int, until: float) -> Any:
            return real(connection, many, until + LATE_S)

        return later

    return _instead(aio, "_read", read)


def gives_back_what_was_known() -> AbstractContextManager[Any]:
    """A joint attempt that comes to nothing takes back what an earlier one of the same ids was granted."""

    def joint_reply(real: Any) -> Any:
        def all_new(*asked: Any, **more: Any) -> Any:
            reply = real(*asked, **more)
            return msgspec.structs.replace(reply, parts=[(0, hit) for _, hit in reply.parts])

        return all_new

    return _instead(joint, "joint_reply", joint_reply)


def never_gives_back() -> AbstractContextManager[Any]:
    """A joint attempt that comes to nothing leaves the hits of its first slots."""

    def nothing(*_: Any) -> Iterator[None]:
        return iter(())

    return _instead(joint, "_give_back_all", lambda _: nothing)


def waits_for_no_replica() -> AbstractContextManager[Any]:
    """An answer is taken for safe before a replica has it."""

    def start(real: Any) -> Any:
        def at_once(self: Router, calls: Any, until: float, _: int = 0) -> Any:
            return real(self, calls, until, 0)

        return at_once

    return _instead(Router, "start", start)


def settles_without_a_replica() -> AbstractContextManager[Any]:
    """A settlement is taken for safe before a replica has it."""
    return _instead(steps, "replicas_of", _none_for("settle"))


def commits_without_a_replica() -> AbstractContextManager[Any]:
    """A commit is taken for safe before a replica has it."""
    return _instead(steps, "replicas_of", _none_for("commit"))


def _none_for(kind: str) -> Any:
    """What makes `replicas_of` wait for none where an operation is of this kind."""

    def make(real: Any) -> Any:
        def replicas_of(operation: Operation) -> int:
            return 0 if operation.kind == kind else real(operation)

        return replicas_of

    return make


def says_that_it_did_not_run() -> AbstractContextManager[Any]:
    """A call without an answer is said to have recorded nothing."""

    def error(real: Any) -> Any:
        def unavailable(self: Router, node: Any, reply: Any) -> Any:
            found = real(self, node, reply)
            return StoreUnavailableError(str(found)) if isinstance(reply, NoReply) else found

        return unavailable

    return _instead(Router, "_error", error)


def goes_by_the_callers_clock() -> AbstractContextManager[Any]:
    """Each host sends its own time, and the hosts' clocks differ."""
    offsets: dict[int, int] = {}

    def now(self: Session) -> bytes:
        loop: Any = asyncio.get_running_loop()
        return b"%d" % (loop.now_us() + offsets.setdefault(id(self), len(offsets) * STEP_US))

    return _instead(Session, "now", lambda _: now)


def moves_and_stays() -> AbstractContextManager[Any]:
    """A slot that moves to an earlier instant is at its old one as well."""

    def move(real: Any) -> Any:
        def twice(logs: Any, stamp_us: int, *asked: int) -> Any:
            units, decision = logs[0].log.units_at(stamp_us), real(logs, stamp_us, *asked)
            logs[0].log.amend(stamp_us, units)
            return decision

        return twice

    return _instead(scripts, "move", move)


def moves_past_the_quota() -> AbstractContextManager[Any]:
    """A slot moves to a millisecond before the instant that is free."""

    def take_slot(real: Any) -> Any:
        def early(parts: Any, *asked: Any) -> Any:
            found = real(parts, *asked)
            return msgspec.structs.replace(found, hit=found.hit - 1000) if type(parts[0][0].log) is LogBefore else found

        return early

    return _instead(rule, "take_slot", take_slot)


_FULL = frozenset(("over-quota-by-stamps", "over-quota-by-wall", "final-extra"))

WRONG: dict[Engine, tuple[str, frozenset[str]]] = {
    resends_what_may_have_run: ("single", _FULL),
    reads_anothers_reply: ("single", _FULL | {"one-stamp-twice", "stamp-outside-call", "final-lost"}),
    forgets_the_id_on_resend: ("single", _FULL | {"id-twice"}),
    takes_an_outage_for_a_refusal: ("single", frozenset(("refusal-unjustified", "final-extra"))),
    answers_after_the_deadline: ("single", frozenset(("late",))),
    gives_back_what_was_known: ("across", frozenset(("final-lost", "over-quota-by-wall"))),
    never_gives_back: ("across", _FULL),
    waits_for_no_replica: ("failover", frozenset(("final-lost", "over-quota-by-wall"))),
    settles_without_a_replica: ("settled", frozenset(("final-units",))),
    commits_without_a_replica: ("reserved", frozenset(("final-lost",))),
    moves_and_stays: ("moved", frozenset(("final-extra",))),
    moves_past_the_quota: ("moved", frozenset(("over-quota-by-stamps", "over"))),
    says_that_it_did_not_run: ("single", _FULL),
    goes_by_the_callers_clock: ("single", frozenset(("stamp-outside-call", "over-quota-by-wall"))),
}
"""Each wrong engine, with the kind of scenario that it is looked for in, and the faults that it must show."""


def find(wrong: Engine) -> Outcome | None:
    """The first seed that shows what it must; None where none of `MOST_SEEDS` does."""
    kind, expected = WRONG[wrong]
    for seed in range(KINDS.index(kind), len(KINDS) * MOST_SEEDS, len(KINDS)):
        outcome = run(seed, wrong)
        if outcome.broken & expected:
            return outcome
    return None
