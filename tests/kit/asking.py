"""Callers of a service over HTTP, with every answer recorded for proof.checker.

Each attempt has an id, and is sent again under it until it is answered: so it counts once, whatever was killed.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from threading import Event
from typing import NamedTuple

import httpx
from proof.record import Recorder

ANSWERED_WITHIN_S = 60


class NotAnsweredError(Exception):
    """The answer was none: an outage, or a gateway's."""


class Answer(NamedTuple):
    """What the recorder reads of an answer."""

    allowed: bool
    hit: int | None
    retry_after_us: int | None
    origin: str


def ask_until(
    stop: Event,
    url: str,
    policy: str,
    subjects: Sequence[str],
    pause_s: float = 0.0,
    headers: Mapping[str, str] | None = None,
) -> list[str]:
    """Ask for the subjects in turn until `stop`; the records."""
    recorder = Recorder()
    with httpx.Client(base_url=url, headers=headers, timeout=ANSWERED_WITHIN_S, trust_env=False) as client:
        while not stop.is_set():
            for subject in subjects:
                ask(client, recorder, policy, subject)
            time.sleep(pause_s)
    return recorder.lines


def ask(client: httpx.Client, recorder: Recorder, policy: str, subject: str) -> Answer:
    """One attempt, sent until it is answered."""
    name = secrets.token_hex(8)
    deadline = time.monotonic() + ANSWERED_WITHIN_S
    while True:
        try:
            return recorder.tell(
                recorder.attempt(policy, subject, id=name), lambda: _answer(client, policy, subject, name)
            )
        except (httpx.HTTPError, NotAnsweredError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _answer(client: httpx.Client, policy: str, subject: str, name: str) -> Answer:
    response = client.post("/v1/decide", json={"policy": policy, "subject": subject, "id": name})
    if response.status_code in (502, 503, 504):
        raise NotAnsweredError(response.text)
    assert response.status_code == 200, response.text
    said = response.json()
    return Answer(said["allowed"], said["hit"], round(said["retry_after"] * 1e6), said["origin"])
