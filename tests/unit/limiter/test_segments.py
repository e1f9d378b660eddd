"""A limiter that knows segments: what it opens, what it follows, what it costs those who do not need it."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.kit.segments import directory_site, make, make_text

from capline import AsyncLimiter, Configuration, Limiter, Policy
from capline.limiter.policies.segments import SegmentLookup
from capline.model.errors import InvalidTypeError, InvalidValueError, SegmentError
from capline.segment import IdSet, SegmentWatch, Snapshot, load_snapshot

PROMO = Policy("promo", ["3/day"], by_segment={"new": ["1/day"], "active": ["5/day"]})
PLAIN = Policy("plain", ["2/day"])


def limits(limiter: Limiter, *subjects: Any) -> list[str]:
    return [str(limiter.peek("promo", subject).limit) for subject in subjects]


def test_a_snapshots_directory(tmp_path: Path) -> None:
    where = make(tmp_path, "v1", new=[1], active=[2])
    for address in (where, str(where), load_snapshot(where)):
        with Limiter("memory://", policies=[PROMO], segments=address) as limiter:
            assert limits(limiter, 1, 2, 3) == ["1/day", "5/day", "3/day"]
            assert [limiter.segment_of("promo", one) for one in (1, 2, 3)] == ["new", "active", None]


def test_text_ids_are_looked_up_as_they_are(tmp_path: Path) -> None:
    where = make_text(tmp_path, tmp_path / "ids", "v1", new=["ann", "42"], active=["böb"])
    with Limiter("memory://", policies=[PROMO], segments=where) as limiter:
        assert limits(limiter, "ann", "böb", "42", "Ann") == ["1/day", "5/day", "1/day", "3/day"]
        with pytest.raises(InvalidValueError, match="subject 42 is a number, and the segments have text ids"):
            limiter.decide("promo", 42)
        many = limiter.decide_many("promo", ["böb", 42, "ann", "nobody"])
        assert [str(many[row].limit) for row in (0, 2, 3)] == ["5/day", "1/day", "3/day"]
        assert list(many.errors) == [1]
        assert list(limiter.decide_many("promo", np.array([1, 2])).errors) == [0, 1]


def test_a_publication_is_fetched_and_closed_with_the_limiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site = directory_site(tmp_path)
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]))
    with Limiter("memory://", policies=[PROMO], segments=site.url) as limiter:
        assert limits(limiter, 1, 2) == ["1/day", "5/day"]

    async def ask() -> str:
        async with AsyncLimiter("memory://", policies=[PROMO], segments=site.url) as limiter:
            return str((await limiter.decide("promo", 2)).limit)

    assert asyncio.run(ask()) == "5/day"


def test_a_watch_is_followed_and_stays_the_callers(tmp_path: Path) -> None:
    site = directory_site(tmp_path)
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]))
        watch = site.watch(tmp_path / "cache")
        watch.poll()
        with Limiter("memory://", policies=[PROMO, PLAIN], segments=watch) as limiter:
            assert limits(limiter, 1, 2) == ["1/day", "5/day"]
            publisher.publish(make(tmp_path, "v2", new=[2], active=[1]))
            assert limits(limiter, 1, 2) == ["1/day", "5/day"]
            watch.poll()
            assert limits(limiter, 1, 2) == ["5/day", "1/day"]
            # What was served last goes on, and the watch says that it may be old.
            site.delete("pointer.json")
            watch.poll()
            assert limits(limiter, 1, 2) == ["5/day", "1/day"]
            assert watch.status.error is not None
        assert watch.current.version == "v2"
    watch.stop()


def test_a_policy_that_does_not_differ_keeps_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = Snapshot({"new": IdSet([1]), "active": IdSet([2])}, "v1")

    def forbid(*_: object) -> None:
        pytest.fail("looked up, or past the fast path")

    with Limiter("memory://", policies=[PROMO, PLAIN], segments=segments) as limiter:
        limiter.decide("plain", 1)
        limiter.decide("promo", 1, segment="active")
        monkeypatch.setattr(SegmentLookup, "segment_of", forbid)
        monkeypatch.setattr(limiter, "_checked", forbid)
        assert limiter.decide("plain", 1)
        assert limiter.decide("promo", 1, segment="active")
        monkeypatch.setattr(SegmentLookup, "fill", forbid)
        assert limiter.decide_many("plain", ["ann", 7]).allowed.all()


def test_a_policy_that_differs_has_a_fast_path_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = directory_site(tmp_path)
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]))
        watch = site.watch(tmp_path / "cache")
        watch.poll()
        with Limiter("memory://", policies=[PROMO], segments=watch) as limiter:
            limiter.decide("promo", 99)

            def forbid(*_: object) -> None:
                pytest.fail("past the fast path")

            with monkeypatch.context() as patch:
                patch.setattr(limiter, "_checked", forbid)
                decided = [str(limiter.decide("promo", subject).limit) for subject in (1, 2, 3)]
                assert decided == ["1/day", "5/day", "3/day"]
                publisher.publish(make(tmp_path, "v2", new=[2], active=[1]))
                watch.poll()
                assert [limiter.decide("promo", subject).remaining for subject in (1, 2)] == [3, 0]
                with pytest.raises(InvalidValueError, match="name its segment"):
                    limiter.decide("promo", "ann")
            limiter.use([Policy("promo", ["3/day"], by_segment={"active": ["9/day"]})])
            assert [str(limiter.decide("promo", subject).limit) for subject in (1, 2)] == ["9/day", "3/day"]
            assert [str(limiter.decide("promo", subject).limit) for subject in (1, 2)] == ["9/day", "3/day"]
    watch.stop()


def test_what_cannot_be_read_is_one_error_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for address in ("nowhere", "empty", f"file://{tmp_path}/empty", "ftp://there"):
        with pytest.raises(SegmentError) as caught:
            Limiter("memory://", policies=[PROMO], segments=address)
        assert "\n" not in str(caught.value)
    with pytest.raises(SegmentError, match="call start"):
        Limiter("memory://", policies=[PROMO], segments=SegmentWatch(tmp_path / "empty", tmp_path / "cache"))
    wrong: Any = 7
    with pytest.raises(InvalidTypeError, match="segments is an address"):
        Limiter("memory://", policies=[PROMO], segments=wrong)


def test_a_segment_that_there_is_not_is_named_and_keeps_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    segments = Snapshot({"new": IdSet([1]), "vip": IdSet([2])}, "v1", overlapping=["vip"])
    plain = Policy("promo", ["3/day"], by_segment={"new": ["1/day"]})
    for name in ("actve", "vip"):
        policy = Policy("promo", ["3/day"], by_segment={name: ["5/day"]})
        for begin in (plain, policy):
            with Limiter("memory://", policies=[begin], segments=segments) as limiter:
                limiter.use([policy])
                assert limits(limiter, 1, 2) == ["3/day", "3/day"]
                assert limiter.missing_segments == {"promo": [name]}
        assert f"segment '{name}', which the segments of version v1 lack" in caplog.text


def test_a_receipt_knows_a_batch_whose_segments_moved(tmp_path: Path) -> None:
    site = directory_site(tmp_path)
    with site.publisher() as publisher, site.watch(tmp_path / "cache", interval_s=86_400) as watch:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]))
        watch.poll()
        with Limiter("memory://", policies=[PROMO], segments=watch) as limiter:
            first = limiter.decide_many("promo", [1, 3], receipt="r")
            publisher.publish(make(tmp_path, "v2", new=[1], active=[7]))
            watch.poll()
            assert list(limiter.decide_many("promo", [1, 3], receipt="r")) == list(first)
            publisher.publish(make(tmp_path, "v3", new=[7], active=[1]))
            watch.poll()
            assert list(limiter.decide_many("promo", [1, 3], receipt="r")) == list(first)
            assert limiter.peek("promo", 1).remaining == 3


def test_a_policy_file_may_list_a_segment_before_it_is_published(tmp_path: Path) -> None:
    site, policies = directory_site(tmp_path), tmp_path / "policies.yaml"
    form = "namespace: t\npolicies:\n  promo:\n    limits: [3/day]\n    by_segment: {%s: [1/day]}\n"
    policies.write_text(form % "new", encoding="utf-8")
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1]))
        with (
            site.watch(tmp_path / "cache") as watch,
            Limiter.from_file(policies, "memory://", segments=watch) as limiter,
        ):
            policies.write_text(form % "later", encoding="utf-8")
            assert limiter.reload()
            assert (limits(limiter, 1), limiter.missing_segments) == (["3/day"], {"promo": ["later"]})
            with Limiter.from_file(policies, "memory://", segments=watch) as again:
                assert again.policies == limiter.policies, "a restart has no less"
            publisher.publish(make(tmp_path, "v2", later=[1, 2]))
            watch.poll()
            assert not limiter.reload()
            assert (limits(limiter, 2), limiter.missing_segments) == (["1/day"], {})


def test_policies_of_a_configuration_and_segments_come_into_force_independently(tmp_path: Path) -> None:
    site, configuration = directory_site(tmp_path), Configuration("memory://")
    configuration.set_policies([PROMO])
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]))
        with (
            site.watch(tmp_path / "cache") as watch,
            Limiter.from_config(configuration, "memory://", segments=watch) as limiter,
        ):
            later = Policy("later", ["3/day"], by_segment={"later": ["7/day"], "new": ["2/day"]})
            configuration.set_policies([later, Policy("other", ["4/day"])])
            configuration.override("later", 5, ["9/day"])
            assert [str(limiter.peek("later", one).limit) for one in (1, 2, 5)] == ["2/day", "3/day", "9/day"]
            assert limiter.peek("other", "u", segment="new").remaining == 3
            assert limiter.missing_segments == {"later": ["later"]}
            with Limiter.from_config(configuration, "memory://", segments=watch) as again:
                assert again.policies == limiter.policies, "a restart has no less"
            publisher.publish(make(tmp_path, "v2", new=[1], active=[3], later=[2]))
            watch.poll()
            assert (str(limiter.peek("later", 2).limit), limiter.missing_segments) == ("7/day", {})


def test_segments_that_a_later_version_lacks_keep_no_override_back(tmp_path: Path) -> None:
    site = directory_site(tmp_path)
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]))
        with site.watch(tmp_path / "cache") as watch, Limiter("memory://", [PROMO], segments=watch) as limiter:
            publisher.publish(make(tmp_path, "v2", active=[2]))
            watch.poll()
            limiter.override("promo", 1, ["2/minute"])
            assert limits(limiter, 1) == ["2/minute"]
            assert limiter.missing_segments == {"promo": ["new"]}
