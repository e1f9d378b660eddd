"""The law of configuration stores: what holds on every backend. A class for each backend inherits it."""

# pyright: reportPrivateUsage=false
# A crash in the middle of a change is made by hand.

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from capline import Limiter, ManualClock, Policy
from capline.config import local, servers
from capline.config.backend import MOST_FEED
from capline.config.configuration import Configuration
from capline.config.records import OVERRIDES, Totals, name_of
from capline.model.errors import ConfigConflictError, InvalidValueError, PolicyError, UnknownNameError

NOW_US = 1_800_000_000_000_000
PROMO = Policy("promo", ["3/day"])
PSP = Policy("psp", ["10/s", "100/minute"], by_segment={"big": ["50/s"]}, log="calls")
SUMS = Policy("sums", ["600/hour"], algorithm="bucketed", granularity="1min")

Opened = Configuration


class Law:
    """Every test, for the class of one backend; `url` is a fresh place each time."""

    @pytest.fixture
    def url(self) -> Iterator[str]:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def of_its_own(self) -> None:
        """Servers are shared by all tests; a namespace is not."""
        self.namespace = f"law-{uuid4().hex}"

    @pytest.fixture
    def one(self, url: str) -> Iterator[Configuration]:
        with Configuration(url, namespace=self.namespace, clock=ManualClock(NOW_US)) as configuration:
            yield configuration

    def test_each_change_is_a_version_with_its_time_and_author(self, one: Configuration) -> None:
        one.set_policies([PROMO], who="ann")
        one.set_policies([Policy("promo", ["5/day"])], who="bob")
        one.delete_policy("promo", who="cem")
        told = [(v.version, v.at_us, v.who, v.value) for v in one.policy_versions("promo")]
        assert told == [
            (3, NOW_US, "cem", None),
            (2, NOW_US, "bob", {"limits": ["5/day"]}),
            (1, NOW_US, "ann", {"limits": ["3/day"]}),
        ]
        assert one.policies == {}
        commits = [(c.version, c.who, c.verb, c.changes[0].policy) for c in one.commits()]
        assert commits == [(3, "cem", "delete", "promo"), (2, "bob", "set", "promo"), (1, "ann", "set", "promo")]

    def test_a_subject_in_the_clear_is_refused_where_limiters_have_a_key(self, one: Configuration, url: str) -> None:
        """No limiter would find its override; what was set before can be removed."""
        one.set_policies([PROMO])
        one.override("promo", "before", ["9/day"])
        key: dict[str, Any] = {"subject_key": b"k" * 16, "clock": ManualClock(NOW_US)}
        with Limiter.from_config(one, "memory://", namespace=self.namespace, **key) as limiter:
            with pytest.raises(PolicyError, match="have a subject_key, so none finds an override of 'u'"):
                one.override("promo", "u", ["9/day"])
            limiter.override("promo", "u", ["9/day"])
            assert limiter.peek("promo", "u").remaining == 8
        with Configuration(url, namespace=self.namespace) if one._backend.shared else nullcontext(one) as another:
            with pytest.raises(PolicyError, match="subject_key"):
                another.override_many("promo", {7: ["9/day"]})
            another.override("promo", "before", None)
            with pytest.raises(PolicyError, match="subject_key"):
                another.roll_back_override("promo", "before", 2)

    def test_a_policy_is_rolled_back(self, one: Configuration) -> None:
        one.set_policies([PROMO], who="ann")
        one.set_policies([Policy("promo", ["5/day"])])
        assert one.roll_back_policy("promo", 1, who="bob") == 3
        assert one.policies == {"promo": PROMO}
        assert one.policy("promo").who == "bob"
        with pytest.raises(InvalidValueError, match=r"has no version 7; it has: 3, 2, 1"):
            one.roll_back_policy("promo", 7)

    def test_the_same_again_is_no_change(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        one.override("promo", "u", ["9/day"])
        assert one.set_policies([PROMO]) == one.override("promo", "u", ["9/day"]) == 2
        assert one.override("promo", "nobody", None) == 2

    def test_an_override_of_text_is_not_of_the_integer(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        one.override("promo", "42", ["9/day"], who="ann")
        assert str(one.view.own("promo", "42").limits[0]) == "9/day"  # pyright: ignore[reportOptionalMemberAccess] - it fails
        assert one.view.own("promo", 42) is None
        assert one.view.own("psp", "42") is None
        one.override("promo", 42, ["8/day"])
        assert {subject: entry.value for subject, entry in one.overrides("promo")} == {"42": ["9/day"], 42: ["8/day"]}

    def test_an_override_is_rolled_back(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        one.override("promo", "u", ["9/day"], who="ann")
        one.override("promo", "u", None, who="bob")
        assert one.view.own("promo", "u") is None
        assert [v.value for v in one.override_versions("promo", "u")] == [None, ["9/day"]]
        one.roll_back_override("promo", "u", 2)
        assert [str(limit) for limit in one.view.own("promo", "u").limits] == ["9/day"]  # pyright: ignore[reportOptionalMemberAccess] - it fails
        assert one.view.totals["promo"].count == 1

    def test_an_override_may_have_a_granularity_of_its_own(self, one: Configuration) -> None:
        one.set_policies([PROMO, SUMS])
        assert one.override_many("sums", {"u": ["5/s"], "v": ["9/h"]}, granularity={"u": "100ms"}) == 2
        assert one.override("sums", "x", ["5/s"], granularity="50ms") == 3
        owns = one.view.owns("sums", ["x", "u"])
        assert [own and own.granularity for own in owns] == ["50000us", "100000us"]
        one.override("sums", "x", None)
        with_one = {"limits": ["5/second"], "granularity": "100000us"}
        assert {subject: entry.value for subject, entry in one.overrides("sums")} == {"u": with_one, "v": ["9/hour"]}
        assert one.override("sums", "u", ["5/s"], granularity="100000us") == 4, "the same again is no change"
        assert one.override("sums", "u", ["5/s"], granularity="50ms") == 5
        one.roll_back_override("sums", "u", 2)
        owns = one.view.owns("sums", ["u", "v"])
        assert [own and (str(own.limits[0]), own.granularity) for own in owns] == [
            ("5/second", "100000us"),
            ("9/hour", None),
        ]
        assert one.view.totals["sums"] == Totals(2, 3_600_000_000, 9)
        for policy, limits, granularity in (
            ("sums", ["5/s"], None),
            ("sums", ["5/s"], "1s"),
            ("sums", ["5/s"], "soon"),
            ("sums", None, "1s"),
            ("promo", ["9/day"], "1s"),
        ):
            with pytest.raises(PolicyError):
                one.override(policy, "u", limits, granularity=granularity)

    def test_an_override_without_one_is_stored_as_older_releases_read_it(self, one: Configuration) -> None:
        one.set_policies([SUMS])
        one.override("sums", "u", ["9/h", "20/day"], who="ann")
        (row,) = one._backend.get(OVERRIDES, [name_of("sums", "u")])
        assert row == (2).to_bytes(5) + msgspec.msgpack.encode([NOW_US, "ann", ["9/hour", "20/day"]])

    def test_totals_follow_every_way_of_changing(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        one.override_many("promo", {"u": ["9/day"], "v": ["1/week"]})
        assert one.view.totals["promo"] == Totals(2, 7 * 86_400_000_000, 9)
        one.override("promo", "v", None)
        assert one.view.totals["promo"] == Totals(1, 7 * 86_400_000_000, 9)
        one.override("promo", "u", None)
        assert one.view.totals["promo"] == Totals()

    def test_an_instant_to_come(self, one: Configuration) -> None:
        clock: Any = one.view._clock
        one.set_policies([PROMO])
        one.override("promo", "u", ["9/day"])
        at = "2027-01-15T08:00:10Z"  # ten seconds on
        one.set_policies([Policy("promo", ["5/day"]), PSP], effective_at=at)
        one.override("promo", "u", ["20/day"], effective_at=at)
        one.override("promo", "v", ["20/day"], effective_at=at)
        seen: list[Any] = []
        for _ in range(2):
            own = [one.view.own("promo", subject) for subject in ("u", "v")]
            seen.append((one.policies, [one_of and str(one_of.limits[0]) for one_of in own]))
            clock.advance_us(9_999_999 if len(seen) == 1 and clock.now_us() == NOW_US else 0)
        assert seen[1] == seen[0] == ({"promo": PROMO}, ["9/day", None])
        assert {entry.effective_us for entry in one.view.entries.values()} == {NOW_US + 10_000_000}
        clock.advance_us(1)
        assert one.policies == {"promo": Policy("promo", ["5/day"]), "psp": PSP}
        owns = [one.view.own("promo", subject) for subject in ("u", "v")]
        assert [own and str(own.limits[0]) for own in owns] == ["20/day", "20/day"]

    def test_limits_for_a_while_are_one_commit(self, one: Configuration) -> None:
        """What the subject had, or was to have, holds again; the bytes are those of a change to come."""
        clock: Any = one.view._clock
        one.set_policies([PROMO])
        one.override("promo", "vip", ["9/day"])
        until = "2027-01-15T08:00:10Z"  # ten seconds on
        subjects = ["vip", "u"]
        version = one.override_many("promo", {subject: ["50/week"] for subject in subjects}, who="ann", until=until)
        assert version == 3
        (row,) = one._backend.get(OVERRIDES, [name_of("promo", "u")])
        end_us = NOW_US + 10_000_000
        assert row is not None
        assert row[5:] == msgspec.msgpack.encode([NOW_US, "ann", None, end_us, ["50/week"]])
        assert one.view.totals["promo"] == Totals(2, 7 * 86_400_000_000, 50, {NOW_US // 3_600_000_000 + 1: 1})
        longer = one.override("promo", "u", ["60/week"], until="2027-01-15T08:00:20Z")
        assert one.roll_back_override("promo", "u", 3) == longer + 1
        for expected in (["50/week"] * 2, ["9/day", None]):
            assert [own and str(own.limits[0]) for own in one.view.owns("promo", subjects)] == expected
            clock.advance_us(10_000_000)
        one.roll_back_override("promo", "u", longer)
        assert one.view.own("promo", "u") is None, "they have ended"

    def test_limits_for_a_while_that_ended_are_neither_listed_nor_counted(self, one: Configuration, url: str) -> None:
        clock: Any = one.view._clock
        one.set_policies([PROMO])
        with (
            Configuration(url, namespace=self.namespace, clock=clock)
            if one._backend.shared
            else nullcontext(one) as another
        ):
            self._limits_that_end(one, clock, another)

    def _limits_that_end(self, one: Configuration, clock: Any, another: Configuration) -> None:
        one.override("promo", "vip", ["9/day"])
        for subject in ("vip", "u", "v", "w"):
            one.override("promo", subject, ["50/week"], until="2027-01-15T08:30:00Z")
        one.override("promo", "w", None)
        assert one.commits(most=1)[0].totals["promo"] == Totals(3, 7 * 86_400_000_000, 50), (
            "a commit has what older releases read"
        )

        def listed() -> tuple[list[Any], float]:
            page, following = one.overrides_page("promo", None, 50)
            assert following is None
            another.refresh()
            assert another.stats()["overrides"] == one.stats()["overrides"]
            return sorted((subject for subject, _ in page), key=str), one.stats()["overrides"]

        assert listed() == (["u", "v", "vip"], 3)
        clock.advance_us(1_800_000_000)
        assert listed() == (["vip"], 3), "it is counted until the hour is over"
        clock.advance_us(1_800_000_000)
        assert listed() == (["vip"], 1)
        one.override("promo", "u", ["60/week"], until="2027-01-15T10:30:00Z")
        assert listed() == (["u", "vip"], 2)
        one.override("promo", "v", ["60/week"])
        one.override("promo", "u", None)
        assert listed() == (["v", "vip"], 2)
        assert one.overrides_page("promo", None, 1)[1] is not None
        one.override_many("promo", dict.fromkeys(("v", "vip")))
        assert listed() == ([], 0)
        assert one.view.totals["promo"] == Totals()

    def test_limits_for_a_while_need_one_instant_that_is_ahead(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"until": "2027-01-15T08:00:02Z"}, "until '2027-01-15T08:00:02Z' is too soon"),
            ({"until": "2027-01-15T09:00:00Z", "effective_at": "2027-01-15T08:30:00Z"}, "not both"),
        ]
        for when, what in wrong:
            with pytest.raises(InvalidValueError, match=what):
                one.override("promo", "u", ["9/day"], **when)
        assert one.version == 1

    def test_a_deletion_to_come_may_be_brought_forward(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        one.delete_policy("promo", effective_at="2027-01-15T08:00:10Z")
        assert one.policies == {"promo": PROMO}
        one.delete_policy("promo")
        assert one.policies == {}
        with pytest.raises(UnknownNameError, match="is deleted already"):
            one.delete_policy("promo")
        with pytest.raises(UnknownNameError, match="no policy 'promo'"):
            one.override("promo", "u", ["9/day"])

    def test_an_instant_too_near_is_refused(self, one: Configuration) -> None:
        for wrong, what in (
            ("2027-01-15T08:00:02Z", "too soon"),
            ("2027-01-15T08:00:10", "no zone"),
            ("tomorrow", "not an instant"),
        ):
            with pytest.raises(InvalidValueError, match=what):
                one.set_policies([PROMO], effective_at=wrong)
        assert one.version == 0
        assert one.set_policies([PROMO], effective_at="2027-01-15T08:00:03Z") == 1

    def test_a_conditional_write_of_an_old_version_changes_nothing(self, one: Configuration) -> None:
        one.set_policies([PROMO], if_version=0)
        one.set_policies([Policy("promo", ["4/day"])], if_version=1)
        for late in (
            lambda: one.set_policies([Policy("promo", ["9/day"])], if_version=1),
            lambda: one.set_policies([Policy("promo", ["9/day"])], if_version=0),
            lambda: one.delete_policy("promo", if_version=1),
            lambda: one.override("promo", "u", ["9/day"], if_version=1),
        ):
            with pytest.raises(ConfigConflictError, match="read it again"):
                late()
        assert one.version == 2
        assert one.override("promo", "u", ["9/day"], if_version=0) == 3
        assert one.override("promo", "u", ["8/day"], if_version=3) == 4

    def test_a_late_finisher_undoes_nothing(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        one.override("promo", "u", ["9/day"])
        (old,) = one._backend.get(OVERRIDES, [name_of("promo", "u")])
        assert old is not None
        one.override("promo", "u", ["8/day"])
        one._backend.put([(OVERRIDES, name_of("promo", "u"), old)])
        entry = one.override_of("promo", "u")
        assert entry is not None
        assert entry.value == ["8/day"]

    def test_the_feed_is_bounded(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        backend = one._backend
        for version in range(1, MOST_FEED + 2):
            assert backend.commit(version, b"%d" % version, b"\x90", b"\x92\x00\x90", {})
            backend.settle(version + 1)
        assert backend.head(1).feed is None
        feed = backend.head(2).feed
        assert feed is not None
        assert len(feed) == MOST_FEED

    def test_the_feed_is_bounded_in_the_store(self, one: Configuration, monkeypatch: pytest.MonkeyPatch) -> None:
        one.set_policies([PROMO])
        for module in (local, servers):
            monkeypatch.setattr(module, "MOST_FEED", 5)
        for version in range(1, 10):
            assert one._backend.commit(version, b"%d" % version, b"\x90", b"\x92\x00\x90", {})
        monkeypatch.undo()
        assert len(one._backend.head(0).feed or range(5)) == 5, "older ones are gone"

    def test_a_commit_that_is_sent_twice_is_one(self, one: Configuration) -> None:
        one.set_policies([PROMO])
        told = one.commits()[0]
        assert one._backend.commit(0, told.token, b"", b"", {})
        assert not one._backend.commit(0, b"another", b"", b"", {})
        assert one._backend.head(0).version == 1

    def test_long_and_strange_subjects(self, one: Configuration) -> None:
        subjects = ["x" * 512, "é" * 256, "a/b\n{}\0c", "s:1", 0, (1 << 64) - 1]
        one.set_policies([PROMO])
        one.override_many("promo", {subject: [f"{n + 1}/day"] for n, subject in enumerate(subjects)})
        for n, own in enumerate(one.view.owns("promo", subjects)):
            assert own is not None
            assert own.limits[0].quota == n + 1
        listed = [subject for subject, _ in one.overrides("promo")]
        assert set(listed) == set(subjects)
        for at in (0, len(listed) // 2, len(listed) - 1):
            assert [subject for subject, _ in one.overrides("promo", listed[at])] == listed[at + 1 :], "as pages follow"

    def test_what_cannot_be_set(self, one: Configuration) -> None:
        one.set_policies([PROMO, Policy("gcra", ["3/day"], algorithm="gcra")])
        for wrong, error in (
            (lambda: one.override("nobody", "u", ["1/day"]), UnknownNameError),
            (lambda: one.override("promo", "u", []), PolicyError),
            (lambda: one.override("promo", "u", ["many"]), PolicyError),
            (lambda: one.override("promo", "", ["1/day"]), InvalidValueError),
            (lambda: one.override("gcra", "u", ["3/calendar day"]), PolicyError),
            (lambda: one.set_policies([Policy("other", ["1/day"], log="promo", layout="bucket")]), PolicyError),
            (lambda: one.delete_policy("nobody"), UnknownNameError),
            (lambda: one.set_policies([PROMO], who="a\nb"), InvalidValueError),
            (lambda: one.set_policies([Policy("promo", ["9/day"])], who="x" * 65), InvalidValueError),
        ):
            with pytest.raises(error):
                wrong()
        assert one.version == 1
        assert one.set_policies([Policy("promo", ["9/day"])], who="x" * 64) == 2


class SharedLaw(Law):
    """What holds beside where several processes share it."""

    @contextmanager
    def other(self, url: str) -> Generator[Configuration]:
        """Another process, as far as the store can tell."""
        with Configuration(url, namespace=self.namespace, clock=ManualClock(NOW_US)) as configuration:
            yield configuration

    def test_policies_come_back_as_they_were_set(self, one: Configuration, url: str) -> None:
        assert one.version == 0
        assert one.policies == {}
        assert one.set_policies([PROMO, PSP], who="ann") == 1
        assert one.policies == {"promo": PROMO, "psp": PSP}
        with self.other(url) as two:
            assert two.policies == one.policies
            assert two.version == 1

    WAYS: tuple[tuple[str, Callable[[Opened], object]], ...] = (
        ("set", lambda one: one.set_policies([Policy("promo", ["4/day"])])),
        ("set_new", lambda one: one.set_policies([Policy("new", ["4/day"])])),
        ("set_later", lambda one: one.set_policies([Policy("promo", ["4/day"])], effective_at="2030-01-01T00:00Z")),
        ("delete", lambda one: one.delete_policy("promo")),
        ("roll_back", lambda one: one.roll_back_policy("promo", 1)),
        ("override", lambda one: one.override("promo", "u", ["6/day"])),
        ("override_none", lambda one: one.override("promo", "u", None)),
        ("override_later", lambda one: one.override("promo", "u", ["6/day"], effective_at="2030-01-01T00:00Z")),
        ("override_many", lambda one: one.override_many("promo", {number: ["6/day"] for number in range(150)})),
        ("roll_back_override", lambda one: one.roll_back_override("promo", "u", 3)),
    )

    @pytest.mark.parametrize("way", [way for _, way in WAYS], ids=[name for name, _ in WAYS])
    def test_every_way_of_changing_reaches_others(
        self, one: Configuration, url: str, way: Callable[[Configuration], object]
    ) -> None:
        one.set_policies([PROMO])
        one.set_policies([Policy("promo", ["5/day"])])
        one.override("promo", "u", ["9/day"])
        one.override("promo", "u", ["8/day"])
        with self.other(url) as two:
            assert two.view.own("promo", "u") is not None
            assert two.view.own("promo", 7) is None  # cached now, as the one above
            version = two.version
            way(one)
            assert one.version == version + 1
            assert two.refresh()
            assert two.version == one.version
            assert two.view.entries == one.view.entries
            assert two.view.totals == one.view.totals
            for subject in ("u", 7):
                mine, theirs = one.view.own("promo", subject), two.view.own("promo", subject)
                assert (mine and mine.limits) == (theirs and theirs.limits)
            if way is self.WAYS[8][1]:
                assert two.view.own("promo", 7) is not None
            assert not two.refresh()

    def test_what_another_has_set_meanwhile_is_checked_too(self, one: Configuration, url: str) -> None:
        with self.other(url) as two:
            one.set_policies([PROMO])
            with pytest.raises(PolicyError):
                two.set_policies([Policy("other", ["1/day"], log="promo", layout="bucket")])
            assert two.version == 1

    def test_who_is_far_behind_reads_everything_again(self, one: Configuration, url: str) -> None:
        one.set_policies([PROMO])
        with self.other(url) as two:
            assert two.view.own("promo", "u") is None
            one.override("promo", "u", ["9/day"])
            two.view.version = -2 * MOST_FEED
            assert two.refresh()
            assert two.view.own("promo", "u") is not None
            assert two.view.totals["promo"].count == 1

    def test_those_who_write_at_once_lose_nothing(self, one: Configuration, url: str) -> None:
        one.set_policies([PROMO])
        failed: list[BaseException] = []

        def write(configuration: Configuration, first: int) -> None:
            try:
                for number in range(first, first + 5):
                    configuration.override("promo", number, [f"{number + 1}/day"])
            except BaseException as error:  # noqa: BLE001 - told by the test
                failed.append(error)

        with self.other(url) as two:
            threads = [
                threading.Thread(target=write, args=(configuration, 10 * n))
                for n, configuration in enumerate((one, two, one))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not failed
        one.refresh()
        assert one.version == 16
        assert one.view.totals["promo"].count == 15
        assert [commit.version for commit in one.commits()] == list(range(16, 0, -1))

    def test_a_writer_that_is_killed_after_its_commit_has_changed_it(
        self, one: Configuration, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one.set_policies([PROMO])
        one.override("promo", "u", ["9/day"])

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with self.other(url) as two:
            assert two.view.own("promo", "u") is not None
            monkeypatch.setattr(one._backend, "put", killed)
            with pytest.raises(KeyboardInterrupt):
                one.override_many("promo", {"u": ["7/day"], "v": ["7/day"]})
            monkeypatch.undo()
            assert one._backend.get(OVERRIDES, [name_of("promo", "v")]) == [None]  # it is pending
            two.refresh()
            for subject in ("u", "v"):
                assert str(two.view.own("promo", subject).limits[0]) == "7/day"  # pyright: ignore[reportOptionalMemberAccess] - it fails
            two.override("promo", "w", ["6/day"])  # the next writer finishes it
            assert one._backend.get(OVERRIDES, [name_of("promo", "v")]) != [None]
            assert two._backend.head(0).pending == []

    def test_many_overrides_are_many_commits(self, one: Configuration, url: str) -> None:
        one.set_policies([PROMO])
        one.override_many("promo", {number: ["9/day"] for number in range(1500)})
        assert one.version == 3
        with self.other(url) as two:
            assert two.view.totals["promo"].count == 1500
            assert None not in two.view.owns("promo", range(1500))
            assert sum(1 for _ in two.overrides("promo")) == 1500
