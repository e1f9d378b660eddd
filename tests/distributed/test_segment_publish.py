"""Publishing, in a directory and on a real S3 server: what is written where, who wins, what is never deleted."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from tests.kit.s3 import S3
from tests.kit.segments import Site, directory_site, file_of, make, make_text, s3_site

from capline import ManualClock
from capline.model.errors import SegmentConflictError, SegmentError
from capline.segment.publish import collect as collect_module
from capline.segment.publish import extends, versions
from capline.segment.publish import publish as publish_module
from capline.segment.publish.fetch import download, read_manifest_of
from capline.segment.publish.publish import Publisher
from capline.segment.publish.versions import read_pointer

HOUR_US = 3_600_000_000


@pytest.fixture(params=["directory", "s3"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    if request.param == "directory":
        return directory_site(tmp_path)
    server: S3 = request.getfixturevalue("s3")
    return s3_site(server)


def publish(site: Site, directory: Path, version: str, **sets: Any) -> Any:
    with site.publisher() as publisher:
        return publisher.publish(make(directory, version, **sets))


def before_its_swap(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, others: Callable[[], object]) -> None:
    """Let others come first, once."""
    place: Any = publisher._objects  # pyright: ignore[reportPrivateUsage]
    swap = place.swap

    def overtaken(*asked: Any) -> bool:
        monkeypatch.setattr(place, "swap", swap)
        others()
        return swap(*asked)

    monkeypatch.setattr(place, "swap", overtaken)


def served(site: Site, directory: Path, version: str | None = None) -> dict[str, list[int]]:
    """What somebody without a cache is served."""
    watch = site.watch(directory / f"cache-{time.monotonic_ns()}", version=version)
    watch.poll()
    found = {name: list(ids) for name, ids in watch.current.sets.items()}
    assert watch.error is None
    watch.stop()
    return found


def test_what_is_written(site: Site, tmp_path: Path) -> None:
    done = publish(site, tmp_path, "v1", new=[1, 2], old=[3])
    assert (done.version, done.sequence, done.flipped, done.sent_files, done.reused_files) == ("v1", 1, True, 2, 0)
    assert done.cardinality == 3
    names = site.names("objects")
    assert len(names) == 2
    assert all(hashlib.sha256(site.read(f"objects/{name}")).hexdigest() == name for name in names)
    assert done.sent_bytes == sum(len(site.read(f"objects/{name}")) for name in names)
    assert site.names("manifests") == {f"{done.manifest}.json"}
    assert hashlib.sha256(site.read(f"manifests/{done.manifest}.json")).hexdigest() == done.manifest
    assert served(site, tmp_path) == {"new": [1, 2], "old": [3]}


def test_only_what_changed_is_sent(site: Site, tmp_path: Path) -> None:
    publish(site, tmp_path, "v1", new=[1, 2], old=range(10, 50_000))
    told: list[tuple[int, int]] = []
    with site.publisher() as publisher:
        second = make(tmp_path, "v2", new=[1, 2, 70_000], old=range(10, 50_000))
        done = publisher.publish(second, progress=lambda sent, total: told.append((sent, total)))
        size_bytes = file_of(second, "new").stat().st_size
        assert (done.sent_files, done.sent_bytes, done.reused_files) == (1, size_bytes, 1)
        assert told[-1] == (size_bytes, size_bytes)
        again = publisher.publish(second)
        assert (again.flipped, again.sent_bytes, again.sequence) == (False, 0, 2)
        mended = publisher.publish(second, resend=True)
        assert (mended.flipped, mended.sent_files, mended.sequence) == (True, 2, 3)
    assert [each.version for each in site.pointer().versions] == ["v1", "v2"]


def test_a_repair_keeps_a_list_that_could_not_be_read_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the network is no damage: the versions before stay, and so do their pins."""
    publish(site, tmp_path, "v1", new=[1])
    failures = [SegmentError("no answer in time")]

    def fails_once(*asked: Any) -> Any:
        if failures:
            raise failures.pop()
        return read_pointer(*asked)

    monkeypatch.setattr(versions, "read_pointer", fails_once)
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v2", new=[1, 2]), resend=True)
    assert not failures
    assert [each.version for each in site.pointer().versions] == ["v1", "v2"]


def test_a_repair_does_not_replace_a_list_of_another_format(site: Site, tmp_path: Path) -> None:
    publish(site, tmp_path, "v1", new=[1])
    body = site.read("pointer.json").replace(b'"format_version": 1', b'"format_version": 2')
    body = body[: body.rindex(b',\n  "sha256"')]
    newer = body + b',\n  "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'
    site.write("pointer.json", newer)
    with site.publisher() as publisher, pytest.raises(SegmentError, match="format version 2"):
        publisher.publish(make(tmp_path, "v2", new=[1, 2]), resend=True)
    assert site.read("pointer.json") == newer


def test_what_is_there_with_another_size_is_sent_again(site: Site, tmp_path: Path) -> None:
    snapshot = make(tmp_path, "v1", new=[1, 2])
    name = hashlib.sha256(file_of(snapshot, "new").read_bytes()).hexdigest()
    site.write(f"objects/{name}", b"torn")
    with site.publisher() as publisher:
        assert publisher.publish(snapshot).sent_files == 1
    assert served(site, tmp_path) == {"new": [1, 2]}


def test_a_name_is_given_once(site: Site, tmp_path: Path) -> None:
    publish(site, tmp_path, "v1", new=[1])
    before = site.read("pointer.json")
    with pytest.raises(SegmentError, match="version 'v1' is published already, with other content; name this one"):
        publish(site, tmp_path, "v1", new=[2])
    assert site.read("pointer.json") == before
    with site.publisher() as publisher:
        assert publisher.publish(make(tmp_path, "v1", new=[2]), version="v1b").version == "v1b"
        with pytest.raises(SegmentError, match="not 1 to 128 printable characters"):
            publisher.publish(make(tmp_path, "v1", new=[3]), version="a\nb")


def test_nothing_is_published_where_no_segment_has_an_id(site: Site, tmp_path: Path) -> None:
    """It looks like a broken job's, and readers refuse it: whoever publishes hears of it, not the servers alone."""
    publish(site, tmp_path, "v1", new=[1])
    with pytest.raises(SegmentError, match="no segment has an id, so no reader takes it"):
        publish(site, tmp_path, "v2", new=[], old=[])
    assert site.pointer().current == "v1"
    assert publish(site, tmp_path, "v3", new=[], old=[1]).flipped  # one that is empty among others


def test_a_broken_snapshot_is_not_published(site: Site, tmp_path: Path) -> None:
    broken = make(tmp_path, "v1", new=[1])
    file_of(broken, "new").write_bytes(b"x")
    with site.publisher() as publisher, pytest.raises(SegmentError, match="cut short"):
        publisher.publish(broken)
    assert site.names("objects") == set()
    with pytest.raises(SegmentError, match="nothing is published there"):
        site.publisher().pointer()


verified = publish_module._verified  # pyright: ignore[reportPrivateUsage]


def then_changed(directory: Path) -> Any:
    """Verify a snapshot, of which a file changes right afterwards."""
    found = verified(directory)
    data = file_of(directory, "new").read_bytes()
    file_of(directory, "new").write_bytes(data[:-1] + b"\xff")
    return found


def test_a_file_that_changes_while_it_is_sent_is_found(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = make(tmp_path, "v1", new=[1])
    monkeypatch.setattr(publish_module, "_verified", then_changed)
    with site.publisher() as publisher, pytest.raises(SegmentError, match="changed while it was sent"):
        publisher.publish(snapshot)
    assert site.names("objects") == set()


def test_a_repair_from_a_file_that_changes_leaves_what_is_served(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = make(tmp_path, "v1", new=[1])
    with site.publisher() as publisher:
        publisher.publish(snapshot)
    monkeypatch.setattr(publish_module, "_verified", then_changed)
    with site.publisher() as publisher, pytest.raises(SegmentError, match="changed while it was sent"):
        publisher.publish(snapshot, resend=True)
    assert served(site, tmp_path) == {"new": [1]}


class TestTwoPublishers:
    def test_the_slower_one_is_reported(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        slow = make(tmp_path, "slow", new=[1, 2])
        met: list[str] = []

        def meanwhile(*_: int) -> None:
            if not met:
                met.append(publish(site, tmp_path, "fast", new=[1, 3]).version)

        with site.publisher() as publisher:
            with pytest.raises(SegmentConflictError, match=r"version 'fast' was published meanwhile.*'slow' is not"):
                publisher.publish(slow, progress=meanwhile)
            assert site.pointer().current == "fast"
            assert site.pointer().find("slow") is None
            # Meant all the same: nothing is sent twice.
            assert publisher.publish(slow).sent_bytes == 0
        assert served(site, tmp_path) == {"new": [1, 2]}

    @pytest.mark.parametrize("first", [True, False])
    def test_of_many_at_once_one_wins(self, site: Site, tmp_path: Path, first: bool) -> None:
        if not first:
            publish(site, tmp_path, "v0", new=[0])
        snapshots = [make(tmp_path, f"v{number}", new=[number]) for number in range(1, 6)]
        gate, outcomes = Barrier(len(snapshots)), dict[int, Any]()

        def run(number: int) -> None:
            waited: list[bool] = []

            def meet(*_: int) -> None:
                if not waited:
                    waited.append(True)
                    gate.wait(20)

            with site.publisher() as publisher:
                try:
                    outcomes[number] = publisher.publish(snapshots[number], progress=meet)
                except SegmentConflictError as error:
                    outcomes[number] = error

        threads = [Thread(target=run, args=(number,)) for number in range(len(snapshots))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        won = [each.version for each in outcomes.values() if not isinstance(each, SegmentConflictError)]
        assert len(outcomes) == len(snapshots)
        assert won == [site.pointer().current]
        assert [each.version for each in site.pointer().versions] == [*([] if first else ["v0"]), *won]

    def test_a_pin_meanwhile_takes_nothing_from_anybody(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        with site.publisher() as publisher:
            publisher.publish(make(tmp_path, "v2", new=[2]), progress=lambda *_: site.publisher().pin("v1"))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
        assert [(each.version, each.pinned) for each in site.pointer().versions] == [("v1", True), ("v2", False)]

    def test_an_answer_that_is_lost(self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        publisher = site.publisher()
        place: Any = publisher._objects  # pyright: ignore[reportPrivateUsage]
        swap = place.swap

        def lost(*arguments: Any) -> bool:
            swap(*arguments)
            return False  # as a client that sends it again hears of its own first write

        monkeypatch.setattr(place, "swap", lost)
        assert publisher.publish(make(tmp_path, "v1", new=[1])).flipped
        assert publisher.publish(make(tmp_path, "v2", new=[2])).flipped
        assert site.pointer().current == "v2"

    def test_what_the_snapshot_was_made_from(self, site: Site, tmp_path: Path) -> None:
        with site.publisher() as publisher:
            with pytest.raises(SegmentConflictError, match="nothing is current, not 'v0'"):
                publisher.publish(make(tmp_path, "v1", new=[1]), expected="v0")
            publish(site, tmp_path, "v1", new=[1])
            with pytest.raises(SegmentConflictError, match="version 'v1' is current, not 'v0'"):
                publisher.publish(make(tmp_path, "v2", new=[1]), expected="v0")
            assert publisher.publish(make(tmp_path, "v2", new=[1, 2]), expected="v1").flipped

    def test_a_pointer_never_looks_like_an_earlier_one(self, site: Site, tmp_path: Path) -> None:
        """Else a slow publisher would swap what was published and rolled back meanwhile."""
        publish(site, tmp_path, "v1", new=[1])
        publish(site, tmp_path, "v2", new=[2])
        place = site.place
        before = place.get("pointer.json", 1 << 20)
        assert before is not None
        site.publisher().rollback()
        site.publisher().rollback("v2")
        assert not place.swap("pointer.json", b"stale", before.tag)
        assert site.pointer().current == "v2"


class TestRollback:
    def test_back_and_forth(self, site: Site, tmp_path: Path) -> None:
        for number in (1, 2, 3):
            publish(site, tmp_path, f"v{number}", new=[number])
        with site.publisher() as publisher:
            assert publisher.rollback().current == "v2"
            assert publisher.rollback().current == "v1"
            assert served(site, tmp_path) == {"new": [1]}
            with pytest.raises(SegmentError, match="no version before 'v1'"):
                publisher.rollback()
            assert publisher.rollback("v3").sequence == 6
            with pytest.raises(SegmentError, match="no version 'v9'; the newest are: v1, v2, v3"):
                publisher.rollback("v9")
        assert served(site, tmp_path) == {"new": [3]}

    def test_not_to_what_is_gone(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        (one,) = site.names("objects")
        publish(site, tmp_path, "v2", new=[2])
        site.delete(f"objects/{one}")
        with site.publisher() as publisher, pytest.raises(SegmentError, match="version 'v1' lacks objects/"):
            publisher.rollback()
        assert site.pointer().current == "v2"

    @pytest.mark.parametrize("version", [None, "v1"])
    def test_another_version_that_became_current_meanwhile_is_not_undone(
        self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
    ) -> None:
        for number in (1, 2):
            publish(site, tmp_path, f"v{number}", new=[number])
        publisher = site.publisher()
        before_its_swap(publisher, monkeypatch, lambda: publish(site, tmp_path, "v3", new=[3]))
        with pytest.raises(SegmentConflictError, match="version 'v3' became current meanwhile, in place of 'v2'"):
            publisher.rollback(version)
        assert site.pointer().current == "v3"

    def test_two_at_once_go_back_by_one(self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in (1, 2, 3):
            publish(site, tmp_path, f"v{number}", new=[number])
        publisher = site.publisher()
        before_its_swap(publisher, monkeypatch, site.publisher().rollback)
        assert publisher.rollback().current == "v2"
        assert site.pointer().current == "v2"


class TestCollecting:
    def test_what_goes_and_what_stays(self, site: Site, tmp_path: Path) -> None:
        for number in range(6):
            publish(site, tmp_path, f"v{number}", new=[number], always=[100], **{"pair" + str(number // 2): [200]})
        with site.publisher() as publisher:
            publisher.pin("v1")
            publisher.rollback("v2")
            before = site.names("objects")
            looked = publisher.collect(keep=1, grace_us=0, dry_run=True)
            assert site.names("objects") == before
            done = publisher.collect(keep=1, grace_us=0)
            assert (looked.retired, looked.deleted_objects) == (done.retired, done.deleted_objects)
            assert (done.retired, done.kept) == (("v0", "v3", "v4"), ("v1", "v2", "v5"))
            # [0], [3] and [4] are alone in theirs; always and [200] are of a version that stays.
            assert done.deleted_objects == 3 + 3
            assert before - site.names("objects") == before - {
                entry for each in ("v1", "v2", "v5") for entry in objects_of(site, each)
            }
            for version in ("v1", "v2", "v5"):
                assert served(site, tmp_path, version)["always"] == [100]
            with pytest.raises(SegmentError, match="no version 'v3'"):
                publisher.rollback("v3")
            publisher.pin("v1", pinned=False)
            assert publisher.collect(keep=1, grace_us=0).retired == ("v1",)
            assert publisher.collect(keep=1, grace_us=0).deleted_objects == 0

    def test_what_is_young_stays(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        publish(site, tmp_path, "v2", new=[2])
        orphan = hashlib.sha256(b"of somebody who is not finished").hexdigest()
        site.write(f"objects/{orphan}", b"of somebody who is not finished")
        with site.publisher() as publisher:
            done = publisher.collect(keep=1, grace_us=HOUR_US)
            assert (done.retired, done.deleted_objects) == ((), 0)
            done = publisher.collect(keep=2, grace_us=0)
            assert (done.retired, done.deleted_objects, done.deleted_bytes) == ((), 1, 31)

    def test_a_publisher_whose_objects_were_deleted_sends_them_again(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        collected: list[Any] = []

        def meanwhile(sent: int, total: int) -> None:
            if sent == total and not collected:
                collected.append(site.publisher().collect(keep=1, grace_us=0))

        with site.publisher() as publisher:
            done = publisher.publish(make(tmp_path, "v2", a=range(1000), b=range(2000, 3000)), progress=meanwhile)
        assert collected[0].deleted_objects >= 1
        assert done.flipped
        assert served(site, tmp_path)["a"] == list(range(1000))

    def test_nobody_publishes_while_something_is_deleted(self, site: Site, tmp_path: Path) -> None:
        """What is found there now may be gone in a moment; a collector that was killed holds nobody up for long."""
        publish(site, tmp_path, "v1", new=[1])
        until_us = time.time_ns() // 1000 + 700_000
        site.reseal(collector="0123456789abcdef", collecting_until_us=until_us)
        with site.publisher() as publisher:
            with pytest.raises(SegmentConflictError, match="another collection is running"):
                publisher.collect()
            assert publisher.rollback("v1").collector  # what is listed is safe, so nothing is to be waited for
            assert publisher.publish(make(tmp_path, "v2", new=[2])).flipped
        assert time.time_ns() // 1000 >= until_us
        assert site.pointer().collector == ""

    def test_a_listing_that_takes_long_uses_up_the_lease(
        self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It begins before the listing, so it is renewed before the first object is deleted."""
        publish(site, tmp_path, "v1", new=[1])
        publish(site, tmp_path, "v2", new=[2])
        clock = ManualClock(time.time_ns() // 1000)
        publisher = site.publisher(clock=clock)
        place: Any = publisher._objects  # pyright: ignore[reportPrivateUsage]
        list_folder, delete = place.list, place.delete
        left_us: list[int] = []

        def slow(folder: str) -> Any:
            clock.advance(seconds=400)
            return list_folder(folder)

        def held(paths: Any) -> None:
            left_us.append(site.pointer().collecting_until_us - clock.now_us())
            delete(paths)

        monkeypatch.setattr(collect_module, "time", SimpleNamespace(monotonic=lambda: clock.now_us() / 1e6))
        monkeypatch.setattr(place, "list", slow)
        monkeypatch.setattr(place, "delete", held)
        assert publisher.collect(keep=1, grace_us=0).deleted_objects == 2
        assert min(left_us) > 300_000_000

    def test_what_is_kept_cannot_be_negative(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        with site.publisher() as publisher, pytest.raises(SegmentError, match="fix --keep or --grace-hours"):
            publisher.collect(grace_us=-1)

    def test_a_manifest_that_cannot_be_read_stops_it(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        first = site.pointer().serving
        publish(site, tmp_path, "v2", new=[2])
        site.write(first.manifest_path, b"{}")
        before = site.names("objects")
        with site.publisher() as publisher:
            with pytest.raises(SegmentError, match="torn"):
                publisher.collect(keep=2, grace_us=0)
            assert site.names("objects") == before
            assert site.pointer().collector == ""

    def test_the_oldest_leaves_a_full_list(self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(publish_module, "MOST_VERSIONS", 3)
        for number in range(3):
            publish(site, tmp_path, f"v{number}", new=[number])
        site.publisher().pin("v0")
        publish(site, tmp_path, "v3", new=[3])
        assert [each.version for each in site.pointer().versions] == ["v0", "v2", "v3"]
        site.publisher().pin("v2")
        with pytest.raises(SegmentError, match="all of 3 versions are pinned"):
            publish(site, tmp_path, "v4", new=[4])


def objects_of(site: Site, version: str) -> set[str]:
    found = site.pointer().find(version)
    assert found is not None
    with Publisher(site.url, site.options) as publisher:
        _, manifest = read_manifest_of(publisher._objects, found)  # pyright: ignore[reportPrivateUsage]
    return {each.sha256 for each in manifest.files()}


class TestTextIds:
    """The next dictionary extends the one that is served, or it is said that it does not."""

    USERS = tuple(f"user-{number}" for number in range(40))

    def text(self, tmp_path: Path, home: str, version: str, *texts: str) -> Path:
        return make_text(tmp_path, tmp_path / home, version, new=list(texts))

    def test_new_files_and_merged_ones(self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fetched: list[str] = []

        def counted(place: Any, version: Any, sha256: str, size_bytes: int, target: Path) -> None:
            fetched.append(version.version)
            download(place, version, sha256, size_bytes, target)

        monkeypatch.setattr(extends, "download", counted)
        with site.publisher() as publisher:
            publisher.publish(self.text(tmp_path, "ids", "v1", *self.USERS[:20]))
            publisher.publish(self.text(tmp_path, "ids", "v2", *self.USERS[10:22]))
            assert fetched == []  # a new file beside the old one, which is there by its hash
            publisher.publish(self.text(tmp_path, "ids", "v3", *self.USERS[5:]))
            assert set(fetched) == {"v2"}  # both were merged: looked at text by text
            publisher.publish(make(tmp_path, "v4", new=[1]))
            publisher.publish(self.text(tmp_path, "other", "v5", "x"))  # numbers have none to keep
        assert served_texts(site, tmp_path) == ["x"]

    @pytest.mark.parametrize("broken", ["another order", "an old copy", "a new beginning"])
    def test_numbers_that_changed(self, site: Site, tmp_path: Path, broken: str) -> None:
        first = self.text(tmp_path, "ids", "v0", *self.USERS[:20])
        second = self.text(tmp_path, "ids", "v1", *self.USERS)
        with site.publisher() as publisher:
            publisher.publish(second)
            before = site.read("pointer.json"), site.names("objects")
            if broken == "an old copy":
                bad, told = first, f"id '{self.USERS[20]}' has no number here, and 20 there"
            elif broken == "another order":
                self.text(tmp_path, "lost", "v0", *self.USERS[20:])
                bad = self.text(tmp_path, "lost", "v2", *self.USERS)
                told = "has the number .* here, and .* there"
            else:
                bad, told = self.text(tmp_path, "fresh", "v2", "somebody"), "has no number here, and .* there"
            match = f"does not extend that of version 'v1', which is served: .*{told}; build with .* --new-dictionary"
            with pytest.raises(SegmentError, match=match.replace(" --", r" .*--")) as refused:
                publisher.publish(bad)
            assert "\n" not in str(refused.value)
            assert (site.read("pointer.json"), site.names("objects")) == before
            publisher.publish(bad, new_dictionary=True)
        assert site.pointer().current in ("v0", "v2")

    def test_a_dictionary_that_is_gone_there_is_not_taken_for_one_that_fits(self, site: Site, tmp_path: Path) -> None:
        first = self.text(tmp_path, "ids", "v1", *self.USERS[:20])
        with site.publisher() as publisher:
            publisher.publish(first)
            (old,) = first.glob("*.ids")
            site.delete(f"objects/{hashlib.sha256(old.read_bytes()).hexdigest()}")
            second = self.text(tmp_path, "ids", "v2", *self.USERS)
            with pytest.raises(SegmentError, match=r"gone, and version 'v1' needs it; .*--new-dictionary does not"):
                publisher.publish(second)
            site.delete(*(f"manifests/{name}" for name in site.names("manifests")))
            with pytest.raises(SegmentError, match=r"gone, and version 'v1' needs it; .*--new-dictionary does not"):
                publisher.publish(second)
            assert publisher.publish(first, resend=True).sent_files == 2
            assert publisher.publish(second).flipped


def served_texts(site: Site, directory: Path) -> list[str]:
    watch = site.watch(directory / f"cache-{time.monotonic_ns()}")
    watch.poll()
    found: list[str] = watch.current.members("new")
    watch.stop()
    return found
