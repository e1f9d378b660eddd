import os

from scrapy import Spider
from scrapy.http import Response

from capline import Limit, Limiter, Policy


class Pages(Spider):
    name = "pages"
    start_urls = [f"{os.environ['PROVIDER_URL']}/{page}" for page in range(25)]
    custom_settings = {
        "DOWNLOADER_MIDDLEWARES": {"capline.middleware.scrapy.LimitedMiddleware": 950},
        "CAPLINE_LIMITER": Limiter("lmdb://.capline/store", [Policy("psp", Limit.margin("20/s", jitter="30ms"))]),
        "CAPLINE_POLICY": "psp",
    }

    def parse(self, response: Response) -> None: ...
