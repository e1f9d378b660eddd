"""The gateways of docs/howto/gateways.md, each with the very file that the page shows, before `capline serve`."""

import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml
from tests.kit.gateway import DOCS, Gateway, free_port, program
from tests.kit.http import Provider
from tests.kit.server import soon
from tests.kit.serving import WITHIN_S, Serving

POLICIES = "policies: {api: {limits: [3/hour]}}"
PAGE = {"Host": "shop.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
"""What a gateway passes on of a browser's request."""


def policies(folder: Path) -> None:
    (folder / "policies.yaml").write_text(POLICIES, encoding="utf-8")


def test_nginx_lets_pass_what_is_allowed_and_answers_429(tmp_path: Path) -> None:
    policies(tmp_path)
    command = [program("nginx"), "-p", str(tmp_path), "-c", "nginx.conf", "-e", "stderr"]
    with Provider() as provider, Serving(tmp_path, "--store", "memory://") as service:
        addresses = {"127.0.0.1:8080": service.url, "127.0.0.1:9000": provider.url}
        with Gateway(tmp_path, "nginx.conf", command, addresses) as nginx:
            answers = [nginx.get("/a", X_Api_Key="k&cost=3", X_Capline_Cost="3", **PAGE) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            assert answers[0].headers["RateLimit"].startswith('"api-hour";r=2')
            assert answers[3].headers["RateLimit"].startswith('"api-hour";r=0')
            assert int(answers[3].headers["Retry-After"]) > 3000
            assert nginx.get("/a", X_Api_Key="other").status_code == nginx.get("/a").status_code == 200
            assert len(provider.seen) == 5
            assert service.stop() == 0
            outage = nginx.get("/a")
            assert (outage.status_code, outage.headers["Retry-After"]) == (503, "1")
        assert len(provider.seen) == 5


BALANCER = """\
daemon off;
pid nginx.pid;
error_log stderr warn;
events {}

http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;

    upstream capline {
        server 127.0.0.1:8080;
        keepalive 16;
        keepalive_timeout 4s;  # the service ends a connection that was idle for 5 s
    }

    server {
        listen 127.0.0.1:8000;

        location / {
            proxy_pass http://capline;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host 127.0.0.1;
        }
    }
}
"""


@pytest.mark.deep
def test_an_instance_goes_and_another_comes_without_an_error_of_nginx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPLINE_DRAIN", "3600")
    policies(tmp_path)
    command = [program("nginx"), "-p", str(tmp_path), "-c", "balancer.conf", "-e", "stderr"]

    def load(times: int) -> None:
        """Of four callers at once, whose connections end with each answer, so that nginx may give up old workers."""
        with ThreadPoolExecutor(4) as callers:
            asked = [callers.submit(httpx.post, f"{nginx.url}/v1/decide", **form) for _ in range(times)]
            assert {answer.result().status_code for answer in asked} == {200}

    form: Any = {"json": {"policy": "api", "subject": "u"}, "headers": {"Connection": "close"}, "trust_env": False}
    with Serving(tmp_path, "--store", "memory://") as goes, Serving(tmp_path, "--store", "memory://") as comes:
        said = {"127.0.0.1:8080": goes.url}
        with Gateway(tmp_path, "balancer.conf", command, said, text=BALANCER) as nginx:
            load(20)
            goes.process.send_signal(signal.SIGTERM)
            load(20)
            assert soon(lambda: goes.client.get("/readyz").status_code == 503, WITHIN_S)
            load(20)
            text = (tmp_path / "balancer.conf").read_text(encoding="utf-8")
            old, new = (urlsplit(service.url).netloc for service in (goes, comes))
            (tmp_path / "balancer.conf").write_text(text.replace(old, new), encoding="utf-8")
            nginx.tell(signal.SIGHUP)

            def is_taken_over() -> bool:
                load(1)
                told = httpx.get(f"{comes.admin}/metrics", trust_env=False, timeout=WITHIN_S).text
                return 'verb="decide"' in told

            assert soon(is_taken_over, WITHIN_S)
            assert goes.stop() == 0
            load(20)


@pytest.mark.deep
def test_caddy_passes_the_refusal_on(tmp_path: Path) -> None:
    policies(tmp_path)
    command = [program("caddy"), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]
    with Provider() as provider, Serving(tmp_path, "--store", "memory://") as service:
        addresses = {"127.0.0.1:8080": service.url, "127.0.0.1:9000": provider.url}
        with Gateway(tmp_path, "Caddyfile", command, addresses, ":8000 {") as caddy:
            answers = [caddy.get("/a", X_Capline_Subject="mine", X_Capline_Cost="3", **PAGE) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            assert answers[3].headers["RateLimit"].startswith('"api-hour";r=0')
            assert int(answers[3].headers["Retry-After"]) > 3000
            assert len(provider.seen) == 3
            assert service.stop() == 0
            assert caddy.get("/a").status_code == 503
        assert len(provider.seen) == 3


@pytest.mark.deep
def test_haproxy_asks_the_agent(tmp_path: Path) -> None:
    policies(tmp_path)
    shutil.copy(DOCS / "spoe.cfg", tmp_path)
    port = free_port()
    words = ["--store", "memory://", "--spoe", f"127.0.0.1:{port}"]
    command = [program("haproxy"), "-db", "-f", "haproxy.cfg"]
    with Provider() as provider, Serving(tmp_path, *words) as service:
        addresses = {"127.0.0.1:8083": f"127.0.0.1:{port}", "127.0.0.1:9000": provider.url}
        addresses |= {"127.0.0.1:8080": service.url, "port 8080": f"port {urlsplit(service.url).port}"}
        with Gateway(tmp_path, "haproxy.cfg", command, addresses) as haproxy:
            answers = [haproxy.get("/a", **PAGE) for _ in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
            assert answers[0].headers["RateLimit"].startswith('"api-hour";r=2')
            assert answers[3].headers["RateLimit"].startswith('"api-hour";r=0')
            assert int(answers[3].headers["Retry-After"]) > 3000
            assert len(provider.seen) == 3
            assert service.stop() == 0
            outage = haproxy.get("/a")
            assert (outage.status_code, outage.headers["Retry-After"]) == (503, "1")
        assert len(provider.seen) == 3


TRAEFIK = Path(__file__).parents[2] / "build" / "envoy" / "bin" / "traefik"
ENTRY = {
    "entryPoints": {"web": {"address": "127.0.0.1:8000"}},
    "providers": {"file": {"filename": "traefik-dynamic.yaml", "watch": False}},
    "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
}


@pytest.mark.deep
def test_traefik_passes_the_refusal_on(tmp_path: Path) -> None:
    if not TRAEFIK.exists():
        pytest.skip("build/envoy is missing: bash tools/setup.sh test makes it")
    policies(tmp_path)
    spoofed = {
        "X_Capline_Subject": "mine",
        "X_Capline_Cost": "3",
        "X_Real_Ip": "192.0.2.9",
        "X_Forwarded_For": "192.0.2.9",
    }
    with Provider() as provider, Serving(tmp_path, "--store", "memory://") as service:
        text = (DOCS / "traefik-dynamic.yaml").read_text(encoding="utf-8")
        for shown, real in {"127.0.0.1:8080": service.url, "127.0.0.1:9000": provider.url}.items():
            assert shown in text
            text = text.replace(shown, urlsplit(real).netloc)
        (tmp_path / "traefik-dynamic.yaml").write_text(text, encoding="utf-8")
        command = [str(TRAEFIK), "--configfile=entry.yaml"]
        with Gateway(tmp_path, "entry.yaml", command, {}, text=yaml.safe_dump(ENTRY)) as traefik:
            assert soon(lambda: traefik.get("/a").status_code == 200, WITHIN_S), "its file is read after it listens"
            answers = [traefik.get("/a", **spoofed, **PAGE) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert answers[2].headers["RateLimit"].startswith('"api-hour";r=0')
            assert int(answers[2].headers["Retry-After"]) > 3000
            assert len(provider.seen) == 3
            asked = {"policy": "api", "subject": "127.0.0.1"}
            assert service.ask("/v1/peek", **asked).json()["allowed"] is False
            assert service.stop() == 0
            assert traefik.get("/a").status_code == 500
        assert len(provider.seen) == 3
