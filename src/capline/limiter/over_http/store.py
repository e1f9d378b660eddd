"""The instructions of a store, each a request to a service; a compiled rule is the attempt's names and its id.

    Operation(kind, Attempt, subject, …)  ->  POST /v1/{kind}  ->  Decision, or whether it was done

An instruction that HTTP has not raises what says so.
"""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode

import msgspec

from capline.limiter.explain import ExplainedHit, ExplainedLimit, Explanation
from capline.limiter.over_http.exchange import error_of
from capline.model.decision import Decision, Joint
from capline.model.errors import CaplineError, InvalidValueError
from capline.model.limit import limit_of_text
from capline.model.limit_status import LimitStatus
from capline.store.columns import Decisions, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from capline.limiter.over_http.exchange import Exchange
    from capline.limiter.steps import Steps
    from capline.model.attempt import Attempt
    from capline.model.subject import Subject
    from capline.store.protocol import Batch, Mode, Operation
else:
    from capline.model.arrays import np

_DONE = {"settle": "settled", "commit": "committed", "cancel": "cancelled", "refund": "refunded"}
_HAVE_COSTS = ("settle", "refund")
_TIMES = {"ttl_us": "ttl", "max_wait_us": "max_wait", "not_before_us": "not_before"}
_KINDS = ("decide", "peek", "charge", "reserve", "schedule", *_DONE)
_JOINT = ("decide", "schedule")


def absent(what: str) -> InvalidValueError:
    """What is raised for something that HTTP does not have."""
    return InvalidValueError(f"a limiter at a service has no {what}; make one on the service's own store for that")


def _driven(instruction: Callable[..., Steps[Any]]) -> Callable[..., Any]:
    """The instruction as a method, whose steps the store's `drive` makes."""

    @wraps(instruction)
    def call(store: ServiceStore, *args: Any) -> Any:
        return store.drive(instruction(store, *args))

    return call


class ServiceStore:
    """The instructions that a limiter gives: answered when they return if driven by `run`, awaited by `run_awaited`."""

    may_lose_answers = True

    def __init__(self, exchange: Exchange, drive: Callable[[Steps[Any]], Any]) -> None:
        self._ask, self.close, self.drive = exchange.ask, exchange.close, drive

    def at_hand(self) -> None:
        """Nothing: what a service does is awaited."""

    def __getattr__(self, verb: str) -> NoReturn:
        raise absent(verb)

    @_driven
    def step(self, operation: Operation) -> Steps[Any]:
        """POST /v1/{kind}; a decision, or whether it was done."""
        kind, attempt = operation.kind, operation.compiled
        if kind not in _KINDS:
            raise absent(kind)
        if kind in _DONE:
            form = {"policy": attempt.policy, "subject": operation.subject, "hit": operation.stamp_us}
            if kind in _HAVE_COSTS:
                form["cost"] = operation.cost
            # A refund that is asked for twice says False, so its answer would be lost.
            again = kind == "commit" or (kind == "settle" and operation.cost > 0)
            answer = yield from self._ask("POST", f"/v1/{kind}", form, again=again)
            return answer[_DONE[kind]]
        form = _form_of(attempt) | _times_of(operation) | {"usage": True}
        answer = yield from self._ask("POST", f"/v1/{kind}", form, again=kind == "peek" or attempt.id is not None)
        return _decision(answer)

    @_driven
    def joint(self, operations: Sequence[Operation]) -> Steps[Joint]:
        """POST /v1/{kind}/all."""
        kind, parts = operations[0].kind, [operation.compiled for operation in operations]
        if kind not in _JOINT:
            raise absent(f"{kind}_all")
        form = {"attempts": [*map(_form_of, parts)], "usage": True, **_times_of(operations[0])}
        named = all(part.id is not None for part in parts)
        answer = yield from self._ask("POST", f"/v1/{kind}/all", form, again=named)
        said = _decision(answer | {"hit": None, "usage": ()})
        joint = Joint.of(said, answer["hits"], answer["binds"])
        return msgspec.structs.replace(joint, _seen=(_states_of_parts, answer["usage"]))

    @_driven
    def rows(self, operations: Sequence[Operation]) -> Steps[list[Decision | CaplineError]]:
        """POST /v1/decide/batch, as rows."""
        if not operations:
            return []
        attempts = [operation.compiled for operation in operations]
        named = all(attempt.id is not None for attempt in attempts)
        answer = yield from self._ask("POST", "/v1/decide/batch", {"attempts": [*map(_form_of, attempts)]}, again=named)
        decisions = _decisions(answer)
        return [decisions.errors.get(row) or decisions[row] for row in range(len(decisions))]

    @_driven
    def columns(self, batch: Batch, mode: Mode) -> Steps[Any]:
        """POST /v1/decide/batch or /v1/refund/batch, as columns."""
        first, subjects = batch.compiled[0], plain(batch.subjects)
        form = {"policy": first.policy, "subjects": subjects, "cost": batch.cost}
        if mode == "refund":
            form["hits"] = plain(batch.stamps_us)
            answer = yield from self._ask("POST", "/v1/refund/batch", form)
            return np.array(answer["refunded"], np.bool_)
        if mode != "decide":
            raise absent(f"{mode}_many")
        if len({kind.zone for kind in batch.compiled}) > 1:
            raise absent("decide_many over several zones")
        form |= {"channel": first.channel, "zone": first.zone, "receipt": batch.receipt}
        if any(kind.keep_free for kind in batch.compiled):
            if batch.codes is None:
                form["keep_free"] = [first.keep_free] * len(subjects)
            else:
                form["keep_free"] = [batch.compiled[code].keep_free for code in batch.codes.tolist()]
        if batch.codes is None:
            form["segment"] = first.segment
        else:
            form |= {"segments": [kind.segment for kind in batch.compiled], "codes": batch.codes.tolist()}
        return _decisions((yield from self._ask("POST", "/v1/decide/batch", form, again=batch.receipt is not None)))

    @_driven
    def filled(self, _most: int) -> Steps[None]:
        """Nothing is known of the service's logs."""
        yield from ()

    @_driven
    def erase(self, _compiled: object, subject: Subject) -> Steps[int]:
        """DELETE /v1/subjects/{subject}; how many logs held something."""
        answer = yield from self._ask("DELETE", f"/v1/subjects/{_word(subject)}")
        return answer["erased_logs"]

    @_driven
    def override(self, policy: str, subject: Subject, form: dict[str, Any] | None, who: str | None) -> Steps[int]:
        """PUT or DELETE /v1/overrides/{policy}/{subject}; the configuration's version."""
        path = f"/v1/overrides/{quote(policy, safe='')}/{_word(subject)}"
        named = {} if who is None else {"who": who}
        if form is None:
            answer = yield from self._ask("DELETE", f"{path}?{urlencode(named)}")
        else:
            answer = yield from self._ask("PUT", path, form | named)
        return answer["version"]

    @_driven
    def usage(self, attempt: Attempt) -> Steps[tuple[LimitStatus, ...]]:
        """POST /v1/usage."""
        form = _form_of(attempt)
        del form["cost"], form["id"]
        answer = yield from self._ask("POST", "/v1/usage", form, again=True)
        return _states(answer["limits"])

    @_driven
    def explain(self, attempt: Attempt) -> Steps[Explanation]:
        """GET /v1/subjects/{subject}."""
        names = zip(("policy", "segment", "channel", "zone"), attempt.names, strict=True)
        query = urlencode({name: given for name, given in names if given is not None})
        answer = yield from self._ask("GET", f"/v1/subjects/{_word(attempt.subject)}?{query}", again=True)
        limits = [
            ExplainedLimit(
                now.get("log", ""),
                _limit(now["limit"]),
                now.get("used", 0),
                now.get("remaining", 0),
                tuple((free["at_us"], free["units"]) for free in now.get("frees", ())),
                now["binds"],
                now.get("quiet_until_us"),
            )
            for now in answer["limits"]
        ]
        return Explanation(
            attempt.policy,
            attempt.subject,
            answer["now_us"],
            _decision(answer["decision"]),
            tuple(limits),
            tuple(ExplainedHit(hit["hit"], hit["units"]) for hit in answer["hits"]),
            answer["algorithm"],
            answer["zone"] or "",
            answer["count_denied"],
            answer.get("shadow", False),
        )


def _form_of(attempt: Attempt) -> dict[str, Any]:
    policy, segment, channel, zone = attempt.names
    kept = {"keep_free": attempt.keep_free} if attempt.keep_free else {}
    return kept | {
        "policy": policy,
        "subject": attempt.subject,
        "cost": attempt.cost,
        "id": attempt.id,
        "segment": segment,
        "channel": channel,
        "zone": zone,
    }


def _times_of(operation: Operation) -> dict[str, float]:
    times = ((name, getattr(operation, field)) for field, name in _TIMES.items())
    return {name: time_us / 1e6 for name, time_us in times if time_us is not None and (name == "max_wait" or time_us)}


def _word(subject: Subject) -> str:
    return f"s:{quote(subject, safe='')}" if isinstance(subject, str) else f"i:{subject}"


def _us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


@lru_cache(1024)
def _limit(text: str | None) -> Any:
    return None if text is None else limit_of_text(text)


def _decision(answer: dict[str, Any]) -> Decision:
    return Decision(
        answer["allowed"],
        _limit(answer["limit"]),
        answer["remaining"],
        _us(answer["retry_after"]),
        _us(answer["reset_after"]),
        answer["hit"],
        answer["origin"],
        _us(answer.get("wait")) or 0,
        _us(answer.get("late")) or 0,
        (_states, answer["usage"]) if answer.get("usage") else (),
    )


def _states(limits: list[dict[str, Any]]) -> tuple[LimitStatus, ...]:
    return tuple(
        LimitStatus(
            _limit(now["limit"]),
            now["remaining"],
            _us(now["frees_in"]),
            _us(now["whole_in"]) or 0,
            now["name"],
            now["past"],
            now.get("shadow", False),
        )
        for now in limits
    )


def _states_of_parts(parts: list[list[dict[str, Any]]]) -> tuple[tuple[LimitStatus, ...], ...]:
    return tuple(map(_states, parts))


def _decisions(answer: dict[str, Any]) -> Decisions:
    limits = [*dict.fromkeys(text for text in answer["limit"] if text is not None)]
    index_of: dict[str | None, int] = {None: -1, **{text: index for index, text in enumerate(limits)}}
    kinds = answer["kinds"]

    def column(values: Any) -> Any:
        return np.array([-1 if value is None else value for value in values], np.int64)

    return Decisions(
        tuple(map(_limit, limits)),
        np.array(answer["allowed"], np.bool_),
        np.array([index_of[text] for text in answer["limit"]], np.int16),
        column(answer["remaining"]),
        column(map(_us, answer["retry_after"])),
        column(map(_us, answer["reset_after"])),
        column(answer["hit"]),
        {int(row): error_of(kinds.get(row), InvalidValueError, text) for row, text in answer["errors"].items()},
        answer["origin"],
        {int(row): origin for row, origin in answer["origins"].items()},
    )
