"""A store that fails when it is told to: a real one in memory, behind a door that can be shut."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from capline import Limiter
from capline.model.decision import Joint
from capline.model.errors import CaplineError, StoreError, StoreUnavailableError, StoreUnknownError
from capline.model.policy import BoundPolicy
from capline.model.subject import Subject
from capline.store.columns import NEVER_US, Decisions
from capline.store.local.aio import AsyncLocalStore
from capline.store.local.base import LocalStore
from capline.store.local.transaction import LocalRule
from capline.store.protocol import Batch, Mode, Operation
from capline.testing.conformance import Awaited


class Door:
    """Every instruction of the store behind it, counted in `calls` by its kind; raises `down` where that is set.

    One of a kind in `fails` does not come through.

    In batches the rows of the subjects in `lost` were sent, and their answers did not come; their hits say nothing.
    """

    may_lose_answers = False

    def __init__(self, store: LocalStore) -> None:
        self.store: Any = store
        self.down: StoreError | None = None
        self.lost: set[Subject] = set()
        self.fails: set[str] = set()
        self.calls: list[str] = []
        self.subjects: list[Subject] = []
        """The subjects of single attempts, as they came."""

    def through(self, name: str, instruction: Callable[..., Any], *asked: Any) -> Any:
        self.calls.append(name)
        if self.down is not None:
            raise self.down
        if name in self.fails:
            raise gone()
        return instruction(*asked)

    def compiled(self, rule: BoundPolicy) -> LocalRule:
        if self.down is not None:
            raise self.down
        compiled: LocalRule = self.store.compiled(msgspec.structs.replace(rule, wait_replicas=0))
        short_way = compiled.decide_one

        def decide_one(subject: Subject) -> Any:
            self.calls.append("decide")
            self.subjects.append(subject)
            if self.down is not None or "decide" in self.fails:
                raise self.down or gone()
            return short_way(subject)

        vars(compiled).update(decide_one=decide_one, ask=None)
        return compiled

    def __getattr__(self, name: str) -> Any:
        if name not in ("recorded", "scan", "filled", "erase", "sweep", "now_us", "try_write"):
            raise AttributeError(name)

        def call(*asked: Any) -> Any:
            if name in ("recorded", "erase"):
                self.subjects.append(asked[1])
            return self.through(name, getattr(self.store, name), *asked)

        return call

    def step(self, operation: Operation) -> Any:
        if operation.kind in ("decide", "peek", "schedule", "refund"):
            self.subjects.append(operation.subject)
        return self.through(operation.kind, self.store.step, operation)

    def units(self, *_: object) -> None:
        """It asks `joint`."""

    def joint(self, operations: Sequence[Operation]) -> Joint:
        return self.through(f"{operations[0].kind}_all", self.store.joint, operations)

    def rows(self, operations: Sequence[Operation]) -> list[Any]:
        answers = self.through("rows", self.store.rows, operations)
        return [lost() if ask.subject in self.lost else answer for ask, answer in zip(operations, answers, strict=True)]

    def columns(self, batch: Batch, mode: Mode) -> Any:
        answers = self.through(f"{mode}_many", self.store.columns, batch, mode)
        return answers if mode == "refund" else self._without_lost(batch, answers)

    def _without_lost(self, batch: Batch, answers: Decisions) -> Decisions:
        self.subjects += list(batch.subjects)
        rows = [row for row, subject in enumerate(np.array(batch.subjects).tolist()) if subject in self.lost]
        answers.errors = dict[int, CaplineError]({row: lost() for row in rows})
        answers.allowed[rows], answers.limit_index[rows], answers.remaining[rows] = False, -1, 0
        answers.retry_after_us[rows], answers.reset_after_us[rows] = NEVER_US, NEVER_US
        return answers

    def close(self) -> None:
        self.store.close()


def lost() -> StoreUnknownError:
    return StoreUnknownError("the answer did not come")


def gone() -> StoreUnavailableError:
    return StoreUnavailableError("nobody is there")


def behind_a_door(*policies: Any, asynchronous: bool = False, **options: Any) -> tuple[Any, Door]:
    """A limiter on a store in memory, and the door to that."""
    if asynchronous:
        awaited = Awaited("memory://", policies, **options)
        inner: Any = awaited.inner
        door = Door(inner._store.store)
        inner._store = AsyncLocalStore(door)  # pyright: ignore[reportArgumentType] - it has the verbs that are asked
        return awaited, door
    limiter: Any = Limiter("memory://", policies, **options)
    door = Door(limiter._store)
    limiter._store = door
    return limiter, door


def inner_of(limiter: Any) -> Any:
    """The limiter itself, where it is asked through a loop; to look inside."""
    return limiter.inner if isinstance(limiter, Awaited) else limiter


def close(limiter: Any) -> None:
    """Close it, and the loop that it was asked on."""
    limiter.close()
    if isinstance(limiter, Awaited):
        limiter.runner.close()
