"""The URL of a webhook: what is wrong is said, and the URL, which may hold a token, is not repeated."""

from pathlib import Path

import pytest

from capline.campaign.file import loads_campaign
from capline.campaign.senders.http_post import Endpoint
from capline.model.errors import CampaignError

GOOD = "campaign: c\npolicies: p.yaml\npolicy: p\naudience: {csv: u.csv}\nsender: {webhook: {url: %r}}\n"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://h:99999999/?token=t0k3n", "its port is 99999999, and a port is 1 to 65535"),
        ("http://t0k3n@h:0/", "its port is 0"),
        ("ftp://t0k3n@h/", "it is not a URL like https://"),
        ("https://?token=t0k3n", "it is not a URL like https://"),
        ("http://h:x/?token=t0k3n", "it is not a URL like https://"),
    ],
)
def test_a_url_that_cannot_be_called(url: str, said: str) -> None:
    with pytest.raises(CampaignError) as caught:
        loads_campaign(GOOD % url, Path("c.yaml"))
    assert said in str(caught.value)
    assert "t0k3n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "host", "port", "name", "target"),
    [
        ("https://shop.example", "shop.example", 443, "shop.example", "/"),
        ("http://Shop.example:81/a b?to=é&x=%20#part", "shop.example", 81, "shop.example:81", "/a%20b?to=%C3%A9&x=%20"),
        ("http://[::1]:80/push", "::1", 80, "[::1]:80", "/push"),
        ("https://bücher.example/?q", "xn--bcher-kva.example", 443, "xn--bcher-kva.example", "/?q"),
        ("http://h/a\r\nHost: other", "h", 80, "h", "/aHost:%20other"),
    ],
)
def test_where_a_url_leads(url: str, host: str, port: int, name: str, target: str) -> None:
    assert Endpoint.of(url)[1:] == (host, port, name, target, "")
