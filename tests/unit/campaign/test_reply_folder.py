"""What a service keeps of replies: for so many days, and of nobody who was erased."""

import json
from pathlib import Path

from capline.campaign.response.folder import KEPT_DAYS, add_replies, erase_replies, reply_files


def reply(kind: str, word: str) -> dict[str, str]:
    return {kind: word, "time": "2026-11-27T00:00:00Z", "event": "opened"}


def test_files_go_when_they_are_too_old(tmp_path: Path) -> None:
    for day in ("2026-01-01", "2026-01-02", "2026-04-01", "2026-04-02"):
        for _ in range(2):
            add_replies(tmp_path, day, "id", [reply("id", "1")])
    assert KEPT_DAYS == 90
    kept = [path.name for path in reply_files(tmp_path)]
    assert kept == ["by-id-2026-01-02.jsonl", "by-id-2026-04-01.jsonl", "by-id-2026-04-02.jsonl"]


def test_who_is_erased_is_in_none_of_them(tmp_path: Path) -> None:
    keys = ["spring/0f/1", "spring/0f/11", "a/0f/1/1", "spring/0f/anna%20b%2F1", "spring/1/2", "1"]
    add_replies(tmp_path, "2026-11-27", "key", [reply("key", key) for key in keys])
    add_replies(tmp_path, "2026-11-28", "id", [reply("id", word) for word in ("1", "11", "anna b/1")])
    assert [erase_replies(tmp_path, who) for who in (1, 1, "anna b/1", "x")] == [2, 0, 2, 0]
    left = [json.loads(line) for path in reply_files(tmp_path) for line in path.read_text().splitlines()]
    assert [each.get("key") or each["id"] for each in left] == ["11", "spring/0f/11", "a/0f/1/1", "spring/1/2", "1"]
