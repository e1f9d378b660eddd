"""A store's URL: read, or refused in one line that shows no password."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from capline import InvalidTypeError, InvalidValueError
from capline.store.open import lmdb_path, open_async_store, open_store
from capline.store.redis.io.url import parse_url

WRONG: list[tuple[Any, str]] = [
    ("redis", "unknown kind ''"),
    ("", "unknown kind ''"),
    ("sqlite:///x", "unknown kind 'sqlite'"),
    ("memory://x", "memory:// takes no path"),
    ("memory://?durability=full", "unknown option 'durability'; it takes: forms"),
    ("lmdb://", "name a directory"),
    ("lmdb:///x?durability=half", "use relaxed or full"),
    ("lmdb:///x?max_bytes=5", "at least"),
    ("memory://?forms=old", "use present or next"),
    ("lmdb:///x?forms=both", "use present or next"),
    ("redis://:secret@host?forms=both", "forms 'both' is not known; use present or next"),
    ("lmdb:///x?colour", "cannot be read"),
    ("lmdb://[x", "cannot be read"),
    ("redsi://user:secret@host", "unknown kind 'redsi'"),
    ("http://user:secret@[host", "cannot be read"),
]


@pytest.mark.parametrize(("url", "said"), WRONG, ids=[url for url, _ in WRONG])
@pytest.mark.parametrize("opened", [open_store, open_async_store])
def test_a_url_that_names_no_store(opened: Any, url: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        opened(url)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["lmdb://[x", "lmdb://x]", "lmdb://[::1]x", "lmdb://x[::1]"])
def test_a_path_that_urls_cannot_have_is_refused_where_only_the_path_is_asked_for(url: str) -> None:
    with pytest.raises(InvalidValueError, match="cannot be read"):
        lmdb_path(url)


def test_servers_by_address_of_ipv6_whatever_this_pythons_urlsplit_takes() -> None:
    assert parse_url("redis+cluster://[::1],h:7001,[::2]:7002").seeds == (("::1", 6379), ("h", 7001), ("::2", 7002))
    for host in ("[::1", "::1]", "[::1]x", "x[::1]", "[]"):
        with pytest.raises(InvalidValueError, match="is not host:port"):
            parse_url(f"redis://{host}:6379")


@pytest.mark.parametrize(("forms", "begins"), [("", False), ("?forms=present", False), ("?forms=next", True)])
def test_new_forms_are_begun_only_where_the_url_says_so(forms: str, begins: bool) -> None:
    assert parse_url(f"redis+cluster://h{forms}").next_forms is begins


@pytest.mark.parametrize("url", [None, 5, b"memory://"])
@pytest.mark.parametrize("opened", [open_store, open_async_store])
def test_a_url_is_text(opened: Any, url: Any) -> None:
    with pytest.raises(InvalidTypeError, match="named by a URL"):
        opened(url)


def test_a_store_of_this_machine_opens_either_way(tmp_path: Path) -> None:
    open_store("memory://?forms=next").close()
    store = open_async_store(f"lmdb://{tmp_path}?durability=full&forms=next")
    asyncio.run(store.close())
    assert (tmp_path / "data.mdb").exists()
