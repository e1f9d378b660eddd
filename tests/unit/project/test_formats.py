"""The examples of docs/reference/formats.md, byte by byte: the code that reads them reads what the page says."""

import re
import zlib
from pathlib import Path

import msgspec

from capline import Limiter, ManualClock, Policy
from capline.campaign.store.rows import BatchRows
from capline.limiter.arguments.checks import fingerprint
from capline.service.verbs.batch import BatchRequest
from capline.store.local.lmdb.keys import LOG_NUMBER, subject_key
from capline.store.local.log_bytes import read_plain
from capline.store.redis.scripting.value import ParsedLog, read_value

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
FIRST, SECOND = 1_763_700_000_000_000, 1_763_700_001_000_000


def lines(name: str) -> list[str]:
    (block,) = re.findall(rf"```{name}\n(.*?)```", PAGE, re.DOTALL)
    return block.splitlines()


def shown(name: str, line: int = 0) -> bytes:
    (digits,) = re.findall(r"^(?:[0-9a-f]{2,}(?: |$))+", lines(name)[line])
    return bytes.fromhex(digits)


def test_a_log_on_lmdb() -> None:
    key = shown("lmdb")
    assert key == LOG_NUMBER.pack(1) + subject_key(42)
    assert list(read_plain(shown("lmdb", 1), key) or ()) == [FIRST, SECOND]


def test_the_forms_of_a_log_on_a_server() -> None:
    assert read_value(shown("plain")) == ParsedLog([(FIRST, 1, 0), (SECOND, 1, 0)], SECOND)
    hits = [(FIRST, 2, fingerprint("order-7")), (SECOND, 1, 0)]
    assert read_value(shown("general")) == ParsedLog(hits, SECOND)
    numbers = read_value(shown("numbers"))
    assert (numbers.hits, numbers.high_water_us) == ([(FIRST, 1, 0)], FIRST)
    assert [str(row.reader.limit) for row in numbers.rows or ()] == ["100/second"]
    ((stamp, holds_us, mark),) = read_value(shown("reservation")).hits
    assert (stamp, holds_us, mark >> 32, mark % 2**32) == (FIRST, 60_000_000, 0xA1B2C3D4, FIRST % 2**32)


def test_a_batch_of_a_campaign() -> None:
    decided = msgspec.msgpack.encode((FIRST, 1, (), zlib.compress(shown("decided"))))
    rows = BatchRows.unpack(1, decided, msgspec.msgpack.encode((False, zlib.compress(b"\0\0\0"), [])))
    assert [column.tolist() for column in (rows.ids, rows.codes, rows.hit)] == [[42], [1], [FIRST]]


def test_what_goes_over_the_wire() -> None:
    request = msgspec.msgpack.decode(shown("msgpack"), type=BatchRequest)
    assert (request.policy, request.subjects, request.cost) == ("promo", [42, "ann"], 1)
    policies = [Policy("promo", ["3/day", "10/week"])]
    with Limiter("memory://", policies, clock=ManualClock(start_us=FIRST)) as limiter:
        headers = limiter.decide("promo", 42).headers("draft-11")
    assert [f"{name}: {value}" for name, value in headers.items()] == lines("headers")
