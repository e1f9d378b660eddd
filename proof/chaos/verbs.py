"""Each verb under `wait_replicas`, with the link to the replica cut, and the primary killed after the answer.

A verb whose loss would later admit too much is not answered without a replica, nor is an erasure, for privacy. The
others are answered: what a failover takes back of them errs towards refusing.
"""

from __future__ import annotations

import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.kit.server import soon
from tests.kit.servers import ServerError

from capline import Attempt, Limiter, PastHit, Policy
from capline.model.errors import StoreUnknownError
from capline.store.redis.scripting.keys import slot_of, tag_of
from proof.chaos.faults import Scene, come_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kit.servers import Cluster

__all__ = ["NOT_WAITING", "WAITING", "Row", "broken_rows", "policies", "verb_table", "with_hits"]

QUOTA, HITS = 20, 5
"""Units of a day, and those that the subject has used before."""
OPTIONS = "deadline=1s&bulk_deadline=1s"


def _first(answers: Any) -> Any:
    """The first answer; raises it if it is an error."""
    if isinstance(answers[0], Exception):
        raise answers[0]
    return answers[0]


WAITING: dict[str, Callable[[Any, int], Any]] = {
    "decide": lambda limiter, _: limiter.decide("p", "s"),
    "decide of several units": lambda limiter, _: limiter.decide("p", "s", 2),
    "decide with an id": lambda limiter, _: limiter.decide("p", "s", id="x"),
    "decide_batch": lambda limiter, _: _first(limiter.decide_batch([Attempt("p", "s"), Attempt("p", "{s}t")])),
    "decide_many": lambda limiter, _: _first([limiter.decide_many("p", ["s", "{s}t"]).errors.get(0)]),
    "decide_many with a receipt": lambda limiter, _: _first(
        [limiter.decide_many("p", ["s"], receipt="r").errors.get(0)]
    ),
    "charge": lambda limiter, _: limiter.charge("p", "s", 3),
    "reserve": lambda limiter, _: limiter.reserve("reserving", "s", ttl=60),
    "schedule": lambda limiter, _: limiter.schedule("p", "s"),
    "decide_all": lambda limiter, _: limiter.decide_all([Attempt("p", "{s}1"), Attempt("p", "{s}2")]),
    "schedule_all": lambda limiter, _: limiter.schedule_all([Attempt("p", "{s}1"), Attempt("p", "{s}2")]),
    "settle upward": lambda limiter, hit: limiter.settle("p", "s", hit, 8),
    "settle downward": lambda limiter, hit: limiter.settle("p", "s", hit, 2),
    "settle at what it was settled at": lambda limiter, hit: limiter.settle("p", "s", hit, 5),
    "commit": lambda limiter, hit: limiter.commit("reserving", "s", hit),
    "load": lambda limiter, hit: limiter.load([PastHit("p", "s", hit - 1)]),
    "load of what is known": lambda limiter, hit: limiter.load([PastHit("p", "s", hit, 5)]),
    "erase": lambda limiter, _: limiter.erase("s"),
    "erase of what is gone": lambda limiter, _: limiter.erase("{s}gone"),
}
"""Each verb that later admits too much where a failover loses it; erasures wait for privacy."""
NOT_WAITING: dict[str, Callable[[Any, int], Any]] = {
    "a refused decide": lambda limiter, _: limiter.decide("p", "s", 100).allowed is False,
    "peek": lambda limiter, _: limiter.peek("p", "s").allowed,
    "usage": lambda limiter, _: limiter.usage("p", "s")[0].used == 5,
    "explain": lambda limiter, hit: [one.stamp_us for one in limiter.explain("p", "s").hits] == [hit],
    "refund": lambda limiter, hit: limiter.refund("p", "s", hit),
    "refund_many": lambda limiter, hit: limiter.refund_many("p", ["s"], [hit]).all(),
    "settle at nothing": lambda limiter, hit: limiter.settle("p", "s", hit, 0),
    "cancel": lambda limiter, hit: limiter.cancel("reserving", "s", hit),
    "move": lambda limiter, slot: limiter.move("p", "s", slot).hit < slot,
    "load of what is old": lambda limiter, hit: limiter.load([PastHit("p", "s", hit - 10**12)]).old == 1,
}
"""Each verb that has nothing to lose, or whose loss errs towards refusing."""


class Row(NamedTuple):
    """One verb: what its caller was told, and what the new primary holds."""

    verb: str
    answered: bool
    told: int
    """Units in use by the primary that was killed, if it answered; else those of before."""
    held: int


def policies(layout: str, replicas: int) -> list[Policy]:
    """One to decide under, and one with reservations."""
    plain = Policy("p", [f"{QUOTA}/day"], layout=layout, population=100, wait_replicas=replicas)
    return [plain, plain.having(name="reserving", log="reserving", reservations=True)]


def with_hits(limiter: Any, verb: str) -> int:
    """The hit that the verb is about; in each log of the subject are `HITS` units, or a slot that may move to now."""
    reserved, hit = limiter.reserve("reserving", "s", HITS, ttl=3600).hit, limiter.decide("p", "s", HITS).hit
    if verb == "move":
        slot = limiter.schedule("p", "s", QUOTA).hit
        limiter.refund("p", "s", hit)
        return slot
    return reserved if verb in ("commit", "cancel") else hit


def verb_table(cluster: Cluster, replicas: int, made: Callable[..., Any] = Limiter) -> list[Row]:
    """Ask each verb, each in a namespace of its own, of a primary whose replica hears nothing; then kill it."""
    scene, run = Scene(cluster, random.Random("verbs"), ()), secrets.token_hex(5)
    primary = cluster.owner(slot_of(tag_of("s", 0)))
    replica = scene.replica_of(primary)
    place = f"redis+cluster://{','.join(one.address for one in cluster.primaries)}"
    asked: dict[str, Callable[[], Any]] = {}
    judges: dict[str, Limiter] = {}
    with ExitStack() as stack:
        for number, (verb, ask) in enumerate((WAITING | NOT_WAITING).items()):
            named: dict[str, Any] = {"namespace": f"{run}.{number}"}
            judge = stack.enter_context(Limiter(f"{place}?deadline=10s", policies("subject", 0), **named))
            url = f"{place}?{OPTIONS}"
            limiter = stack.enter_context(closing(made(url, policies("subject", replicas), **named)))
            asked[verb], judges[verb] = partial(ask, limiter, with_hits(judge, verb)), judge
            limiter.peek("p", "s")
        if not soon(primary.is_replicated):
            raise ServerError("the replica does not follow")
        replica.pause()
        try:
            primary.command("CLIENT", "KILL", "TYPE", "replica")
            with ThreadPoolExecutor(len(asked)) as pool:
                answers = {verb: pool.submit(ask) for verb, ask in asked.items()}
            failed = {verb: answer.exception() for verb, answer in answers.items()}
            told = {verb: _used(judge) if failed[verb] is None else 2 * HITS for verb, judge in judges.items()}
            primary.kill()
        finally:
            replica.resume()
        come_back(scene, primary, replica)
        strange = [error for error in failed.values() if not isinstance(error, StoreUnknownError | None)]
        if strange:
            raise strange[0]
        return [Row(verb, failed[verb] is None, told[verb], _used(judge)) for verb, judge in judges.items()]


def broken_rows(rows: list[Row]) -> list[Row]:
    """Those whose caller was answered although the new primary would admit more, or holds what was erased."""
    return [
        row for row in rows if row.answered and (row.held < row.told or ("erase" in row.verb and row.held > row.told))
    ]


def _used(limiter: Limiter) -> int:
    """Units that are taken now; all of them where a slot ahead holds everybody back."""
    return sum(
        QUOTA - limiter.peek(name, one, 0).remaining for name in ("p", "reserving") for one in ("s", "{s}1", "{s}2")
    )
