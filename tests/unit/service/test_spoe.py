"""HAProxy's agent, frame by frame: what is answered, what ends a connection, what no connection notices."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capline import AsyncLimiter, Policy
from capline.model.errors import InvalidValueError
from capline.service.gateways import spoe
from capline.service.gateways.spoe import answered, spoe_server
from capline.service.run.listen import bound
from capline.service.settings.values import Address

HEAD = b"\0\0\0\1"


def text(word: str) -> bytes:
    return bytes([len(word)]) + word.encode()


def check(*arguments: tuple[str, bytes], frame: int = 7) -> bytes:
    pairs = b"".join(text(key) + value for key, value in arguments)
    return b"\3" + HEAD + b"\5" + bytes([frame]) + text("check") + bytes([len(arguments)]) + pairs


POLICY = ("policy", b"\x08" + text("api"))
CLIENT = ("subject", b"\x06" + bytes([127, 0, 0, 1]))
HELLO = (
    b"\1"
    + HEAD
    + b"\0\0"
    + text("supported-versions")
    + b"\x08"
    + text("2.0")
    + text("max-frame-size")
    + b"\3\xfc\xf0\6"
)


def asked(work: Callable[[AsyncLimiter], Awaitable[None]], url: str = "memory://") -> None:
    async def run() -> None:
        async with AsyncLimiter(url, policies=[Policy("api", ["2/hour"])]) as limiter:
            await work(limiter)

    asyncio.run(run())


def test_a_hello_is_answered_with_the_version_and_the_smaller_frame() -> None:
    async def work(limiter: AsyncLimiter) -> None:
        answer = await answered(limiter, HELLO)
        assert answer is not None
        assert answer.startswith(b"\x65" + HEAD + b"\0\0" + text("version") + b"\x08" + text("2.0"))
        for size, agreed in ((1024, 1024), (1 << 20, spoe.LARGEST_FRAME_BYTES)):
            name = text("max-frame-size") + b"\3"
            answer = await answered(limiter, b"\1" + HEAD + b"\0\0" + name + spoe.varint(size))
            assert answer is not None
            assert name + spoe.varint(agreed) in answer
        assert await answered(limiter, b"\2" + HEAD + b"\0\0") is None

    asked(work)


def test_a_message_is_one_attempt_and_answered_by_variables() -> None:
    async def work(limiter: AsyncLimiter) -> None:
        answers = [await answered(limiter, check(POLICY, CLIENT, frame=number)) or b"" for number in range(3)]
        for number, answer in enumerate(answers):
            assert answer.startswith(b"\x67" + HEAD + b"\5" + bytes([number]) + b"\1\3\2" + text("allowed"))
        allowed = [answer[len(b"\x67" + HEAD) + 5 + len(text("allowed"))] for answer in answers]
        assert allowed == [0x11, 0x11, 0x01]
        assert b"retry_after" in answers[2]
        assert b"retry_after" not in answers[0]
        assert (await limiter.peek("api", "127.0.0.1")).remaining == 0

    asked(work)


@pytest.mark.parametrize(
    "arguments", [[CLIENT], [POLICY], [POLICY, ("subject", b"\0")], [("policy", b"\x08" + text("no")), CLIENT]]
)
def test_what_has_no_answer_sets_no_verdict(arguments: list[tuple[str, bytes]]) -> None:
    async def work(limiter: AsyncLimiter) -> None:
        answer = await answered(limiter, check(*arguments)) or b""
        assert text("error") in answer
        assert text("allowed") not in answer

    asked(work)


def test_an_outage_sets_no_verdict() -> None:
    async def work(limiter: AsyncLimiter) -> None:
        answer = await answered(limiter, check(POLICY, CLIENT)) or b""
        assert text("error") in answer
        assert text("allowed") not in answer

    asked(work, "redis://127.0.0.1:1/0")


@given(st.binary(max_size=60), st.integers(0, 40))
def test_what_is_no_frame_ends_its_connection_alone(noise: bytes, cut: int) -> None:
    async def work(limiter: AsyncLimiter) -> None:
        for frame in (noise, b"\3" + noise, check(POLICY, CLIENT)[:cut], check(POLICY, ("subject", noise or b"\x0f"))):
            try:
                await answered(limiter, frame)
            except InvalidValueError as error:
                assert "\n" not in str(error)  # noqa: PT017 - either is right: an answer, or this

    asked(work)


@given(st.integers(0, (1 << 64) - 1))
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    assert spoe.Data(spoe.varint(number)).varint() == number


def test_connections_are_answered_in_turn_and_a_bad_one_ends_alone() -> None:
    async def work(limiter: AsyncLimiter) -> None:
        listening = bound(Address("127.0.0.1", 0), "spoe.listen")
        async with spoe_server(limiter, listening):
            port = listening.getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
            other_writer.write(struct.pack(">I", 1 << 30))
            assert await other_reader.read() == b""
            other_writer.close()
            head = HELLO + text("x") + b"\x08"
            size = spoe.LARGEST_FRAME_BYTES - len(head) - len(spoe.varint(spoe.LARGEST_FRAME_BYTES))
            largest = head + spoe.varint(size) + b"x" * size
            assert len(largest) == spoe.LARGEST_FRAME_BYTES
            for frame in (HELLO, check(POLICY, CLIENT, frame=1), check(POLICY, CLIENT, frame=2), largest):
                writer.write(struct.pack(">I", len(frame)) + frame)
            kinds: list[int] = []
            for _ in range(4):
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                kinds.append((await reader.readexactly(size))[0])
            assert kinds == [101, 103, 103, 101]
        assert await reader.read() == b""
        writer.close()

    asked(work)
