"""The receiver of `capline up` counts a message once, and refuses what is none."""

import threading
from collections.abc import Generator

import httpx
import pytest

from capline.up import receiver
from capline.up.receiver import LARGEST_BYTES, Server


@pytest.fixture
def client() -> Generator[httpx.Client]:
    with Server(0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False, timeout=60) as client:
            yield client
        server.shutdown()
        thread.join()


def test_a_message_that_comes_again_counts_once(client: httpx.Client) -> None:
    for key, user in (("a", 1), ("b", 2), ("a", 1)):
        assert client.post("/message", json={"id": user}, headers={"Idempotency-Key": key}).status_code == 200
    assert client.get("/").json() == {"received": 2, "last": [{"id": 1}, {"id": 2}]}


def test_messages_without_a_key_are_each_a_message(client: httpx.Client) -> None:
    for count in (1, 2):
        assert client.post("/message", json={}).status_code == 200
        assert client.get("/").json()["received"] == count


def test_past_the_bound_the_oldest_message_is_forgotten(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "MOST_KEYS", 2)
    for key, count in (("a", 1), ("b", 2), ("c", 3), ("c", 3), ("b", 3), ("a", 4)):
        assert client.post("/message", json={}, headers={"Idempotency-Key": key}).status_code == 200
        assert client.get("/").json()["received"] == count


def test_what_is_no_message_is_refused(client: httpx.Client) -> None:
    assert client.post("/message", content=b"{").status_code == 400
    assert client.post("/message", content=b"[" * LARGEST_BYTES).status_code == 400
    assert client.post("/message", content=b"x" * (LARGEST_BYTES + 1)).status_code == 413
    assert client.post("/message", content=iter([b"{}"])).status_code == 411, "its length is not told"
    assert client.get("/").json()["received"] == 0
    assert client.post("/message", content=b"1".ljust(LARGEST_BYTES)).status_code == 200
