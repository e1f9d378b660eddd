"""Places, in a directory and on a real S3 server: conditional writes, bounds, errors that say the fix."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.kit.s3 import S3
from tests.kit.segments import Site, directory_site, make, s3_site
from tests.kit.server import soon

from capline.model.errors import InvalidTypeError, SegmentError
from capline.segment.objects.address import open_objects
from capline.segment.objects.fork_proxy import ForkProxy
from capline.segment.objects.store import ObjectMissingError, ObjectStore
from capline.segment.publish.publish import Publisher
from capline.segment.publish.watch import SegmentWatch


@pytest.fixture(params=["directory", "s3", "proxy"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "directory":
        found: Any = directory_site(tmp_path).place
    else:
        site = s3_site(request.getfixturevalue("s3"))
        found = site.place if request.param == "s3" else ForkProxy(site.url, site.options)
    yield found
    found.close()


class TestVerbs:
    def test_swap_is_compare_and_swap(self, place: ObjectStore) -> None:
        assert not place.swap("a", b"x", '"of nothing"\n')
        assert place.swap("a", b"1", None)
        assert not place.swap("a", b"2", None)
        first = place.get("a", 100)
        assert first is not None
        assert place.swap("a", b"2", first.tag)
        assert not place.swap("a", b"3", first.tag)
        now = place.get("a", 100)
        assert now is not None
        assert now.data == b"2"

    def test_of_many_swaps_one_wins(self, place: ObjectStore) -> None:
        assert place.swap("a", b"0", None)
        for turn in range(3):
            seen = place.get("a", 100)
            assert seen is not None
            won: list[bytes] = []

            def swap(data: bytes, tag: str = seen.tag, won: list[bytes] = won) -> None:
                if place.swap("a", data, tag):
                    won.append(data)

            threads = [Thread(target=swap, args=(f"{turn}-{number}".encode(),)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            got = place.get("a", 100)
            assert got is not None
            assert won == [got.data]

    def test_get(self, place: ObjectStore) -> None:
        with pytest.raises(ObjectMissingError, match="there is no such object"):
            place.get("folder/a", 10)
        place.put("folder/a", b"12345")
        got = place.get("folder/a", 5)
        assert got is not None
        assert got.data == b"12345"
        assert place.get("folder/a", 5, got.tag) is None
        with pytest.raises(SegmentError, match="folder/a: 5 bytes, at most 4 are allowed"):
            place.get("folder/a", 4)
        place.put("folder/a", b"54321")
        assert place.get("folder/a", 5, got.tag) is not None

    @pytest.mark.parametrize("size", [0, 1, 5 << 20, (17 << 20) + 3])
    def test_files(self, place: ObjectStore, tmp_path: Path, size: int) -> None:
        file, back, told = tmp_path / "file", tmp_path / "back", list[int]()
        file.write_bytes(os.urandom(size))
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        place.upload("objects/x", file, sha256, told.append)
        assert told == sorted(told)
        assert not size or told[-1] == size
        assert place.download("objects/x", back, size) == sha256
        assert back.read_bytes() == file.read_bytes()
        for wrong in (size - 1, size + 1):
            with pytest.raises(SegmentError, match=f"{size} bytes, the manifest says {wrong}; it is torn"):
                place.download("objects/x", tmp_path / f"b{wrong}", wrong)
        with pytest.raises(ObjectMissingError, match="there is no such object"):
            place.download("objects/y", tmp_path / "y", 1)
        with pytest.raises(SegmentError, match="cannot write it: File exists"):
            place.download("objects/x", back, size)
        with pytest.raises(SegmentError, match="No such file"):
            place.upload("objects/z", tmp_path / "none", sha256)

    @pytest.mark.parametrize("size", [0, 5, (17 << 20) + 3])
    def test_a_file_that_changed_replaces_nothing(self, place: ObjectStore, tmp_path: Path, size: int) -> None:
        changed = tmp_path / "file"
        changed.write_bytes(os.urandom(size))
        place.put("objects/x", b"good")
        with pytest.raises(SegmentError, match="file: changed while it was sent; nothing was replaced: try again"):
            place.upload("objects/x", changed, hashlib.sha256(b"good").hexdigest())
        got = place.get("objects/x", 10)
        assert got is not None
        assert got.data == b"good"
        assert set(place.list("objects")) == {"x"}

    def test_list_and_delete(self, place: ObjectStore) -> None:
        assert place.list("objects") == {}
        for name in ("a", "b"):
            place.put(f"objects/{name}", name.encode())
        found = place.list("objects")
        assert sorted(found) == ["a", "b"]
        assert found["a"].bytes == 1
        assert abs(found["a"].changed_us - time.time_ns() // 1000) < 60_000_000
        place.delete(["objects/a", "objects/gone", "objects/b"])
        assert place.list("objects") == {}
        place.delete([])


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("http://host/x", "not an address to publish to; give a path, or s3://, gs:// or az://"),
            ("memory:///", "not an address to publish to"),
            ("ftp://x", "not an address to publish to"),
            ("file://elsewhere/x", "names no directory"),
            ("", "names no directory"),
            ("s3://", "Unable to recognise URL|s3://: "),
            ("az://account/container/x", "Account must be specified"),
        ],
    )
    def test_that_cannot_be(self, url: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(os.environ):
            if name.startswith("AZURE_"):
                monkeypatch.delenv(name)
        with pytest.raises(SegmentError, match=why) as caught:
            open_objects(url)
        assert "\n" not in str(caught.value)

    def test_of_the_wrong_kind(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidTypeError, match="an address is text"):
            open_objects(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - on purpose
        with pytest.raises(SegmentError, match="options are for object stores"):
            open_objects(tmp_path, {"aws_region": "x"})
        with pytest.raises(SegmentError, match="Configuration key: 'bogus'"):
            open_objects("s3://b/x", {"bogus": "x"})
        (tmp_path / "file").write_text("")
        with pytest.raises(SegmentError, match=r"cannot read it|not a directory"):
            open_objects(tmp_path / "file").get("pointer.json", 10)

    def test_that_can_be(self) -> None:
        account = {"azure_storage_account_name": "a", "azure_storage_account_key": "YQ=="}
        assert open_objects("file:///srv/a%20b").where == "/srv/a b"
        assert open_objects("s3://bucket/x/").where == "s3://bucket/x"
        assert open_objects("gs://bucket/x").where == "gs://bucket/x"
        assert open_objects("az://container/x", account).where == "az://container/x"


class TestTrouble:
    def test_no_bucket(self, s3: S3, tmp_path: Path) -> None:
        site = Site("s3://none-such/x", s3.options)
        with (
            site.publisher() as publisher,
            pytest.raises(SegmentError, match="no such bucket; create it, or fix") as it,
        ):
            publisher.publish(make(tmp_path, "v1", new=[1]))
        assert "\n" not in str(it.value)

    def test_denied_and_gone_and_silent_while_it_is_followed(self, own_s3: S3, tmp_path: Path) -> None:
        site = s3_site(own_s3)
        site.publisher().publish(make(tmp_path, "v1", new=[1]))
        watch = site.watch(tmp_path / "cache", interval_s=0.01)
        assert watch.poll()
        own_s3.restart(auth=True)
        assert not watch.poll()
        assert str(watch.error).endswith("pointer.json: access denied; check the credentials and their permissions")
        with pytest.raises(SegmentError, match="access denied"), site.publisher() as publisher:
            publisher.publish(make(tmp_path, "v2", new=[1, 2]))
        with pytest.raises(SegmentError, match="access denied"):
            site.place.list("objects")
        own_s3.stop_serving()
        assert not watch.poll()
        assert "cannot read it" in str(watch.error)
        assert "\n" not in str(watch.error)
        assert watch.segment_of(1) == "new"
        own_s3.start()
        assert not watch.poll()
        assert "no such bucket" in str(watch.error)
        assert watch.segment_of(1) == "new"

    def test_a_stop_does_not_wait_for_a_server_that_hangs(
        self, own_s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("capline.segment.publish.watch._STOP_S", 0.2)
        site = s3_site(own_s3)
        site.publisher().publish(make(tmp_path, "v1", new=[1]))
        watch = site.watch(tmp_path / "cache", interval_s=0.01).start()
        thread = watch._thread  # pyright: ignore[reportPrivateUsage]
        own_s3.pause()
        time.sleep(0.1)
        assert watch.segment_of(1) == "new"
        watch.stop()
        own_s3.resume()
        assert thread is not None
        thread.join(20)
        assert not thread.is_alive()


class TestForkProxy:
    def test_a_forked_process_publishes_and_follows(self, s3: S3, tmp_path: Path) -> None:
        """obstore would hang there for ever: its threads are not in the child."""
        site = s3_site(s3)
        site.publisher().publish(make(tmp_path, "v1", new=[1]))
        snapshot = make(tmp_path, "v2", new=[2])
        watch = site.watch(tmp_path / "cache", interval_s=0.02)
        watch.poll()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(40)
                with Publisher(site.url, site.options) as publisher:
                    told: list[int] = []
                    publisher.publish(snapshot, progress=lambda sent, _: told.append(sent))
                    publisher.rollback("v1")
                    publisher.rollback("v2")
                status = 0 if watch.poll() and watch.segment_of(2) == "new" and told else 2
                watch.stop()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert site.pointer().current == "v2"

    def test_it_ends_with_who_sent_it(self, s3: S3, tmp_path: Path) -> None:
        site = s3_site(s3)
        program = (
            "import sys, os; from capline.segment.objects.fork_proxy import ForkProxy\n"
            f"c = ForkProxy({site.url!r}, {site.options!r}); c.list('objects')\n"
            "print(c._process.pid, flush=True); os.kill(os.getpid(), 9)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
        pid = int(done.stdout)
        assert soon(lambda: not is_alive(pid))

    def test_an_interrupted_call_leaves_its_answer_to_nobody(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        site = s3_site(s3)
        site.write("a", b"of a")
        site.write("b", b"of b")
        fork_proxy = ForkProxy(site.url, site.options)
        send = fork_proxy._send  # pyright: ignore[reportPrivateUsage]

        def interrupted(line: bytes) -> None:
            send(line)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(fork_proxy, "_send", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fork_proxy.get("a", 10)
        assert not fork_proxy.works, "the next call has a proxy of its own"
        with pytest.raises(SegmentError, match="a call to it broke off"):
            fork_proxy.get("b", 10)
        fork_proxy.close()

    def test_one_that_died_is_replaced(self, s3: S3) -> None:
        site = s3_site(s3)
        fork_proxy = ForkProxy(site.url, site.options)
        fork_proxy._process.kill()  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(SegmentError, match="the process that fetches for this forked one does not work"):
            fork_proxy.list("objects")
        assert not fork_proxy.works
        fork_proxy.close()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123 - a line of the kernel
        return file.read().rsplit(") ", 1)[1][0] != "Z"


def test_a_directory_needs_no_obstore(tmp_path: Path) -> None:
    site, cache = directory_site(tmp_path), tmp_path / "cache"
    site.publisher().publish(make(tmp_path, "v1", new=[1]))
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "from capline.segment import SegmentWatch\n"
        f"w = SegmentWatch({site.url!r}, {str(cache)!r}); w.poll(); print(w.segment_of(1))\n"
        "from capline.model.errors import SegmentError\n"
        "try: SegmentWatch('s3://b/x', 'c')\n"
        "except SegmentError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["new", 'object stores need obstore: pip install "capline[segments]"'], (
        done.stderr
    )


def test_a_watch_of_an_address_asks_nothing_before_it_is_started(tmp_path: Path) -> None:
    SegmentWatch("s3://nowhere/x", tmp_path / "cache").stop()
    assert not (tmp_path / "cache").exists()
