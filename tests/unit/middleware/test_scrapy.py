"""The downloader middleware, in a real crawl against a real server, and its settings."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings
from tests.kit.http import Provider

from capline import Limiter, Policy
from capline.middleware.scrapy import LimitedMiddleware
from capline.model.errors import CaplineError

CRAWL = """
import sys
import scrapy
from scrapy.crawler import CrawlerProcess
from capline import Limiter, Policy

url, store, max_wait = sys.argv[1], sys.argv[2], float(sys.argv[3])
limiter = Limiter(store, policies=[Policy("site", ["2/300ms", "6/h"])])

class Spider(scrapy.Spider):
    name = "pages"
    custom_settings = {
        "DOWNLOADER_MIDDLEWARES": {"capline.middleware.scrapy.LimitedMiddleware": 950},
        "CAPLINE_LIMITER": limiter, "CAPLINE_POLICY": "site", "CAPLINE_MAX_WAIT": max_wait,
        "LOG_LEVEL": "ERROR", "TELNETCONSOLE_ENABLED": False, "ROBOTSTXT_OBEY": False, "DOWNLOAD_DELAY": 0,
    }
    async def start(self):
        for number in range(int(sys.argv[4])):
            yield scrapy.Request(f"{url}/{number}", callback=self.parse)
    def parse(self, response):
        print("got", response.url.rpartition("/")[2], flush=True)

process = CrawlerProcess()
process.crawl(Spider)
process.start()
print("used", sum(hit.units for hit in limiter.explain("site", "127.0.0.1").hits))
"""


def crawl(store: str, provider: Provider, max_wait: float, pages: int) -> str:
    words = [sys.executable, "-W", "ignore", "-c", CRAWL, provider.url, store, str(max_wait), str(pages)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_each_page_takes_a_slot_and_one_without_a_slot_is_dropped(tmp_path: Path) -> None:
    with Provider() as provider:
        said = crawl(f"lmdb://{tmp_path}/store", provider, 60, 8)
        assert len(provider.seen) == said.count("got") == 6
        assert "used 6" in said


@pytest.mark.deep
def test_an_answer_of_429_is_asked_again_in_a_later_slot(tmp_path: Path) -> None:
    with Provider() as provider:
        provider.answers = [(429, {"Retry-After": "1"})]
        said = crawl(f"lmdb://{tmp_path}/store", provider, 60, 2)
        assert len(provider.seen) == 3
        assert said.count("got") == 2
        assert "used 4" in said  # three requests, and the unit that held every host back


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "CAPLINE_LIMITER is a capline.Limiter"),
        ({"CAPLINE_LIMITER": "tests.unit.middleware.test_scrapy.CRAWL"}, "CAPLINE_LIMITER is a capline.Limiter"),
        ({"CAPLINE_LIMITER": "made", "CAPLINE_POLICY": "other"}, r"CAPLINE_POLICY is a policy of the limiter \(site\)"),
        ({"CAPLINE_LIMITER": "made", "CAPLINE_POLICY": "site", "CAPLINE_MAX_WAIT": "-1"}, "max_wait"),
        ({"CAPLINE_LIMITER": "made", "CAPLINE_POLICY": "site", "CAPLINE_SLACK": "-1"}, "slack is a number of seconds"),
    ],
)
def test_wrong_settings_are_refused_at_the_start(settings: dict[str, Any], says: str) -> None:
    with Limiter("memory://", policies=[Policy("site", ["1/h"])]) as limiter:

        class Crawler:
            pass

        crawler: Any = Crawler()
        crawler.settings = Settings({k: limiter if v == "made" else v for k, v in settings.items()})
        with pytest.raises(CaplineError, match=says):
            LimitedMiddleware.from_crawler(crawler)
