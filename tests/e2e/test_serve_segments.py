"""`capline serve --segments` on what is published on a real S3 server."""

from pathlib import Path

import httpx
import pytest
from tests.kit.cli import CommandLine
from tests.kit.s3 import S3
from tests.kit.segments import make, s3_site
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

POLICIES = "policies: {promo: {limits: [3/day], by_segment: {new: [1/day], active: [5/day]}}}\n"


@pytest.mark.deep
def test_what_is_published_is_served_and_what_is_newer_too(
    own_s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in own_s3.environment.items():
        monkeypatch.setenv(name, value)
    site = s3_site(own_s3)
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    with site.publisher() as publisher:
        publisher.publish(make(tmp_path, "v1", new=[1], active=[2]))
        with Serving(tmp_path, "--segments", site.url) as service:
            assert service.ask("/v1/decide", policy="promo", subject=2).json()["segment"] == "active"
            publisher.publish(make(tmp_path, "v2", new=[2], active=[1]))

            def now() -> str:
                return service.client.get("/v1/segments").json()["version"]

            assert soon(lambda: now() == "v2", WITHIN_S)
            assert service.ask("/v1/peek", policy="promo", subject=2).json()["segment"] == "new"
            own_s3.stop_serving()
            ready = service.client.get("/readyz")
            assert soon(lambda: service.client.get("/readyz").json()["segments"]["error"] is not None, WITHIN_S)
            assert (ready.status_code, ready.json()["segments"]["version"]) == (200, "v2")
            assert service.ask("/v1/peek", policy="promo", subject=1).json()["segment"] == "active"
            with httpx.Client(base_url=service.admin, trust_env=False, timeout=WITHIN_S) as admin:
                metrics = admin.get("/metrics").text
            assert 'capline_segments_serving{watch="main"} 1.0' in metrics
            assert 'capline_segments_failing{watch="main"} 1.0' in metrics
            assert service.stop() == 0


def test_what_cannot_be_served_is_one_line(
    capline: CommandLine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "policies.yaml").write_text(POLICIES, encoding="utf-8")
    good = make(tmp_path, "v2", new=[1], active=[2])
    listen = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    for words in (("--check",), listen):
        for address, said in (("nowhere", "nowhere"), ("ftp://x", "s3://")):
            done = capline("serve", *words, "--segments", address)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
            assert said in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "nothing is published there" in capline("serve", *listen, "--segments", f"file://{empty}").stderr
    assert capline("serve", "--check", "--segments", str(good)).returncode == 0
    caplog.clear()
    assert capline("serve", "--check", "--segments", str(make(tmp_path, "v1", new=[1]))).returncode == 0
    assert "limits for segment 'active', which the segments of version v1 lack; there are: new" in caplog.text
    assert len(caplog.records) == 1
    assert capline("serve", "--check", "--segments", f"file://{empty}").returncode == 0, "a publication is not asked"
