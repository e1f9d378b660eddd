"""One of several processes that ask the model all the time; ends when its standard input does.

Each hand asks, and asks again when it has its answer. Few hands: the estimates of calls that wait for their slots
cannot be used by others meanwhile.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading

import httpx
from model import Model, policies

from capline import CaplineError, Limiter, LimitExceeded

HANDS = 1
MOST_TOKENS = (50, 400)
PROMPT_WORDS = 50


def work(model: Model, ended: threading.Event) -> None:
    """Ask until `ended` is set."""
    while not ended.is_set():
        try:
            model.complete("word " * PROMPT_WORDS, random.randint(*MOST_TOKENS))  # noqa: S311 - no secret
        except LimitExceeded:
            continue
        except (CaplineError, httpx.HTTPError) as error:
            print(f"worker: {error}", file=sys.stderr)
            ended.wait(1)


def main() -> None:
    """Ask with a few hands until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("store", "provider", "requests", "tokens", "jitter"):
        parser.add_argument(f"--{option}", required=True)
    asked = parser.parse_args()
    with (
        Limiter(asked.store, policies(asked.requests, asked.tokens, asked.jitter)) as limiter,
        httpx.Client(base_url=asked.provider, timeout=30) as client,
    ):
        ended = threading.Event()
        model = Model(limiter, client, "the-key", timeout=30)
        hands = [threading.Thread(target=work, args=(model, ended)) for _ in range(HANDS)]
        for hand in hands:
            hand.start()
        print("ready", flush=True)
        sys.stdin.read()
        ended.set()
        for hand in hands:
            hand.join()


if __name__ == "__main__":
    main()
