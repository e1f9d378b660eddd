"""What changed is taken over whole or not at all, and both are told."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from capline import AsyncLimiter
from capline.model.errors import CaplineError, PolicyError
from capline.policy.watch import PolicyWatch
from capline.service.access.tokens import TokenFile
from capline.service.envoy.files import Files
from capline.service.metrics.registry import Metrics
from capline.service.run import reload
from capline.service.run.reload import Followed, follow
from capline.service.run.workers import KEPT
from capline.service.settings.last_good import LastGood, last_good_tls
from capline.service.settings.tls import contents, renewed, tls_context
from capline.service.settings.values import Tls


async def until(truth: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not truth():  # noqa: ASYNC110 - what is looked at sets no event
            await asyncio.sleep(0.005)


def test_a_broken_change_leaves_the_last_good_one_and_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reload, "EVERY_S", 0.005)
    caplog.set_level(logging.INFO, "capline.service")
    file = tmp_path / "policies.yaml"
    metrics = Metrics()
    looks = 0

    async def looked_again() -> None:
        before = looks
        await until(lambda: looks >= before + 3)

    def limits(limiter: AsyncLimiter) -> list[str]:
        return [str(limit) for limit in limiter.policies["promo"].limits]

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"what": "policies"})

    def put(text: str) -> None:
        """Whole: it may be looked at in between."""
        aside = tmp_path / "aside"
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)

    async def run() -> None:
        put("policies: {promo: {limits: [3/day]}}")
        async with AsyncLimiter.from_file(PolicyWatch(file, local=True), "memory://") as limiter:
            now = asyncio.Event()

            def look() -> bool:
                nonlocal looks
                looks += 1
                return limiter.reload()

            following = asyncio.create_task(follow([Followed("policies", look)], metrics, now))
            await until(lambda: value("capline_reload_refused") == 0)
            put("policies: {promo: {limits: [5/day, x]}}")
            now.set()
            await until(lambda: value("capline_reload_refused") == 1)
            assert limits(limiter) == ["3/day"]
            await looked_again()  # and it is said once
            put("policies: {promo: {limits: [7/day]}}")
            await until(lambda: value("capline_reload_refused") == 0)
            assert limits(limiter) == ["7/day"]
            await looked_again()  # that it is mended is said once too
            put("policies: {promo: {limits: [9/day], wait_replicas: 1}}")
            await until(lambda: value("capline_reload_refused") == 1)
            assert limits(limiter) == ["7/day"]
            file.unlink()
            await until(lambda: value("capline_reload_failures_total") == 3)
            assert limits(limiter) == ["7/day"]
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    asyncio.run(run())
    assert (value("capline_reload_failures_total"), value("capline_reloads_total")) == (3, 1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert "policies.yaml:1: " in said[0]
    assert said[1] == "policies reloaded"
    assert "policies.yaml: policy 'promo': wait_replicas needs a redis store" in said[2]
    assert "cannot be read" in said[3]


async def test_what_is_not_followed_any_more_raises_nothing() -> None:
    def refuse() -> bool:
        raise PolicyError("no")

    now = asyncio.Event()
    metrics = Metrics()
    now.set()
    following = asyncio.create_task(follow([Followed("policies", refuse)], metrics, now))
    await until(lambda: bool(metrics.registry.get_sample_value("capline_reload_refused", {"what": "policies"})))
    following.cancel()
    assert isinstance((await asyncio.gather(following, return_exceptions=True))[0], asyncio.CancelledError)


@pytest.mark.parametrize("name", ["tokens.json", "edge.yaml", "cert.pem", "key.pem", "ca.pem"])
def test_what_was_in_force_is_kept_for_those_that_start_while_the_file_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setenv(KEPT, str(kept))
    file, authority = tmp_path / name, trustme.CA()
    tls = Tls(*(str(tmp_path / each) for each in ("cert.pem", "key.pem", "ca.pem")))

    def write(common_name: str) -> None:
        issued = authority.issue_cert("127.0.0.1", common_name=common_name)
        issued.cert_chain_pems[0].write_to_path(tls.certificate)
        issued.private_key_pem.write_to_path(tls.key)
        authority.cert_pem.write_to_path(str(tls.client_ca))
        (tmp_path / "edge.yaml").write_text(f"domain: {common_name}\ndescriptors: []\n", encoding="utf-8")
        TokenFile(tmp_path / "tokens.json", create=True).create(common_name, ["read"])

    def opened() -> tuple[Callable[[], bool], Callable[[], object]]:
        """The reload, and what is in force."""
        if name == "tokens.json":
            tokens = LastGood("it", lambda start: TokenFile(file, start=start), lambda used: used.data)
            return tokens.keeping(tokens.used.reload), lambda: sorted(tokens.used.tokens)
        if name == "edge.yaml":
            envoy = LastGood(
                "it", lambda start: Files(file, start=start and start.read_bytes()), lambda used: used.data
            )
            return envoy.keeping(envoy.used.poll), lambda: sorted(envoy.used.current.domains)
        good = last_good_tls("it", tls)
        tls_context(good.used)
        subject = x509.load_pem_x509_certificate(Path(good.used.certificate).read_bytes()).subject
        return good.keeping(renewed(tls, lambda _context, _found: None, contents(good.used))), subject.rfc4514_string

    write("first")
    reload_it, _ = opened()
    write("second")
    assert reload_it()
    expected = opened()[1]()
    assert "second" in str(expected)
    file.unlink()
    for _ in range(2):
        _, in_force = opened()
        assert in_force() == expected
        assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}
    monkeypatch.delenv(KEPT)
    with pytest.raises(CaplineError, match=name):
        opened()
