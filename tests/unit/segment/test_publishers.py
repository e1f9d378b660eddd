"""Who published a version: beside the pointer, never another's name, and nothing is refused for its sake."""

from collections.abc import Sequence
from pathlib import Path
from threading import Barrier, Thread
from unittest.mock import Mock

import pytest
from msgspec.structs import replace
from tests.kit.segments import make

from capline.model.errors import SegmentError
from capline.segment import Publisher
from capline.segment.publish import publish as module
from capline.segment.publish.pointer import MOST_VERSIONS
from capline.segment.publish.publishers import PUBLISHERS, note_publisher, publishers_of


def told(publisher: Publisher) -> dict[str, str]:
    return publisher.publishers(publisher.pointer())


@pytest.fixture
def snapshots(tmp_path: Path) -> Sequence[Path]:
    return [make(tmp_path, f"v{number}", new=[number]) for number in range(4)]


def test_each_version_has_the_name_of_who_published_it(tmp_path: Path, snapshots: Sequence[Path]) -> None:
    with Publisher(tmp_path / "published") as publisher:
        publisher.publish(snapshots[0], who="ann")
        publisher.publish(snapshots[1], who="bob <b>")
        publisher.publish(snapshots[1], who="eve")  # it is current already
        assert told(publisher) == {"v0": "ann", "v1": "bob <b>"}
        publisher.rollback()
        assert told(publisher) == {"v0": "ann", "v1": "bob <b>"}
        with pytest.MonkeyPatch.context() as patched:  # an older capline
            patched.setattr(module, "note_publisher", Mock())
            publisher.publish(snapshots[2])
            publisher.publish(snapshots[1])
        assert told(publisher) == {"v0": "ann"}, "v1 was published anew, by who knows whom"
        publisher.publish(snapshots[3])
        assert told(publisher).keys() == {"v0", "v3"}
        for who in ("", " ann", "a\nb", "x" * 129):
            with pytest.raises(SegmentError, match="printable"):
                publisher.publish(snapshots[0], who=who)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"format": "other", "format_version": 1, "publishers": {}}'])
def test_damage_costs_names_alone(tmp_path: Path, snapshots: Sequence[Path], damage: bytes) -> None:
    with Publisher(tmp_path / "published") as publisher:
        publisher.publish(snapshots[0], who="ann")
        (tmp_path / "published" / PUBLISHERS).write_bytes(damage)
        assert told(publisher) == {}
        publisher.publish(snapshots[1], who="bob")
        assert told(publisher) == {"v1": "bob"}
        (tmp_path / "published" / PUBLISHERS).unlink()
        (tmp_path / "published" / PUBLISHERS).mkdir()  # nobody can write it
        assert publisher.publish(snapshots[2], who="ann").flipped
        assert told(publisher) == {}


def test_several_at_once_lose_no_name_and_those_that_left_the_list_go(
    tmp_path: Path, snapshots: Sequence[Path]
) -> None:
    with Publisher(tmp_path / "published") as publisher:
        publisher.publish(snapshots[0], who="ann")
        objects, pointer = publisher._objects, publisher.pointer()  # pyright: ignore[reportPrivateUsage]
        ours = pointer.serving
        more = [
            replace(ours, version=f"w{n}", manifest=f"{n:064}", published_us=ours.published_us + n) for n in range(1, 7)
        ]
        begin = Barrier(len(more))

        def note(number: int) -> None:
            begin.wait()
            note_publisher(objects, pointer, more[number], f"who {number}")

        threads = [Thread(target=note, args=(number,)) for number in range(len(more))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = replace(pointer, versions=(ours, *more))
        assert publishers_of(objects, after).keys() >= {"w6"}, "a later one is kept by who does not list it"
        for number, one in enumerate(more):
            note_publisher(objects, after, one, f"who {number}")
        assert publishers_of(objects, after) == {"v0": "ann", **{f"w{n}": f"who {n - 1}" for n in range(1, 7)}}
        last = replace(pointer, versions=(more[-1],))
        note_publisher(objects, last, more[-1], "eve")
        assert publishers_of(objects, after) == {"w6": "eve"}
        assert MOST_VERSIONS * (64 + 128 + 30) < 1 << 18, "all names with the longest fit"
