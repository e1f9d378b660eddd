from wsgiref.types import StartResponse, WSGIEnvironment

from capline import Limiter, Policy
from capline.web import Rule, key
from capline.web.wsgi import CaplineMiddleware


def pages(
    environ: WSGIEnvironment, start_response: StartResponse
) -> list[bytes]:  # yours: what Pyramid, Bottle or Falcon made
    found = environ["PATH_INFO"] == "/search"
    start_response("200 OK" if found else "404 Not Found", [("Content-Type", "text/plain")])
    return [b"nothing found"]


limiter = Limiter("lmdb://.capline/store", [Policy("ip", ["20/10s", "200/hour"]), Policy("search", ["3/minute"])])
rules = [Rule("ip", key.ip()), Rule("search", key.header("X-User"), refund_if=range(500, 600))]
app = CaplineMiddleware(pages, limiter, rules, exempt=["/healthz"])
