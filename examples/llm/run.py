"""Several processes share the requests and tokens a minute of one key of a language model, and hear no 429.

    python examples/llm/run.py                                    all on this machine, no server needed
    python examples/llm/run.py --store redis://localhost --processes 8
    python examples/llm/run.py --stranger 0.3                     somebody else uses 30 % of the requests, unlimited

A minute is `--minute` seconds here, so that one sees some of them. Prints what the strict provider saw; exits 1 where
it answered 429 and there was no stranger.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from model import policies

from capline import CaplineError, Limiter

HERE = Path(__file__).parent
MOST_PROCESSES = 64
STOP_SECONDS = 60


def run(asked: argparse.Namespace, running: ExitStack) -> dict[str, Any]:
    """What the provider saw."""
    requests, tokens = f"{asked.requests}/{asked.minute}s", f"{asked.tokens}/{asked.minute}s"
    directory = running.enter_context(tempfile.TemporaryDirectory(prefix="capline-llm-"))
    store = asked.store or f"lmdb://{directory}/store"
    with Limiter(store, policies(requests, tokens, asked.jitter)) as limiter:
        limiter.erase("the-key")
    limits = ("--requests", str(asked.requests), "--tokens", str(asked.tokens), "--minute", str(asked.minute))
    provider = _line(_start(running, "provider.py", *limits))
    options = ("--store", store, "--provider", provider, "--jitter", asked.jitter)
    with ExitStack() as working:
        for _ in range(asked.processes):
            worker = _start(working, "worker.py", *options, "--requests", requests, "--tokens", tokens)
            if _line(worker) != "ready":
                sys.exit("a worker ended before its first request")
        with httpx.Client(base_url=provider, trust_env=False) as client:
            refused = _be_strange(client, asked)
    stats = httpx.get(f"{provider}/stats", trust_env=False).json()
    return stats | {"refused": stats["refused"] - refused, "refused_stranger": refused}


def _be_strange(client: httpx.Client, asked: argparse.Namespace) -> int:
    """Let the workers work for as long as asked; use a share of their quota meanwhile. How often that was refused."""
    refused, ends = 0, time.monotonic() + asked.seconds
    while time.monotonic() < ends:
        if not asked.stranger:
            time.sleep(max(0.0, ends - time.monotonic()))
            break
        answer = client.post("/v1/complete", json={"prompt": "strange", "max_tokens": 50})
        refused += not answer.is_success
        time.sleep(asked.minute / (asked.requests * asked.stranger))
    return refused


def _start(running: ExitStack, program: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a program beside this one, which ends with its input. Its session is its own: Ctrl-C is for this one."""
    command = [sys.executable, str(HERE / program), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)  # noqa: S603 - our own
    running.callback(process.wait, STOP_SECONDS)
    if process.stdin:
        running.callback(process.stdin.close)
    return process


def _line(process: subprocess.Popen[bytes]) -> str:
    return process.stdout.readline().decode().strip() if process.stdout else ""


def main(words: list[str] | None = None) -> int:
    """Run it; see the module's text."""
    parser = argparse.ArgumentParser(
        "run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", help="lmdb:///path, redis://…, redis+cluster://…; default: lmdb, for this run")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--requests", type=int, default=60, help="a minute")
    parser.add_argument("--tokens", type=int, default=8_000, help="a minute")
    parser.add_argument("--minute", type=int, default=5, help="how many seconds a minute is here")
    parser.add_argument("--jitter", default="100ms", help="by how much the way to the provider differs")
    parser.add_argument("--stranger", type=float, default=0, help="the share of the requests that somebody else makes")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(words)
    if not 1 <= asked.processes <= MOST_PROCESSES or not asked.seconds > 0 or not 0 <= asked.stranger <= 1:
        parser.error(f"--processes is 1 to {MOST_PROCESSES}, --seconds more than 0, --stranger 0 to 1")
    try:
        with ExitStack() as running:
            seen = run(asked, running)
    except (CaplineError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if asked.json:
        print(json.dumps(seen))
    else:
        print(f"answers of 429       {seen['refused']}")
        print(f"answered             {seen['requests']}, of {seen['tokens']} tokens")
        print(f"used of the quota    {seen['requests_share']:.1%} of requests, {seen['tokens_share']:.1%} of tokens")
    return 1 if seen["refused"] and not asked.stranger else 0


if __name__ == "__main__":
    sys.exit(main())
