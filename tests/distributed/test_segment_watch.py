"""Following a publication, in a directory and on a real S3 server: what is served, whatever is wrong with it."""

import errno
import hashlib
import json
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.kit.s3 import S3
from tests.kit.segments import Site, claiming, directory_site, make, resealed, s3_site
from tests.kit.server import soon

from capline import ManualClock
from capline.model.errors import InvalidValueError, SegmentError
from capline.observe import SegmentMetrics
from capline.segment import Bounds, IdSet, SegmentWatch
from capline.segment.files import os_errors
from capline.segment.publish import cache as cache_module

BIG = range(0, 60_000, 2)


@pytest.fixture(params=["directory", "s3"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    if request.param == "directory":
        return directory_site(tmp_path)
    server: S3 = request.getfixturevalue("s3")
    return s3_site(server)


@pytest.fixture
def here(tmp_path: Path) -> Site:
    """Where the kind makes no difference."""
    return directory_site(tmp_path)


def publish(site: Site, directory: Path, version: str, **sets: Any) -> Path:
    path = make(directory, version, **sets)
    with site.publisher() as publisher:
        publisher.publish(path)
    return path


@pytest.fixture
def watches() -> Iterator[list[SegmentWatch]]:
    made: list[SegmentWatch] = []
    yield made
    for watch in made:
        watch.stop()


def test_there_is_nothing_until_there_is_something_good(site: Site, tmp_path: Path) -> None:
    watch = site.watch(tmp_path / "cache")
    with pytest.raises(SegmentError, match=r"no good snapshot yet \(nothing was read yet"):
        watch.current  # noqa: B018 - it raises
    assert not watch.poll()
    with pytest.raises(SegmentError, match=r"no good snapshot yet .*nothing is published there"):
        watch.segment_of(1)
    publish(site, tmp_path, "v1", new=[1], old=[2])
    assert watch.poll()
    assert (watch.segment_of(1), watch.segment_of(2), watch.segment_of(3)) == ("new", "old", None)
    assert watch.error is None


def test_it_is_replaced_only_by_what_is_new(site: Site, tmp_path: Path) -> None:
    publish(site, tmp_path, "v1", new=[1])
    watch = site.watch(tmp_path / "cache")
    assert watch.poll()
    first = watch.current
    assert not watch.poll()
    site.publisher().pin("v1")
    assert not watch.poll()
    assert watch.current is first
    publish(site, tmp_path, "v2", new=[1, 2])
    assert watch.poll()
    assert (watch.current.version, watch.status.sequence) == ("v2", 3)
    assert first.segment_of(2) is None  # whoever holds the old one still has it whole
    site.publisher().rollback()
    assert watch.poll()
    assert watch.current.version == "v1"


def spoil_object(change: Callable[[bytes], bytes]) -> Callable[[Site], None]:
    def spoil(site: Site) -> None:
        name = newest_object(site)
        site.write(f"objects/{name}", change(site.read(f"objects/{name}")))

    return spoil


def newest_object(site: Site) -> str:
    """The one that v2 has and v1 has not."""
    return hashlib.sha256(IdSet([*BIG, 60_001]).to_bytes()).hexdigest()


def spoil_manifest(change: Callable[[bytes], bytes]) -> Callable[[Site], None]:
    def spoil(site: Site) -> None:
        path = site.pointer().serving.manifest_path
        site.write(path, change(site.read(path)))

    return spoil


def spoil_pointer(change: Callable[[bytes], bytes]) -> Callable[[Site], None]:
    return lambda site: site.write("pointer.json", change(site.read("pointer.json")))


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


SPOILED: dict[str, tuple[Callable[[Site], None], str]] = {
    "an object with a flipped bit": (spoil_object(flipped), "does not match its SHA-256; it is damaged: publish again"),
    "an object cut short": (spoil_object(lambda data: data[:-1]), "bytes, the manifest says .* it is torn"),
    "an object with a tail": (spoil_object(lambda data: data + b"x"), "bytes, the manifest says"),
    "an empty object": (spoil_object(lambda data: b""), "0 bytes, the manifest says"),
    "an object that is gone": (lambda site: site.delete(f"objects/{newest_object(site)}"), "gone, and version 'v2'"),
    "a torn manifest": (spoil_manifest(lambda data: data[:100]), "it is torn: publish again"),
    "a flipped manifest": (spoil_manifest(flipped), "does not match the SHA-256 in the pointer"),
    "a manifest that is gone": (lambda site: site.delete(site.pointer().serving.manifest_path), "gone, and version"),
    "a torn pointer": (
        spoil_pointer(lambda data: data[:300]),
        "pointer.json: not a pointer of segments, or a torn one",
    ),
    "an empty pointer": (spoil_pointer(lambda data: b""), "not a pointer of segments, or a torn one"),
    "a flipped pointer": (spoil_pointer(flipped), "pointer.json: "),
    "a pointer that is too large": (spoil_pointer(lambda data: data + b" " * (1 << 18)), "at most 262144 are allowed"),
    "a pointer that is gone": (lambda site: site.delete("pointer.json"), "nothing is published there"),
    "a pointer to a version that is gone": (
        lambda site: site.write(
            "pointer.json", site.read("pointer.json").replace(b'"current": "v2"', b'"current": "v9"')
        ),
        "does not match its own checksum",
    ),
    "a sealed pointer to a version that is gone": (
        lambda site: site.reseal(current="v9"),
        "points to version 'v9', which is not in its own list",
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_is_spoiled_is_refused_and_the_last_good_one_stays(site: Site, tmp_path: Path, what: str) -> None:
    publish(site, tmp_path, "v1", some=BIG, new=[60_003])
    watch = site.watch(tmp_path / "cache", interval_s=0.01)
    watch.poll()
    first = watch.current
    second = make(tmp_path, "v2", some=[*BIG, 60_001], new=[60_003])
    with site.publisher() as publisher:
        publisher.publish(second)
        good = site.read("pointer.json")
        spoil, why = SPOILED[what]
        spoil(site)
        assert not watch.poll()
        assert watch.current is first
        with pytest.raises(SegmentError, match=why):
            raise watch.error or AssertionError
        assert not watch.poll()  # looked at again, and not taken for unchanged
        assert watch.error is not None
        assert watch.current is first
        # A process that starts now, with nothing, has nothing; one with the cache has the last good one.
        fresh = site.watch(tmp_path / "another")
        assert not fresh.poll()
        with pytest.raises(SegmentError, match="no good snapshot yet"):
            fresh.segment_of(0)
        again = site.watch(tmp_path / "cache")
        assert again.poll()
        assert again.current.version == "v1"
        assert again.error is not None
        assert [path.name for path in (tmp_path / "another").glob(".*.part")] == []
        # Mended.
        site.write("pointer.json", good)
        publisher.publish(second, resend=True)
        assert watch.poll()
        assert fresh.poll()
    for each in (watch, fresh):
        assert (each.current.version, each.segment_of(60_001), each.error) == ("v2", "some", None)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format_version": 99}, "format version 99, and this capline reads"),
        ({"segments": []}, "0 segments"),
        ("overlap", "in two segments"),
        ("cardinality", "3 ids, and the manifest says 4"),
        ("everybody", "4294967296 ids, and the manifest says 3"),
        ("a run too long", "not one whole bitmap in roaring's portable format"),
        ("nobody", "0 ids in all, where 1 to"),
        ("huge", "impossible size|are taken"),
        ("outside", "no proper file name|file name"),
    ],
)
def test_what_a_faulty_publisher_wrote_is_refused(here: Site, tmp_path: Path, changes: Any, why: str) -> None:
    """Consistent by every hash, and wrong: the reader proves it again."""
    publish(here, tmp_path, "v1", new=[1], old=[2])
    watch = here.watch(tmp_path / "cache")
    watch.poll()
    data = here.read(here.pointer().serving.manifest_path)
    bits, nobody = IdSet([2, 3, 4]).to_bytes(), IdSet().to_bytes()
    everybody = IdSet.from_range(0, (1 << 32) - 1).to_bytes()
    too_long = struct.pack("<HHBHHHHH", 12347, 0, 1, 0, 2, 1, 5, 0xFFFF)  # one run: 5 to 65,540 of a container's 65,536

    def entry(name: str, content: bytes, cardinality: int, **more: Any) -> dict[str, Any]:
        sha256 = hashlib.sha256(content).hexdigest()
        fields = {"name": name, "file": f"{name}.roaring", "bytes": len(content), "sha256": sha256}
        return {**fields, "cardinality": cardinality, **more}

    if changes == "overlap":
        changes = {"segments": [entry("new", bits, 3), entry("old", bits, 3)]}
    elif changes == "cardinality":
        changes = {"segments": [entry("new", bits, 4)]}
    elif changes == "everybody":
        changes = {"segments": [entry("new", everybody, 3)]}
    elif changes == "a run too long":
        changes = {"segments": [entry("new", too_long, 3)]}
    elif changes == "nobody":
        changes = {"segments": [entry("new", nobody, 0)]}
    elif changes == "huge":
        changes = {"segments": [entry("new", bits, 3, bytes=1 << 60)]}
    elif changes == "outside":
        changes = {"segments": [entry("new", bits, 3, file="../../x.roaring")]}
    entries = changes.get("segments")
    here.smuggle(
        "v2", claiming(data, entries) if entries else resealed(data, **changes), [bits, nobody, everybody, too_long]
    )
    assert not watch.poll()
    assert watch.current.version == "v1"
    with pytest.raises(SegmentError, match=why):
        raise watch.error or AssertionError


class TestBounds:
    @pytest.mark.parametrize(
        ("bounds", "why"),
        [
            (Bounds(most_bytes=30), "bytes, and at most 30 are taken; raise the bound"),
            (Bounds(least_ids=4), "3 ids in all, where 4 to"),
            (Bounds(most_ids=2), "3 ids in all, where 1 to 2 are taken"),
            (Bounds(least_ids_of={"new": 2}), "segment 'new': 1 ids, where 2 or more must be"),
            (Bounds(least_ids_of={"vip": 1}), "segment 'vip': no such segment, where 1"),
        ],
    )
    def test_what_is_outside_is_refused(self, here: Site, tmp_path: Path, bounds: Bounds, why: str) -> None:
        publish(here, tmp_path, "v1", new=[1], old=[2, 3])
        for _ in range(2):  # the second time it is in the cache, by a watch of other bounds
            watch = here.watch(tmp_path / "cache", bounds=bounds)
            watch.poll()
            with pytest.raises(SegmentError, match=why):
                watch.segment_of(1)
            assert here.watch(tmp_path / "cache").poll()

    def test_an_interval_that_cannot_be(self, here: Site, tmp_path: Path) -> None:
        for bad in (0, -1, float("nan"), 1e9):
            with pytest.raises(InvalidValueError, match=r"interval_s is 0\.01 to 86400"):
                here.watch(tmp_path / "cache", interval_s=bad)


class TestCache:
    def test_what_is_there_is_not_fetched(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        assert site.watch(tmp_path / "cache").poll()
        site.delete(*(f"objects/{name}" for name in site.names("objects")))
        assert site.watch(tmp_path / "cache").poll()

    def test_files_of_an_earlier_snapshot_are_linked(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", some=BIG, new=[60_001])
        watch = here.watch(tmp_path / "cache")
        watch.poll()
        publish(here, tmp_path, "v2", some=BIG, new=[60_003])
        here.delete("objects/" + hashlib.sha256(IdSet(BIG).to_bytes()).hexdigest())
        assert watch.poll()
        assert watch.segment_of(2) == "some"
        assert sum(path.stat().st_nlink == 2 for path in (tmp_path / "cache").glob("*/*")) == 2

    def test_a_spoiled_file_of_an_earlier_snapshot_is_not(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", some=BIG, new=[60_001])
        watch = here.watch(tmp_path / "cache")
        watch.poll()
        (spoiled,) = (tmp_path / "cache").glob("*/some*")
        data = flipped(spoiled.read_bytes())
        spoiled.unlink()
        spoiled.write_bytes(data)
        publish(here, tmp_path, "v2", some=BIG, new=[60_003])
        assert watch.poll()
        assert watch.segment_of(60_003) == "new"

    def test_a_spoiled_snapshot_is_fetched_again(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", some=BIG)
        here.watch(tmp_path / "cache").poll()
        (file,) = (tmp_path / "cache").glob("*/some*")
        file.write_bytes(flipped(file.read_bytes()))
        watch = here.watch(tmp_path / "cache", interval_s=0.01)
        assert not watch.poll()
        assert watch.error is not None
        time.sleep(0.02)
        assert watch.poll()
        assert watch.segment_of(2) == "some"

    @pytest.mark.parametrize("file", ["some*", "manifest.json"])
    def test_a_snapshot_that_lacks_a_file_is_fetched_again(self, here: Site, tmp_path: Path, file: str) -> None:
        publish(here, tmp_path, "v1", some=BIG)
        here.watch(tmp_path / "cache").poll()
        (gone,) = (tmp_path / "cache").glob(f"*/{file}")
        gone.unlink()
        assert not here.watch(tmp_path / "cache").poll()
        assert here.watch(tmp_path / "cache").poll()

    def test_a_snapshot_that_cannot_be_read_now_stays(
        self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(here, tmp_path, "v1", some=BIG)
        here.watch(tmp_path / "cache").poll()

        def out_of_handles(*_: Any, **_more: Any) -> Any:
            with os_errors("read it", "some"):
                raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(cache_module, "load_snapshot", out_of_handles)
            assert not here.watch(tmp_path / "cache").poll()
        here.delete(*(f"objects/{name}" for name in here.names("objects")))
        assert here.watch(tmp_path / "cache").poll()

    def test_many_watches_at_once_fetch_once(self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        publish(here, tmp_path, "v1", some=BIG)
        fetched, download = list[int](), cache_module.download  # pyright: ignore[reportPrivateUsage]

        def counted(*arguments: Any) -> None:
            fetched.append(1)
            time.sleep(0.2)
            download(*arguments)

        monkeypatch.setattr(cache_module, "download", counted)
        watches = [here.watch(tmp_path / "cache") for _ in range(5)]
        threads = [threading.Thread(target=watch.poll) for watch in watches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [watch.segment_of(2) for watch in watches] == ["some"] * 5
        assert len(fetched) == 1

    def test_a_fetcher_that_stands_still_holds_nobody_up_for_ever(
        self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(here, tmp_path, "v1", some=BIG)
        monkeypatch.setattr(cache_module, "_PATIENCE_S", 0.1)
        cache = cache_module.Cache(tmp_path / "cache")
        (tmp_path / "cache").mkdir()
        with cache._turn(tmp_path / "nothing", lambda: False):  # pyright: ignore[reportPrivateUsage]
            assert here.watch(tmp_path / "cache").poll()

    def test_what_nobody_uses_goes(self, here: Site, tmp_path: Path) -> None:
        watch = here.watch(tmp_path / "cache")
        cache = tmp_path / "cache"
        for number in range(5):
            publish(here, tmp_path, f"v{number}", some=[number])
            watch.poll()
        names = [each.manifest for each in here.pointer().versions]
        assert {path.name for path in cache.iterdir()} >= set(names)
        old = time.time() - 7200
        for name in names[:4]:
            os.utime(cache / name, (old, old))
        os.utime(cache / names[4], (old + 10, old + 10))  # as old, but of the newest two
        (cache / ".abandoned.part").mkdir()
        os.utime(cache / ".abandoned.part", (old, old))
        publish(here, tmp_path, "v5", some=[5])
        watch.poll()
        left = {path.name for path in cache.iterdir() if not path.name.startswith((".last", ".lock"))}
        assert left == {names[4], here.pointer().serving.manifest}

    def test_it_starts_with_what_was_served_last_where_nothing_answers(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        here.watch(tmp_path / "cache").poll()
        (tmp_path / "published").rename(tmp_path / "elsewhere")
        watch = here.watch(tmp_path / "cache")
        assert watch.poll()
        assert (watch.segment_of(1), watch.status.version, watch.status.behind_us) == ("new", "v1", None)
        assert "nothing is published" in (watch.status.error or "")
        # Not what another address, or another version, was served.
        other = SegmentWatch(tmp_path / "other", tmp_path / "cache")
        assert not other.poll()
        (tmp_path / "elsewhere").rename(tmp_path / "published")
        assert not watch.poll()  # the same one, and now known to be the newest
        assert watch.status.error is None
        assert watch.status.behind_us is not None

    def test_a_full_disk(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        (tmp_path / "cache").write_text("not a directory")
        watch = here.watch(tmp_path / "cache")
        assert not watch.poll()
        with pytest.raises(SegmentError, match="cannot use it as a cache"):
            watch.segment_of(1)


class TestFollowing:
    def test_a_thread_follows_and_stops(self, site: Site, tmp_path: Path) -> None:
        publish(site, tmp_path, "v1", new=[1])
        before = threading.active_count()
        with site.watch(tmp_path / "cache", interval_s=0.02) as watch:
            assert watch.current.version == "v1"
            watch.start()
            assert threading.active_count() == before + 1
            publish(site, tmp_path, "v2", new=[2])
            assert soon(lambda: watch.current.version == "v2")
        assert threading.active_count() == before
        publish(site, tmp_path, "v3", new=[3])
        assert watch.current.version == "v2"
        watch.start()
        assert watch.current.version == "v3"
        watch.stop()
        watch.stop()

    def test_hosts_do_not_ask_in_step(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        watch, waited = here.watch(tmp_path / "cache", interval_s=10), list[tuple[float, ...]]()

        class Stop(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                waits.append(timeout or 0.0)
                return len(waits) > 100

        for _ in range(2):
            waits: list[float] = []
            watch._follow(weakref.ref(watch), Stop(), 10.0)  # pyright: ignore[reportPrivateUsage]
            assert 8 <= min(waits) < 9
            assert 11 < max(waits) <= 12
            waited.append(tuple(waits))
        assert waited[0] != waited[1]
        assert watch.current.version == "v1"

    def test_a_watch_that_nobody_holds_ends_its_thread(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        before = threading.active_count()
        watch = here.watch(tmp_path / "cache", interval_s=0.02).start()
        assert threading.active_count() == before + 1
        del watch
        assert soon(lambda: threading.active_count() == before)

    def test_readers_do_not_wait_for_a_fetch(self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        publish(here, tmp_path, "v1", new=[1])
        watch = here.watch(tmp_path / "cache")
        watch.poll()
        publish(here, tmp_path, "v2", new=[2])
        going, go, download = threading.Event(), threading.Event(), cache_module.download  # pyright: ignore[reportPrivateUsage]

        def held(*arguments: Any) -> None:
            going.set()
            go.wait(20)
            download(*arguments)

        monkeypatch.setattr(cache_module, "download", held)
        thread = threading.Thread(target=watch.poll)
        thread.start()
        assert going.wait(20)
        assert watch.segment_of(1) == "new"
        assert watch.status.version == "v1"
        go.set()
        thread.join(20)
        assert watch.segment_of(2) == "new"

    def test_what_is_fetched_when_it_is_stopped_is_not_taken(
        self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(here, tmp_path, "v1", new=[1])
        watch = here.watch(tmp_path / "cache", interval_s=0.01).start()
        download = cache_module.download  # pyright: ignore[reportPrivateUsage]

        def stopped(*arguments: Any) -> None:
            watch._stop.set()  # pyright: ignore[reportPrivateUsage]
            download(*arguments)

        monkeypatch.setattr(cache_module, "download", stopped)
        publish(here, tmp_path, "v2", new=[2])
        thread = watch._thread  # pyright: ignore[reportPrivateUsage]
        assert thread is not None
        thread.join(20)
        watch.stop()
        assert watch.current.version == "v1"
        assert watch.status.refused == 0

    def test_what_is_opened_when_it_is_stopped_is_not_taken(
        self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish(here, tmp_path, "v1", new=[1])
        watch = here.watch(tmp_path / "cache")
        watch.poll()
        publish(here, tmp_path, "v2", new=[2])
        found = here.watch(tmp_path / "cache")
        found.poll()

        def stopped(*_: object) -> object:
            watch.stop()
            return found.current

        monkeypatch.setattr(watch._cache, "open", stopped)  # pyright: ignore[reportPrivateUsage]
        assert not watch.poll()
        assert watch.current.version == "v1"

    def test_nothing_ends_the_thread(self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        publish(here, tmp_path, "v1", new=[1])
        with here.watch(tmp_path / "cache", interval_s=0.02) as watch:

            def broken(*_: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(cache_module, "read_manifest_of", broken)
            publish(here, tmp_path, "v2", new=[2])
            assert soon(lambda: "ZeroDivisionError" in str(watch.error))
            assert watch.current.version == "v1"
            monkeypatch.undo()
            assert soon(lambda: watch.current.version == "v2")

    def test_a_refused_version_is_not_fetched_all_the_time(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        watch = here.watch(tmp_path / "cache", interval_s=20)
        watch.poll()
        second = publish(here, tmp_path, "v2", new=[2])
        here.delete(*(f"objects/{name}" for name in here.names("objects")))
        for _ in range(5):
            watch.poll()
        assert (watch.status.refused, watch.current.version) == (1, "v1")
        assert "gone" in str(watch.error)
        here.publisher().publish(second, resend=True)
        assert watch.poll()  # the pointer changed: at once
        assert watch.segment_of(2) == "new"

    def test_one_version_alone(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        publish(here, tmp_path, "v2", new=[2])
        watch = here.watch(tmp_path / "cache", version="v1")
        assert watch.poll()
        publish(here, tmp_path, "v3", new=[3])
        assert not watch.poll()
        assert (watch.segment_of(1), watch.error) == ("new", None)
        here.publisher().collect(keep=1, grace_us=0)
        assert not watch.poll()
        assert "no version 'v1' any more; pin what you need" in str(watch.error)
        assert watch.segment_of(1) == "new"

    def test_a_forked_child_goes_on(self, site: Site, tmp_path: Path, watches: list[SegmentWatch]) -> None:
        publish(site, tmp_path, "v1", new=[1])
        watch = site.watch(tmp_path / "cache", interval_s=0.05).start()
        watches.append(watch)
        lock = watch._lock  # pyright: ignore[reportPrivateUsage]
        with lock:  # as if the thread of the parent were in the middle of a poll
            child = os.fork()
            if child == 0:
                os._exit(0 if soon(lambda: watch.current.version == "v2", 20) else 1)
        publish(site, tmp_path, "v2", new=[2])
        assert os.waitpid(child, 0)[1] == 0
        assert soon(lambda: watch.current.version == "v2")


class TestFigures:
    def test_how_old_it_is(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        watch = here.watch(tmp_path / "cache")
        status = watch.status
        assert (status.version, status.age_us, status.behind_us, status.swaps) == (None, None, None, 0)
        watch.poll()
        clock = ManualClock(start_us=watch.current.created_us + 5_000_000)
        watch = here.watch(tmp_path / "cache", clock=clock)
        watch.poll()
        clock.advance_us(2_000_000)
        assert (watch.status.age_us, watch.status.behind_us) == (7_000_000, 2_000_000)
        watch.poll()
        assert (watch.status.age_us, watch.status.behind_us) == (7_000_000, 0)
        here.delete("pointer.json")
        clock.advance_us(3_000_000)
        watch.poll()
        assert (watch.status.age_us, watch.status.behind_us) == (10_000_000, 3_000_000)
        assert (watch.status.swaps, watch.status.refused) == (1, 0)

    def test_as_metrics(self, here: Site, tmp_path: Path) -> None:
        registry = CollectorRegistry()
        metrics = SegmentMetrics(registry)
        watch = here.watch(tmp_path / "cache", clock=ManualClock(start_us=2_000_000_000_000_000))
        metrics.add("users", watch)
        watch.poll()
        lines = generate_latest(registry).decode().splitlines()
        assert 'capline_segments_serving{watch="users"} 0.0' in lines
        assert 'capline_segments_failing{watch="users"} 1.0' in lines
        assert not any(line.startswith("capline_segments_age_seconds{") for line in lines)
        publish(here, tmp_path, "v1", new=[1])
        watch.poll()
        lines = generate_latest(registry).decode().splitlines()
        assert 'capline_segments_behind_seconds{watch="users"} 0.0' in lines
        assert 'capline_segments_swaps_total{watch="users"} 1.0' in lines
        assert any(line.startswith('capline_segments_age_seconds{watch="users"}') for line in lines)
        with pytest.raises(InvalidValueError, match="has segment metrics already"):
            SegmentMetrics(registry)


class TestLarge:
    """A large snapshot is proven by a process of its own, so that nobody here waits for it."""

    @pytest.fixture(autouse=True)
    def everything_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache_module, "_LARGE_BYTES", 0)

    def test_a_good_one_is_taken(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        assert here.watch(tmp_path / "cache").poll()

    def test_a_bad_one_is_refused_in_the_same_words(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1], old=[2])
        data = here.read(here.pointer().serving.manifest_path)
        bits = IdSet([1, 2]).to_bytes()
        same = {"bytes": len(bits), "sha256": hashlib.sha256(bits).hexdigest(), "cardinality": 2}
        entries = [{**each, **same} for each in json.loads(data)["segments"]]
        here.smuggle("v2", claiming(data, entries), [bits])
        watch = here.watch(tmp_path / "cache")
        assert not watch.poll()
        with pytest.raises(SegmentError, match=r"2 ids are in two segments or more: 1 \(new and old\), 2"):
            raise watch.error or AssertionError

    def test_one_that_kills_who_looks_at_it_is_refused(
        self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\n")
        publish(here, tmp_path, "v1", new=[1])
        monkeypatch.syspath_prepend(str(tmp_path))  # pyright: ignore[reportUnknownMemberType]
        watch = here.watch(tmp_path / "cache")
        assert not watch.poll()
        assert "not verified: killed" in str(watch.error)

    def test_an_interpreter_inside_another_program_does_it_itself(
        self, here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.executable", "/usr/bin/uwsgi")
        publish(here, tmp_path, "v1", new=[1])
        assert here.watch(tmp_path / "cache").poll()

    def test_a_stop_ends_it(self, here: Site, tmp_path: Path) -> None:
        publish(here, tmp_path, "v1", new=[1])
        (tmp_path / "snapshot").mkdir()
        with pytest.raises(SegmentError, match="stopped"):
            cache_module._verify_in_process(tmp_path / "snapshot", lambda: True)  # pyright: ignore[reportPrivateUsage]
