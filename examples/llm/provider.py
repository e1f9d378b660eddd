"""A strict provider of a language model, to try limits on: requests and tokens a minute, by its own exact count.

    python provider.py --requests 60 --tokens 20000 --minute 5     a minute of five seconds

    POST /v1/complete   {"prompt": "…", "max_tokens": 300}  ->  {"text": "…", "usage": {"total_tokens": 123}}
    GET  /stats         what it has seen, as JSON; not counted

As such providers do, it counts a request with the most that it may use, the prompt's words and `max_tokens`, and puts
that right when it has answered. Where that does not fit it answers 429 with `Retry-After`, and counts nothing. Every
answer says in `X-RateLimit-Remaining-Requests` and `-Tokens` what is left. Prints its address, and ends when its
standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections import deque

MOST_BODY_BYTES = 1 << 20
ANSWER_SECONDS = (0.02, 0.2)


class Provider:
    """Both rolling counts of one key, and what was seen."""

    def __init__(self, requests: int, tokens: int, minute: float) -> None:
        self.requests, self.tokens, self.minute_ns = requests, tokens, round(minute * 1e9)
        self.counted: deque[list[int]] = deque()
        """[when, tokens] of every request of the last minute."""
        self.answered = self.refused = self.used = self.first_ns = self.last_ns = 0

    def left(self) -> tuple[int, int]:
        """The requests and tokens that are left now."""
        while self.counted and self.counted[0][0] <= time.monotonic_ns() - self.minute_ns:
            self.counted.popleft()
        return self.requests - len(self.counted), self.tokens - sum(tokens for _, tokens in self.counted)

    def lets_in(self, tokens: int) -> list[int] | None:
        """The entry of a request that may use so many, or None where it does not fit now."""
        requests_left, tokens_left = self.left()
        if requests_left < 1 or tokens_left < tokens:
            self.refused += 1
            return None
        entry = [time.monotonic_ns(), tokens]
        self.counted.append(entry)
        self.first_ns, self.last_ns = self.first_ns or entry[0], entry[0]
        return entry

    def answer(self, entry: list[int], used: int) -> None:
        """What the request really used."""
        entry[1] = used
        self.answered += 1
        self.used += used

    def retry_after(self) -> int:
        """Whole seconds until the oldest request counts no more."""
        oldest_ns = self.counted[0][0] if self.counted else time.monotonic_ns()
        return max(1, math.ceil((oldest_ns + self.minute_ns - time.monotonic_ns()) / 1e9))

    def stats(self) -> dict[str, float]:
        """What was seen; the shares are of what is allowed from the first request to the last."""
        minutes = (self.last_ns - self.first_ns) / self.minute_ns or 1
        return {
            "requests": self.answered,
            "tokens": self.used,
            "refused": self.refused,
            "requests_share": round(self.answered / (minutes * self.requests), 4),
            "tokens_share": round(self.used / (minutes * self.tokens), 4),
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: requests, one after the other."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                request, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(min(int(headers.get("content-length", 0)), MOST_BODY_BYTES))
                if request.startswith("GET /stats "):
                    self._send(writer, "200 OK", self.stats())
                else:
                    await self._complete(writer, json.loads(body))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError, KeyError):
            pass
        finally:
            writer.close()

    async def _complete(self, writer: asyncio.StreamWriter, asked: dict[str, str | int]) -> None:
        prompt, most = len(str(asked["prompt"]).split()), int(asked["max_tokens"])
        entry = self.lets_in(prompt + most)
        if entry is None:
            self._send(writer, "429 Too Many Requests", {"error": "rate"}, f"Retry-After: {self.retry_after()}\r\n")
            return
        await asyncio.sleep(random.uniform(*ANSWER_SECONDS))  # noqa: S311 - no secret
        words = random.randint(1, most)  # noqa: S311 - as above
        self.answer(entry, prompt + words)
        self._send(writer, "200 OK", {"text": "word " * words, "usage": {"total_tokens": prompt + words}})

    def _send(self, writer: asyncio.StreamWriter, status: str, said: object, more: str = "") -> None:
        body = json.dumps(said)
        requests_left, tokens_left = self.left()
        more += f"X-RateLimit-Remaining-Requests: {requests_left}\r\nX-RateLimit-Remaining-Tokens: {tokens_left}\r\n"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n{body}".encode())


async def main(requests: int, tokens: int, minute: float) -> None:
    """Serve until standard input ends."""
    server = await asyncio.start_server(Provider(requests, tokens, minute).serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=60, help="a minute")
    parser.add_argument("--tokens", type=int, default=20_000, help="a minute")
    parser.add_argument("--minute", type=float, default=60, help="how many seconds that is here")
    asked = parser.parse_args()
    asyncio.run(main(asked.requests, asked.tokens, asked.minute))
