"""Clients of the real botocore against a real S3 server, and against a provider that asks to wait."""

import os
import site
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.kit.http import Provider
from tests.kit.s3 import PROGRAM, S3

from capline import InvalidTypeError, Limiter, Policy
from capline.middleware.botocore import limit_client
from capline.model.errors import CaplineError

CLIENT = """
import sys, urllib.parse
import botocore.session
from botocore.config import Config
from capline import Limiter, LimitExceeded, Policy
from capline.middleware.botocore import limit_client

url, store, calls, subject = sys.argv[1:]
limiter = Limiter(store, [Policy("s3", ["5/h"])])
client = botocore.session.get_session().create_client(
    "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="nobody", aws_secret_access_key="test",
    config=Config(s3={"addressing_style": "path"}, retries={"mode": "standard", "max_attempts": 2}),
)
limit_client(client, limiter, "s3", subject=subject or None, max_wait=5)
for call in calls.split():
    try:
        if call == "put":
            client.put_object(Bucket="ours", Key="k", Body=b"v")
        elif call == "sign":
            client.generate_presigned_url("get_object", Params={"Bucket": "ours", "Key": "k"})
        else:
            assert client.get_object(Bucket="ours", Key="k")["Body"].read() == b"v"
    except LimitExceeded as refused:
        print("refused", refused.decision.limit)
    except Exception as error:
        print("failed", type(error).__name__)
hits = limiter.explain("s3", subject or "127.0.0.1").hits
print("used", sum(hit.units for hit in hits), hits[-1].stamp_us > limiter.now_us())
"""


def client(url: str, tmp_path: Path, calls: str, subject: str = "") -> list[str]:
    paths = [str(PROGRAM.parents[3] / "src"), *site.getsitepackages()]
    done = subprocess.run(
        [str(PROGRAM), "-W", "ignore", "-c", CLIENT, url, f"lmdb://{tmp_path}/store", calls, subject],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_each_request_takes_a_slot_and_one_without_a_slot_is_not_sent(s3: S3, tmp_path: Path) -> None:
    s3.make_bucket("ours")
    url = s3.environment["AWS_ENDPOINT_URL"]
    assert client(url, tmp_path, "put sign get get get get get") == ["refused 5/hour", "used 5 False"]


@pytest.mark.deep
def test_each_sending_of_a_request_takes_a_slot_of_its_own(tmp_path: Path) -> None:
    with Provider() as provider:
        provider.answers = [(503, {"Content-Length": "2"})] * 9
        assert client(provider.url, tmp_path, "get", "us") == ["failed ClientError", f"used {len(provider.seen)} False"]
        assert len(provider.seen) > 1


@pytest.mark.deep
def test_retry_after_holds_back_every_host(tmp_path: Path) -> None:
    with Provider() as provider:
        provider.answers = [(503, {"Retry-After": "1000"})]
        assert client(provider.url, tmp_path, "get") == ["refused 5/hour", "used 2 True"]
        assert client(provider.url, tmp_path, "get") == ["refused 5/hour", "used 2 True"]
        assert len(provider.seen) == 1


def test_wrong_settings_are_told_at_once() -> None:
    class Client:
        class meta:  # noqa: N801 - as botocore has it
            endpoint_url = "http://s3.example"
            events: Any = None

    with Limiter("memory://", [Policy("s3", ["5/h"])]) as limiter:
        with pytest.raises(InvalidTypeError, match=r"a client of botocore has meta.events, unlike 's3'"):
            limit_client("s3", limiter, "s3")
        with pytest.raises(CaplineError, match="slack is a number of seconds"):
            limit_client(Client(), limiter, "s3", slack=-1)
