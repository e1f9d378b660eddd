from django.conf import settings
from django.core import asgi, wsgi
from django.http import HttpResponse
from django.urls import path

from capline import Limiter, Policy
from capline.web import Rule, key
from capline.web.django import limited

limiter = Limiter("lmdb://.capline/store", [Policy("ip", ["20/10s", "200/hour"]), Policy("search", ["3/minute"])])
CAPLINE = {"limiter": limiter, "rules": [Rule("ip", key.ip())]}  # in settings.py, beside MIDDLEWARE
settings.configure(ROOT_URLCONF=__name__, CAPLINE=CAPLINE, MIDDLEWARE=["capline.web.django.CaplineMiddleware"])
by_wsgi, by_asgi = wsgi.get_wsgi_application(), asgi.get_asgi_application()


@limited("search", key="header:X-User")
def search(_: object) -> HttpResponse:
    return HttpResponse(b"nothing found")


urlpatterns = [path("search", search)]
