"""Logs that are exported and loaded: backfills, parts, records that are wrong."""

import random
from typing import Any

import pytest

from capline.limiter.arguments.records import LogRecord, PastHit
from capline.model.errors import CaplineError, InvalidValueError
from capline.model.limit import LARGEST_QUOTA
from capline.model.policy import Policy
from capline.testing.setting import POPULATION, SECOND, START_US, StoreSetting


class LogLaw(StoreSetting):
    """The checks."""

    def exported(self, limiter: Any) -> list[tuple[str, str, list[tuple[int, int, int]]]]:
        """Every log, in an order of its own: name, subject, hits."""
        return sorted((record.log, repr(record.subject), [*record.hits]) for record in limiter.export())

    def test_an_export_that_is_loaded_elsewhere_is_the_same_log_and_loaded_twice_still(self) -> None:
        policy = self.policy("p", ["5/h"], channels={"push": ["3/h"]}, log="shared")
        limiter = self.limiter(policy)
        subjects = ["42", 42, 0, 2**64 - 1, "é", "{x}", "}{", "%7D", "%257D", "a\0b", "'", "#1", "x" * 400]
        for i, subject in enumerate(subjects):
            self.at(i)
            first = limiter.decide("p", subject, 1 + i % 3, id=f"m{i}" if i % 2 else None)
            limiter.decide("p", subject, channel="push")
            if i % 4 == 0:
                limiter.refund("p", subject, first.hit)
        other = self.limiter(policy, namespace=f"{self.namespace}-2")
        before = self.exported(limiter)
        assert len(before) == 2 * len(subjects)
        told = {limit.log for channel in (None, "push") for limit in limiter.explain("p", "42", channel=channel).limits}
        assert told == {log for log, _, _ in before}, "explain names a log as its export does"
        hits = sum(len(record[2]) for record in before)
        self.at(len(subjects))
        loaded = other.load(limiter.export())
        assert (loaded.records, loaded.added, loaded.known) == (len(before), hits, 0)
        again = other.load(limiter.export())
        assert (again.added, again.known, again.old, again.ahead, again.failed) == (0, hits, 0, 0, 0)
        assert self.exported(other) == before
        for i, subject in enumerate(subjects):
            for channel in (None, "push"):
                assert other.peek("p", subject, channel=channel) == limiter.peek("p", subject, channel=channel)
            if i % 2:
                assert other.decide("p", subject, 1 + i % 3, id=f"m{i}") == limiter.decide(
                    "p", subject, 1 + i % 3, id=f"m{i}"
                )

    def test_hits_of_the_past_count_as_if_recorded_then(self) -> None:
        limiter = self.one("3/min", "5/h")
        self.at(3600)
        limiter.decide("p", "s")
        past = [(5, 2), (3580, 1), (3599, 1), (0, 1)]
        loaded = limiter.load([PastHit("p", "s", START_US + second * SECOND, cost) for second, cost in past])
        assert (loaded.records, loaded.added, loaded.old) == (4, 3, 1)
        assert [(hit.stamp_us // SECOND - START_US // SECOND, hit.units) for hit in limiter.explain("p", "s").hits] == [
            (5, 2),
            (3580, 1),
            (3599, 1),
            (3600, 1),
        ]
        refused = limiter.decide("p", "s")
        assert (refused.allowed, str(refused.limit), refused.retry_after) == (False, "3/minute", 40.0)
        self.at(3640)
        allowed = limiter.decide("p", "s")
        assert (allowed.allowed, allowed.remaining, str(allowed.limit)) == (True, 0, "3/minute")
        self.at(3700)
        assert limiter.decide("p", "s").remaining == 0
        refused = limiter.decide("p", "s")
        assert (str(refused.limit), refused.retry_after) == ("5/hour", 3580.0 + 3600 - 3700)

    def test_what_is_known_old_or_ahead_is_left_out(self) -> None:
        limiter = self.one("9/min")
        self.at(100)
        now = self.clock.now_us()
        limiter.decide("p", "s", 2, id="a")
        back = limiter.decide("p", "s")
        limiter.refund("p", "s", back.hit)

        def load(*hits: PastHit) -> tuple[int, int, int, int, int]:
            loaded = limiter.load(hits)
            return loaded.added, loaded.known, loaded.old, loaded.ahead, loaded.ambiguous

        assert load(PastHit("p", "s", back.hit - 60 * SECOND)) == (0, 0, 1, 0, 0)
        assert load(PastHit("p", "s", back.hit + 1)) == (0, 0, 0, 1, 0)
        assert load(PastHit("p", "s", back.hit - 60 * SECOND + 1)) == (1, 0, 0, 0, 0)
        assert load(PastHit("p", "s", now - 5, 7, id="a")) == (0, 1, 0, 0, 0)
        assert load(PastHit("p", "s", now, 2)) == (0, 1, 0, 0, 0)
        assert load(PastHit("p", "s", back.hit)) == (0, 1, 0, 0, 0)
        # Another hit of the same instant goes behind what stands there, if its id tells it from that.
        assert load(PastHit("p", "s", now, 3, id="c")) == (1, 0, 0, 0, 0)
        assert load(PastHit("p", "s", now, 3, id="c")) == (0, 1, 0, 0, 0)
        assert load(PastHit("p", "s", now - 9, id="b"), PastHit("p", "s", now - 8, id="b")) == (1, 1, 0, 0, 0)
        assert load(PastHit("p", "t", now), PastHit("p", "u", now + 1)) == (1, 0, 0, 1, 0)
        assert [(hit.stamp_us - now, hit.units) for hit in limiter.explain("p", "s").hits] == [
            (2 - 60 * SECOND, 1),
            (-9, 1),
            (0, 2),
            (1, 0),
            (2, 3),
        ]

    def test_a_hit_without_an_id_at_the_instant_of_other_units_is_ambiguous_and_never_added(self) -> None:
        """The same rows are what a settlement, or another import, has left: it cannot be told."""
        limiter = self.one("9/min", channels={"push": ["9/min"]})
        self.at(100)
        now = self.clock.now_us()
        first = [PastHit("p", "s", now - 9, 3, "push"), PastHit("p", "s", now - 8)]
        assert limiter.load(first).added == 2
        for _ in range(2):
            loaded = limiter.load([PastHit("p", "s", now - 9, channel="push"), *first])
            assert (loaded.added, loaded.known, loaded.ambiguous) == (0, 2, 1)
        assert limiter.settle("p", "s", now - 9, 5)
        loaded = limiter.load(first)
        assert (loaded.added, loaded.known, loaded.ambiguous) == (0, 1, 1)
        assert limiter.usage("p", "s")[0].used == 6
        named = limiter.load([PastHit("p", "s", now - 9, 2, id="x")])
        assert named.added == 1
        assert limiter.usage("p", "s")[0].used == 8

    def test_an_export_s_hits_are_known_by_their_stamps_whatever_their_units_are_by_now(self) -> None:
        limiter = self.one("9/min", channels={"push": ["9/min"]})
        hits = [limiter.decide("p", "s", 2, id=name, channel="push").hit for name in ("a", None)]
        before = list(limiter.export())
        for hit in hits:
            assert limiter.settle("p", "s", hit, 4)
        loaded = limiter.load(before)
        assert (loaded.added, loaded.known, loaded.ambiguous) == (0, 4, 0)
        assert limiter.usage("p", "s", channel="push")[0].used == 8

    def test_slots_are_not_moved_and_a_log_s_time_goes_no_further_than_now(self) -> None:
        policy = self.policy("p", ["2/10s"])
        limiter, other = self.limiter(policy), self.limiter(policy, namespace=f"{self.namespace}-2")
        self.at(100)
        for _ in range(2):
            limiter.decide("p", "s")
        self.at(109.5)
        slots = [limiter.schedule("p", "s") for _ in range(2)]
        assert [slot.wait > 0 for slot in slots] == [True, True]
        loaded = other.load(limiter.export())
        assert (loaded.added, loaded.ahead) == (2, 2)
        assert other.now_us() == self.clock.now_us()
        assert not other.decide("p", "s")
        self.at(110.1)
        assert other.decide("p", "s").hit == self.clock.now_us()

    def test_more_units_than_a_log_can_count_are_not_loaded(self) -> None:
        limiter = self.one("9/min")
        now = self.clock.now_us()
        rows = [(now - 9 + row, LARGEST_QUOTA, 0) for row in range(2)]
        with pytest.raises(InvalidValueError, match=r"record 1: .* more than this log can count"):
            limiter.load([LogRecord("p", "s", rows)])
        assert limiter.explain("p", "s").hits == ()
        assert limiter.load([LogRecord("p", "s", rows[:1])]).added == 1
        with pytest.raises(InvalidValueError, match="more than this log can count"):
            limiter.load([PastHit("p", "s", now - 5)])

    def test_hits_with_ids_are_two_though_they_have_one_stamp(self) -> None:
        limiter = self.one("9/min", channels={"push": ["9/min"]})
        now = self.clock.now_us()
        sent = [PastHit("p", "s", now - 5, channel="push", id=name) for name in ("a", "b", "a", "c")]
        for added, known in ((3, 1), (0, 4)):
            loaded = limiter.load(sent)
            assert (loaded.added, loaded.known) == (added, known)
        for state in limiter.explain("p", "s", channel="push").limits:
            assert [at_us - now - 60 * SECOND for at_us, _ in state.frees] == [-5, -4, -3]
        twice = LogRecord("p", "t", [(now - 9, 1, 7), (now - 5, 1, 7), (now - 5, 1, 8)])
        for added, known in ((2, 1), (0, 3)):
            loaded = limiter.load([twice])
            assert (loaded.added, loaded.known) == (added, known)
        assert limiter.decide("p", "s", id="b", channel="push").hit in (now - 5, now - 4, now - 3)
        assert limiter.refund("p", "s", now - 4) is True
        assert [state.used for state in limiter.explain("p", "s", channel="push").limits] == [2, 2]

    def test_a_long_log_is_exported_in_parts_and_merged_anywhere(self) -> None:
        policy = self.policy("p", ["5000/h"])
        limiter, other = self.limiter(policy), self.limiter(policy, namespace=f"{self.namespace}-2")
        times = list(range(0, 5200, 2))
        random.Random(4).shuffle(times)  # noqa: S311 - an order, not a secret
        self.at(3000)

        def record(seconds: list[int]) -> LogRecord:
            return LogRecord("p", "s", [(START_US + at * SECOND // 2 + at, 1 + at % 5 // 4, 0) for at in seconds])

        parts = [record(times[first : first + 650]) for first in range(0, len(times), 650)]
        assert limiter.load(parts).added == len(times)
        [*records] = limiter.export()
        assert [len(record.hits) for record in records] == [1000, 1000, 600]
        assert [hit for part in records for hit in part.hits] == [*record(sorted(times)).hits]
        assert other.load(records).added == len(times)
        assert other.load(reversed(records)).known == len(times)
        assert self.exported(other) == self.exported(limiter)
        more = [(START_US + 2700 * SECOND + at, 1, 0) for at in range(500)]
        assert [side.load([LogRecord("p", "s", more)]).added for side in (limiter, other)] == [500, 500]
        assert other.decide("p", "s") == limiter.decide("p", "s")
        assert other.peek("p", "s", 2000) == limiter.peek("p", "s", 2000)

    def test_every_log_of_many_is_exported(self) -> None:
        limiter = self.limiter(self.policy("p", ["5/h"]), self.policy("q", ["5/h"]))
        subjects = [*range(700), *(f"user:{i}" for i in range(700))]
        limiter.decide_many("p", subjects)
        limiter.decide("q", "s")
        assert {record.subject for record in limiter.export(["p"])} == set(subjects)
        assert [record.log for record in limiter.export(["q"])] == ["q"]
        self.at(3600)
        assert list(limiter.export()) == []

    def test_after_a_change_of_layout_and_back_nothing_is_left_behind(self) -> None:
        """Another layout may be another log, until it ages: export, erase and sweep look at both."""
        options: dict[str, Any] = {"channels": {"push": ["9/day"]}, "population": POPULATION}
        kinds = [Policy("p", ["9/day"], layout=layout, **options) for layout in ("subject", "bucket")]
        limiter = self.limiter(*kinds[:1])
        subjects = [7, 64, "ann", "#1", "~1", "{x}y"]
        for second, kind in enumerate(kinds):
            self.at(second)
            limiter.use([kind])
            for subject in subjects:
                assert limiter.decide("p", subject, 2, channel="push")
        units: dict[tuple[str, Any], int] = {}
        for record in limiter.export():
            key = record.log, record.subject
            units[key] = units.get(key, 0) + sum(hit[1] for hit in record.hits)
        assert units == {(log, subject): 4 for log in ("p", "p/push") for subject in subjects}
        for subject in subjects[:3]:
            assert limiter.erase(subject) in (2, 4)
            assert limiter.erase(subject) == 0
        assert {record.subject for record in limiter.export()} == set(subjects[3:])
        for kind in kinds:
            limiter.use([kind])
            assert [limiter.peek("p", subject, channel="push").remaining for subject in subjects[:3]] == [8, 8, 8]
        self.at(2 * 86_400)
        assert limiter.sweep() in (6, 12)
        assert limiter.sweep() == 0

    def test_a_window_is_lengthened_in_two_steps_while_processes_of_both_policies_decide(self) -> None:
        """A process keeps hits for its own widest window: first all learn of the longer one, then it binds."""
        before, between, after = (
            self.policy("p", limits) for limits in (["5/10s"], ["5/10s", "1000000/hour"], ["5/hour"])
        )
        limiter = self.limiter(before)
        limiter.use([between])
        for second in range(0, 100, 20):
            self.at(second)
            for policy in (after, between):
                limiter.use([policy])
                assert limiter.decide("p", "s").allowed == (second < 60 or policy is between)
        self.at(200)
        limiter.use([after])
        assert not limiter.decide("p", "s")

    def test_a_record_that_is_wrong_says_which_and_why(self) -> None:
        limiter = self.one("5/h", channels={"push": ["1/h"]})
        good = PastHit("p", "s", START_US)
        for bad, said in (
            (PastHit("nope", "s", START_US), "no policy 'nope'; there are: p"),
            (PastHit("p", "", START_US), "a subject is 1 to 512 bytes"),
            (PastHit("p", "s", START_US, 0), "a cost is 1 to"),
            (PastHit("p", "s", START_US, channel="sms"), "has no channel 'sms'; it has: push"),
            (PastHit("p", "s", -1), "no hit has this stamp"),
            (LogRecord("p/sms", "s", [(START_US, 1, 0)]), "no policy has a log 'p/sms'; there are: p, p/push"),
            (LogRecord("p", "s", []), "1 to 1000 hits, not 0"),
            (LogRecord("p", "s", [(START_US, 1, 0)], keyed=True), "give the limiter the subject_key"),
        ):
            with pytest.raises(CaplineError, match=r"^record 2: ") as raised:
                limiter.load([good, bad])
            assert said in str(raised.value)
