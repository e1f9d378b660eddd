"""Audiences that are uploaded to a real service: whole and verified under their name, or not there at all."""

import gzip
import hashlib
import json
import socket
import subprocess
import threading
from base64 import b64encode
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.kit.campaign import Site, answer, capline
from tests.kit.s3 import S3
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

from capline.segment import IdSet
from capline.service.access.tokens import TokenFile

USERS = b"id,zone\n" + b"".join(b"%d,Asia/Tokyo\n" % number for number in range(400))
pyarrow: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")


def digest(data: bytes, name: str = "sha256") -> dict[str, str]:
    """The header that a body needs."""
    word = b64encode(hashlib.new(name, data).digest()).decode()
    return {"Content-Digest": f"{name.replace('sha', 'sha-')}=:{word}:"}


class Uploads:
    """A service with a place for uploads; `kept` are the names there, `left` what is not finished."""

    def __init__(self, folder: Path, audiences: str, **bounds: int) -> None:
        self.site = Site(folder)
        self.folder = folder
        self.queue = f"sqlite://{folder}/queue.sqlite"
        tokens = TokenFile(folder / "tokens.json", create=True)
        self.tokens = {role: tokens.create(role, [role]) for role in ("read", "compose", "steer", "admin")}
        (folder / "token").write_text(self.tokens["compose"])
        said = {"store": "memory://", "queue": self.queue, "audiences": audiences, "tokens": "tokens.json"}
        (folder / "capline.yaml").write_text(json.dumps(said | {"bounds": bounds}))
        self.serving = Serving(folder, "--config", "capline.yaml")

    def ask(self, method: str, path: str, role: str = "compose", **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[role]}", **more.pop("headers", {})}
        return self.serving.client.request(method, path, headers=headers, **more)

    def put(self, name: str, data: bytes, query: str = "", **headers: str) -> Any:
        return self.ask("PUT", f"/v1/audiences/{name}{query}", content=data, headers=headers or digest(data))

    @property
    def kept(self) -> list[str]:
        return [each["name"] for each in self.ask("GET", "/v1/audiences").json()["audiences"]]

    @property
    def files(self) -> list[str]:
        return [path.name for path in (self.folder / "kept").iterdir() if path.is_file()]

    @property
    def left(self) -> list[str]:
        return [path.name for path in (self.folder / ".capline" / "uploads").glob("*")]

    def raw(self, head: str, body: bytes) -> socket.socket:
        """A connection on which this much of a request was sent."""
        url = self.serving.client.base_url
        opened = socket.create_connection((url.host, url.port or 0), WITHIN_S)
        token = f"Host: localhost\r\nAuthorization: Bearer {self.tokens['compose']}\r\n"
        opened.sendall(f"{head} HTTP/1.1\r\n{token}".encode() + body)
        return opened


@pytest.fixture
def uploads(tmp_path: Path) -> Generator[Callable[..., Uploads]]:
    begun: list[Uploads] = []

    def made(audiences: str = "kept", **bounds: int) -> Uploads:
        begun.append(Uploads(tmp_path, audiences, **bounds))
        return begun[-1]

    yield made
    for each in begun:
        each.serving.__exit__()


def test_a_campaign_of_an_upload(uploads: Callable[..., Uploads]) -> None:
    at = uploads()
    (at.folder / "summer.csv").write_bytes(USERS)
    where = ("--server", at.serving.url, "--token-file", at.folder / "token")
    taken = answer("campaign", "upload", at.folder / "summer.csv", *where)
    expected = {"name": "summer.csv", "bytes": len(USERS), "rows": 400, "audience": {"upload": "summer.csv"}}
    assert taken == expected
    (at.folder / "summer.csv").unlink()
    at.site.seed()
    at.site.write(audience="{upload: summer.csv, zone_column: zone}")
    assert answer("campaign", "plan", at.site.file, *where)["total"]["audience"] == 400
    assert answer("campaign", "enqueue", at.site.file, *where)["state"] == "new"
    assert capline("worker", "--queue", at.queue, "--until-idle", "--quiet").returncode == 0
    report = at.ask("GET", "/v1/campaigns/summer-sale", "read").json()
    assert (report["state"], report["total"]["audience"]) == ("finished", 400)
    for local in ("plan", "run"):
        said = capline("campaign", local, at.site.file)
        assert (said.returncode, "an upload is at a service" in said.stderr) == (2, True), said.stderr
    at.site.write(audience="{upload: ../users.csv}")
    assert capline("campaign", "plan", at.site.file, *where).returncode == 2
    at.site.write(audience="{upload: other.csv}")
    assert "no such file" in capline("campaign", "plan", at.site.file, *where).stderr
    assert capline("campaign", "upload", at.folder / "none.csv", *where).returncode == 2
    assert capline("campaign", "upload", at.folder / "users.csv").returncode == 2


def test_each_kind_of_file_and_what_is_none(uploads: Callable[..., Uploads], tmp_path: Path) -> None:
    at = uploads()
    table = pyarrow.table({"who": pyarrow.array(["ann", "bob"])})
    parquet.write_table(table, tmp_path / "t.parquet")
    IdSet.from_range(1, 9).to_file(tmp_path / "t.roaring")
    rows, bits = (tmp_path / "t.parquet").read_bytes(), (tmp_path / "t.roaring").read_bytes()
    for name, data, query, count in (
        ("a.csv", USERS, "", 400),
        ("a.parquet", rows, "?column=who", 2),
        ("text.csv", b"mail\nann@example.org\n", "?column=mail&ids=text", 1),
        ("a.roaring", bits, "", 9),
    ):
        said = at.put(name, data, query)
        assert (said.status_code, said.json().get("rows")) == (200, count), said.text
    names = ["a.csv", "a.parquet", "a.roaring", "text.csv"]
    assert at.kept == names
    first = at.ask("GET", "/v1/audiences?limit=3").json()
    assert ([each["name"] for each in first["audiences"]], first["next"]) == (names[:3], "a.roaring")
    assert at.ask("GET", "/v1/audiences?after=a.roaring").json()["next"] is None
    for name, data, query in (
        *((name, USERS, "") for name in ("..%2Fx.csv", ".x.csv", "a%00.csv", "x.txt", "%2A.csv", "x" * 250 + ".csv")),
        *(("a.csv", data, "") for data in (b"", b"id\n", b"id\n1\nx\n", b"who\n1\n", rows)),
        ("a.csv", USERS, "?ids=some"),
        ("a.csv", USERS, "?column=mail"),
        *(("a.parquet", rows, query) for query in ("", "?column=who&ids=number")),
        ("a.parquet", rows[:-1], "?column=who"),
        ("a.roaring", bits[:-1], ""),
    ):
        said = at.put(name, data, query)
        assert said.status_code == 422, (name, said.text)
        assert ".capline" not in said.text
    wrong = digest(USERS[:-1])["Content-Digest"]
    for header in (wrong, "", "sha-256=x", "md5=:AAAA:", "sha-256=:!:", f"{digest(USERS)['Content-Digest']}, {wrong}"):
        assert at.put("a.csv", USERS, "", **{"Content-Digest": header}).status_code == 422, header
    assert at.put("a.csv", USERS[:-1] + b"\n", "", **digest(USERS, "sha512")).status_code == 200
    assert (at.kept, at.left) == (names, [])
    assert at.ask("DELETE", "/v1/audiences/a.csv").json()["bytes"] == len(USERS)
    assert at.ask("DELETE", "/v1/audiences/a.csv").status_code == 404
    assert at.kept == names[1:]
    for method, role, status in (("PUT", "read", 403), ("PUT", "steer", 403), ("DELETE", "read", 403)):
        assert at.ask(method, "/v1/audiences/a.roaring", role).status_code == status
    assert [at.ask("GET", "/v1/audiences", role).status_code for role in ("read", "steer")] == [200, 403]


def test_who_is_erased_is_in_no_upload(uploads: Callable[..., Uploads], tmp_path: Path) -> None:
    """Numbers and texts, each kind of file: the others' rows stay as they were, wherever else the word stands."""
    at = uploads()
    rows = {"age": pyarrow.array([7, 8, 7], pyarrow.int8()), "who": pyarrow.array(["7", "ann", "bob"])}
    parquet.write_table(pyarrow.table(rows), tmp_path / "t.parquet")
    IdSet.from_range(6, 8).to_file(tmp_path / "t.roaring")
    for name, data, query in (
        ("a.csv", b'id,name\n6,"x, 7"\n007,y\n8,7\n', ""),
        ("b.csv.gz", gzip.compress(b"mail,by\nann,x\nx,ann\n"), "?column=mail&ids=text"),
        ("c.parquet", (tmp_path / "t.parquet").read_bytes(), "?column=who"),
        ("d.roaring", (tmp_path / "t.roaring").read_bytes(), ""),
        ("e.csv", b"id\n7\n", ""),
    ):
        assert at.put(name, data, query).status_code == 200
    kept = at.folder / "kept"
    (kept / "f.csv").write_bytes(b"mail\nann\n")

    def erased(word: str) -> dict[str, Any]:
        found = at.ask("DELETE", f"/v1/subjects/{word}", "admin").json()["uploads"]
        return {each["upload"]: each["unread"] or each["rows"] for each in found}

    unread = erased("i:7").pop("f.csv")
    assert "no column 'id'" in unread
    assert str(kept) not in unread
    assert at.kept == ["a.csv", "b.csv.gz", "c.parquet", "d.roaring", "f.csv"], "nobody else was in e.csv"
    assert (kept / "a.csv").read_bytes() == b'id,name\n6,"x, 7"\n8,7\n'
    assert list(IdSet.from_file(kept / "d.roaring")) == [6, 8]
    assert erased("s:ann") == {"b.csv.gz": 1, "c.parquet": 1}
    assert gzip.decompress((kept / "b.csv.gz").read_bytes()) == b"mail,by\nx,ann\n"
    assert parquet.read_table(kept / "c.parquet").to_pylist() == [{"age": 7, "who": "7"}, {"age": 7, "who": "bob"}]
    (kept / "f.csv").unlink()
    where = ("--policies", at.site.path / "policies.yaml", "--store", "memory://", "--audiences", kept)
    assert answer("erase", "s:bob", *where)["uploads"] == [{"upload": "c.parquet", "rows": 1, "unread": None}]
    lines = ["a.csv: erased 1 row(s)", "d.roaring: erased 1 row(s)"]
    assert capline("erase", "i:6", *where).stdout.splitlines()[1:] == lines
    assert capline("erase", "i:6", *where).stdout.endswith("no upload had it\n")


def test_nothing_is_left_of_an_upload_that_ends_early(uploads: Callable[..., Uploads]) -> None:
    at = uploads(audience_bytes=1 << 20)
    assert at.put("a.csv", USERS).status_code == 200
    head, length = "PUT /v1/audiences/a.csv", f"Content-Length: {len(USERS)}\r\n"
    said = f"Content-Digest: {digest(USERS)['Content-Digest']}\r\n"
    with at.raw(head, f"{said}{length}\r\n".encode() + USERS[:-1]):
        assert soon(lambda: bool(at.left), WITHIN_S)
    assert soon(lambda: not at.left, WITHIN_S), "the client went away"
    large = b"id\n" + b"1\n" * (1 << 20)
    assert at.put("a.csv", large).status_code == 413
    pieces = (large[start : start + 65536] for start in range(0, len(large), 65536))
    assert at.ask("PUT", "/v1/audiences/a.csv", content=pieces, headers=digest(large)).status_code == 413
    (at.folder / "large.csv").write_bytes(large * 20)
    where = ("--server", at.serving.url, "--token-file", at.folder / "token")
    assert "larger than 1048576 bytes" in capline("campaign", "upload", at.folder / "large.csv", *where).stderr
    held = [at.raw(head, f"{said}{length}\r\n".encode() + USERS[:9]) for _ in range(4)]
    assert soon(lambda: len(at.left) == 4, WITHIN_S)
    assert at.put("a.csv", USERS).status_code == 503
    for each in held:
        each.close()
    assert soon(lambda: not at.left, WITHIN_S)
    assert (at.folder / "kept" / "a.csv").read_bytes() == USERS
    assert at.files == ["a.csv"]


def test_an_upload_that_stops_halfway_is_ended(uploads: Callable[..., Uploads]) -> None:
    at = uploads(body_within=1)
    said = f"Content-Digest: {digest(USERS)['Content-Digest']}\r\nContent-Length: {len(USERS)}\r\n\r\n"
    with at.raw("PUT /v1/audiences/a.csv", said.encode() + USERS[:-1]) as slow:
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
    assert (at.kept, at.left) == ([], [])


def test_of_two_at_once_one_is_there_whole(uploads: Callable[..., Uploads]) -> None:
    at = uploads()
    files = [b"id\n" + b"".join(b"%d\n" % (number + start) for number in range(200_000)) for start in (0, 10**6)]
    said: list[int] = []

    def put(data: bytes) -> None:
        said.extend(at.put("a.csv", data).status_code for _ in range(3))

    threads = [threading.Thread(target=put, args=(data,)) for data in files]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert said == [200] * 6
    assert (at.folder / "kept" / "a.csv").read_bytes() in files
    assert (at.files, at.left) == (["a.csv"], [])


def test_a_full_disk_takes_nothing(uploads: Callable[..., Uploads], tmp_path: Path) -> None:
    at = uploads()
    pid = at.serving.process.pid
    subprocess.run(["prlimit", f"--pid={pid}", "--fsize=262144"], check=True)  # noqa: S607 - as a quota is
    large = b"id\n" + b"".join(b"%d\n" % number for number in range(10**6, 10**6 + 10**5))
    said = at.put("a.csv", large)
    assert said.status_code == 507, said.text
    assert (at.kept, at.left) == ([], [])
    assert at.put("a.csv", USERS).status_code == 200


def test_uploads_in_an_object_store(
    uploads: Callable[..., Uploads], own_s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, name = own_s3, "shop"
    server.make_bucket(name)
    for key, value in server.environment.items():
        monkeypatch.setenv(key, value)
    at = uploads(f"s3://{name}/audiences")
    assert at.put("a.csv", USERS).json()["rows"] == 400
    assert at.kept == ["a.csv"]
    at.site.write(audience="{upload: a.csv}")
    where = ("--server", at.serving.url, "--token-file", at.folder / "token")
    assert answer("campaign", "enqueue", at.site.file, *where)["state"] == "new"
    assert capline("worker", "--queue", at.queue, "--until-idle", "--quiet").returncode == 0
    assert at.ask("GET", "/v1/campaigns/summer-sale", "read").json()["total"]["audience"] == 400
    at.site.write(audience=f"{{csv: 's3://{name}/audiences/a.csv'}}")
    assert answer("campaign", "plan", at.site.file)["total"]["audience"] == 400
    at.site.write(audience="{csv: 'http://127.0.0.1:1/a.csv'}")
    assert "an object's address begins with" in capline("campaign", "plan", at.site.file).stderr
    assert at.ask("DELETE", "/v1/audiences/a.csv").status_code == 200
    assert at.kept == []
    server.stop_serving()
    assert at.put("a.csv", USERS).status_code == 503
    assert at.left == []
