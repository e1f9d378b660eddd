"""Asks a limiter what stands on each line of its input, and says what it answered: a script, under any release."""

import json
import sys
from typing import Any

from capline import CaplineError, Decision, Limiter, ManualClock, Policy


def told(limiter: Limiter, verb: str, *args: Any, **named: Any) -> Any:
    """The answer as JSON has it; of an error its name."""
    try:
        answer = getattr(limiter, verb)("p", "subject", *args, **named)
    except CaplineError as error:
        return type(error).__name__
    if not isinstance(answer, Decision):
        return answer
    return [answer.allowed, answer.hit, answer.remaining, answer.retry_after_us, answer.reset_after_us]


def main() -> None:
    """Answer until the input ends."""
    url, namespace, *limits = sys.argv[1:]
    clock = ManualClock(0)
    with Limiter(url, [Policy("p", limits)], clock=clock, namespace=namespace) as limiter:
        for line in sys.stdin:
            now_us, verb, args, named = json.loads(line)
            clock.advance_us(now_us - clock.now_us())
            print(json.dumps(told(limiter, verb, *args, **named)), flush=True)


if __name__ == "__main__":
    main()
