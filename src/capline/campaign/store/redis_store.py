"""A campaign store on Redis or Valkey, for workers on any hosts: a queue. Decision 17 draws the keys.

Each verb is a script (`lua/`), whole or not at all. Every key expires 30 days after the last step. On a cluster
campaigns are in shares by their names: the keys of a share, the lists of its campaigns too, are in one slot.
"""

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec

from capline.campaign.store.packed import sort_key
from capline.campaign.store.protocol import EXPIRY_MS, MOST_CLAIMS, Batch, CampaignStore, Change, How
from capline.campaign.store.records import (
    Claimed,
    DeadLetter,
    DueCampaigns,
    InWork,
    Over,
    RetryBatch,
    RunFacts,
    State,
    StoredRun,
    Waiting,
)
from capline.campaign.store.rows import LARGEST_BATCH, BatchRows
from capline.campaign.store.server import Server
from capline.model.subject import Subject
from capline.store.redis.scripting.keys import slot_of

_LISTS = "capline:campaigns", "capline:{campaign:}due", "capline:{campaign:}names"
_SHARES = 16
_RATE, _RATE_EXPIRY_MS = "capline:{campaign:}rate:", 12 * EXPIRY_MS
_READ_BATCHES, _READ_SPANS = 16, 10_000
_MOST_IN_WORK = 10_000
_LOST = -2
"""Another worker prepares."""


class RedisCampaignStore(CampaignStore):
    """The verbs of `protocol`, on a server, or on those of a cluster."""

    OTHER_VERSION = (
        "queued by another version of capline; finish it with the capline worker of that version, or give it another "
        "name"
    )
    DAMAGED = "give the campaign another name and enqueue it again"
    IDENTITY = "store_identity"

    def __init__(self, server: Server) -> None:
        self.server = server
        tags = [f"capline:{{campaign:/{share:x}}}" for share in range(_SHARES)] if server.is_cluster else []
        self._shares = [(f"{tag}:", f"{tag}/open", f"{tag}/due", f"{tag}/names") for tag in tags]

    @property
    def url(self) -> str:
        """The server's URL, without user, password and options."""
        return self.server.url

    @property
    def shown(self) -> str:
        return f"queue {self.url}"

    def close(self) -> None:
        """Close the connection. May be called twice."""
        self.server.close()

    def check(self, patience_s: float = 0.0) -> list[str]:
        """Warnings of what the server may forget."""
        return self.server.check(patience_s)

    # ---- create

    def begin(self, run: StoredRun, worker: str = "", lease_s: float = 0) -> bool:
        words = run.facts.campaign, EXPIRY_MS, worker, int(lease_s * 1000), *_flat(run.fields())
        return self._run("begin", run.facts.campaign, *words) == run.facts.run_id.encode()

    def put_files(self, run: StoredRun) -> None:
        self.server.call("HSET", self._keys(run.facts.campaign)[0], *_flat(run.texts()))
        self.steer(run.facts.campaign)  # by its priority and how long it is kept

    def _steer(self, campaign: str, change: Change, due_us: int | None, until_us: int | None, by: str) -> bool:
        due, until = ("" if each is None else each for each in (due_us, until_us))
        call = secrets.token_hex(8)
        return bool(self._run("steer", campaign, campaign, EXPIRY_MS, due, change, until, by, call))

    def wake(self, campaign: str, numbers: Sequence[int]) -> None:
        self._run("wake", campaign, campaign, EXPIRY_MS, *numbers)

    def _rate_record(self, key: str) -> bytes | None:
        """Who reads it keeps it."""
        name = _RATE + key
        return self.server.calls(name, [("HGET", name, "rate"), ("PEXPIRE", name, _RATE_EXPIRY_MS)])[0]

    def _keep_rate(self, key: str, was: bytes, now: bytes) -> bool:
        return bool(self.server.run("swap", [_RATE + key], "rate", _RATE_EXPIRY_MS, was, now))

    def _values(self, campaign: str, *names: str) -> Sequence[Any]:
        return self.server.call("HMGET", self._keys(campaign)[0], *names)

    def describe(self, claimed: Claimed, run: StoredRun) -> None:
        self._run("describe", claimed.campaign, claimed.fence, EXPIRY_MS, claimed.campaign, *_flat(run.fields()))

    def _put(self, run: StoredRun, chunk: list[Batch], fence: int) -> int:
        name = run.facts.campaign
        words = [(*batch, msgspec.msgpack.encode(span) if span else b"") for *batch, span in chunk]
        queued = int(self._run("put", name, run.facts.run_id, EXPIRY_MS, name, fence, *chain.from_iterable(words)))
        if queued < 0 and queued != _LOST:
            raise self._gone(name)
        return max(queued, 0)

    def put_again(self, run: StoredRun, again: Iterable[RetryBatch]) -> int:
        """A script for each."""
        name = run.facts.campaign
        count = 0
        for count, batch in enumerate(again, 1):
            sources = [(rows.number, rows.pack(decided=False)[1]) for rows in batch.sources]
            words = batch.number, batch.rows, batch.data, name, batch.retried
            done = self._run("again", name, run.facts.run_id, EXPIRY_MS, *words, *chain.from_iterable(sources))
            if not done:
                return count - 1
        return count

    # ---- work

    def ages_s(self, within_s: float = 0, *, most: int = -1) -> dict[str, float]:
        """`most` are asked of each share."""
        ages_s: dict[str, float] = {}
        for *_, there, _next, _names in self._lists():
            [(seconds, micros)] = self.server.calls(there, [("TIME",)])
            now_us = int(seconds) * 1_000_000 + int(micros)
            until_us = now_us + within_s * 1e6
            flat = self.server.call("ZRANGE", there, "-inf", until_us, "BYSCORE", "LIMIT", 0, most, "WITHSCORES")
            ages_s |= {name.decode(): (now_us - float(due)) / 1e6 for name, due in _pairs(flat).items()}
        return dict(sorted(ages_s.items(), key=itemgetter(1), reverse=True))

    def look(self, most: int) -> DueCampaigns:
        """Cost: three commands for each share and each priority that occurs in it."""
        found: dict[bytes, bytes] = {}
        next_s = math.inf
        for keys in self._lists():
            next_ms, *flat = self.server.run("look", keys, most, EXPIRY_MS)
            next_s = min(next_s, next_ms / 1000 if next_ms >= 0 else math.inf)
            found |= _pairs(flat)
        first = sorted(found, key=lambda name: float(found[name]))[:most]
        return DueCampaigns([name.decode() for name in first], next_s)

    def _freeze(self, campaign: str, store: bytes) -> None:
        self._run("swap", campaign, self.IDENTITY, "", "", store)

    def claim(self, campaign: str, worker: str, lease_s: float) -> Claimed | DeadLetter | Waiting | Over:
        match self._run("claim", campaign, worker, EXPIRY_MS, int(lease_s * 1000), MOST_CLAIMS, campaign):
            case [b"batch", number, fence, rows, data, decided, outcome, run_id]:
                size = int(rows) if rows and rows.isdigit() and len(rows) <= len(str(LARGEST_BATCH)) else 0
                return Claimed(campaign, run_id.decode(), int(number), int(fence), size, data or b"", decided, outcome)
            case [b"aside", number, why]:
                return DeadLetter(int(number), why.decode(errors="replace"))
            case [b"none", in_work]:
                return Waiting(int(in_work))
            case _:
                return Over()

    def renew(self, claimed: Claimed) -> bool:
        return self._write("record", claimed)

    def record(self, claimed: Claimed, rows: BatchRows, *, decided: bool) -> bool:
        done_rows = len(rows) if rows.is_done else ""
        return self._write("record", claimed, *rows.pack(decided=decided), done_rows, msgspec.msgpack.encode(rows.span))

    def release(self, claimed: Claimed, how: How, why: str = "", *, wait_s: float = 0.0) -> bool:
        return self._write("release", claimed, how, why, int(wait_s * 1e6))

    def _write(self, script: str, claimed: Claimed, *words: object) -> bool:
        whose = claimed.fence, EXPIRY_MS, claimed.number, claimed.campaign
        return bool(self._run(script, claimed.campaign, *whose, *words))

    # ---- look

    def page(self, after: str, limit: int) -> list[str]:
        """Names of campaigns that have expired are taken out on the way."""
        return sorted(name for *_, names in self._lists() for name in self._page(names, after, limit))[:limit]

    def _page(self, listed: str, after: str, limit: int) -> list[str]:
        there: list[str] = []
        while len(there) < limit:
            some = self.server.call("ZRANGE", listed, f"({after}", "+", "BYLEX", "LIMIT", 0, limit - len(there))
            names = [name.decode() for name in some]
            exist = self.server.calls(listed, [("EXISTS", self._keys(name)[0]) for name in names])
            for name, is_there in zip(names, exist, strict=True):
                if is_there:
                    there.append(name)
                else:
                    self._run("forget", name, name)
            if not names:
                break
            after = names[-1]
        return there

    def _fields(self, campaign: str) -> Mapping[bytes, bytes]:
        return _pairs(self.server.call("HGETALL", self._keys(campaign)[0]))

    def _progress(self, campaign: str) -> tuple[Sequence[Any], float, tuple[InWork, ...], Mapping[int, str]]:
        run, waiting, held, steps, aside, *_ = self._keys(campaign)
        (*fields, by), first, leases, apart, (seconds, micros) = self.server.calls(
            run,
            [
                ("HMGET", run, *State.COUNTS, *State.MARKS),
                ("ZRANGE", waiting, 0, 0, "WITHSCORES"),
                ("ZRANGE", held, 0, _MOST_IN_WORK - 1, "WITHSCORES"),
                ("HGETALL", aside),
                ("TIME",),
            ],
        )
        in_work = tuple(self._in_work(steps, _pairs(leases), int(seconds) * 1_000_000 + int(micros)))
        dead = {int(number): why.decode(errors="replace") for number, why in sorted(_pairs(apart).items())}
        return (*fields, (by or b"").decode()), float(first[1]) if first else 0, in_work, dead

    def _in_work(self, steps: str, leases: dict[bytes, bytes], now_us: int) -> Iterator[InWork]:
        numbers = sorted(map(int, leases))
        fields = [[f"{number}:{name}" for name in ("by", "since", "lease", "claims", "error")] for number in numbers]
        found = self.server.calls(steps, [("HMGET", steps, *each) for each in fields])
        for number, (worker, since_us, lease_ms, claims, error) in zip(numbers, found, strict=True):
            if worker is not None:  # else it was settled meanwhile, or has expired
                renewed_us = float(leases[b"%d" % number]) - int(lease_ms or 0) * 1000
                silent_s = max(now_us - renewed_us, 0) / 1e6
                told = error.decode(errors="replace") if error else None
                yield InWork(number, worker.decode(), int(since_us or 0), silent_s, int(claims or 0), told)

    def steps(self, campaign: str, numbers: Sequence[int]) -> Iterator[BatchRows]:
        key = self._keys(campaign)[3]
        for start in range(0, len(numbers), _READ_BATCHES):
            some = numbers[start : start + _READ_BATCHES]
            answers = self.server.calls(
                key, [("HMGET", key, f"{number}:decided", f"{number}:outcome") for number in some]
            )
            for number, (decided, outcome) in zip(some, answers, strict=True):
                if decided is not None:
                    yield BatchRows.unpack(number, decided, outcome)

    def holding(self, campaign: str, subject: Subject, *, to: Subject | None = None) -> list[int]:
        numbers = range(self.state(campaign).queued)
        key, end, steps = sort_key(subject), sort_key(subject if to is None else to), self._keys(campaign)[3]
        holding: list[int] = []
        for start in range(0, len(numbers), _READ_SPANS):
            some = numbers[start : start + _READ_SPANS]
            found = self.server.call("HMGET", steps, *(f"{number}:ids" for number in some))
            for number, span in zip(some, found, strict=True):
                first, last = msgspec.msgpack.decode(span) if span else (key, end)
                if first <= end and key <= last:
                    holding.append(number)
        return holding[::-1]

    def stored(self, campaign: str, number: int) -> Claimed | None:
        run, waiting, _, steps, *_ = self._keys(campaign)
        names = [f"{number}:{name}" for name in ("fence", "rows", "data", "decided", "outcome")]
        (run_id,), (fence, rows, data, decided, outcome), due = self.server.calls(
            run, [("HMGET", run, "run_id"), ("HMGET", steps, *names), ("ZSCORE", waiting, number)]
        )
        if run_id is None or rows is None:
            return None
        size, due_us = int(rows), int(float(due or 0))
        return Claimed(campaign, run_id.decode(), number, int(fence or 0), size, data or b"", decided, outcome, due_us)

    def rewrite(self, was: Claimed, now: Claimed, rows: BatchRows | None, fewer: int | None, *, done: bool) -> bool:
        facts = self.server.call("HGET", self._keys(was.campaign)[0], "facts")
        if facts is None:
            return False
        left = msgspec.json.encode(msgspec.json.decode(facts, type=RunFacts).without(fewer))
        pairs = (facts, left, was.data, now.data, was.decided, now.decided, was.outcome, now.outcome)
        words = ["" if each is None else each for each in pairs]
        span = b"" if rows is None else msgspec.msgpack.encode(rows.span)
        return bool(self._run("rewrite", was.campaign, was.number, EXPIRY_MS, now.rows, int(done), *words, span))

    def _run(self, script: str, campaign: str, *arguments: object) -> Any:
        return self.server.run(script, self._keys(campaign), *arguments)

    def _keys(self, campaign: str) -> list[str]:
        prefix, lists = f"capline:{{campaign:{campaign}}}:", _LISTS
        if self._shares:
            share, *lists = self._shares[slot_of(campaign.encode()) % _SHARES]
            prefix = f"{share}{campaign}:"
        return [*(f"{prefix}{part}" for part in ("run", "waiting", "held", "steps", "aside")), *lists]

    def _lists(self) -> Iterator[list[str]]:
        """The lists of all campaigns, in each share: as keys of a script that is of no campaign."""
        for prefix, *lists in self._shares or [("capline:{campaign:}", *_LISTS)]:
            yield [*(f"{prefix}{part}" for part in ("run", "waiting", "held", "steps", "aside")), *lists]


def _flat(fields: Mapping[str, object]) -> list[object]:
    return [word for pair in fields.items() for word in pair]


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
