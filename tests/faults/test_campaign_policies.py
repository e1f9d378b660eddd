"""kill -9 of campaigns under several policies: at the receiver each message once, and in all logs or in none."""

import random
from pathlib import Path

import pytest
from tests.faults.test_campaign_kill import kill_when, ledger_trigger, requests_trigger, start
from tests.kit.campaign import Receiver, Site, answer, receiver
from tests.profiles import size

POLICIES = ("global", "promo-tag", "summer")
TEXT = """\
namespace: marketing
policies:
  global: {limits: [2/day, 9/week]}
  promo-tag: {limits: [1/day], channels: {push: [1/hour]}}
  summer: {limits: [3/30 days]}
"""
SUBJECTS, USED = 600, 100


def seeded(site: Site) -> None:
    """Some have nothing left of one of the policies."""
    (site.path / "policies.yaml").write_text(TEXT)
    site.audience(range(SUBJECTS))
    with site.limiter() as limiter:
        for number, policy in enumerate(POLICIES):
            ids = list(range(number * USED, (number + 1) * USED))
            for _ in range(number + 1 if number != 1 else 1):
                limiter.decide_many(policy, ids)
        limiter.decide_many("global", list(range(USED)))


def written(site: Site, far: Receiver) -> None:
    site.write(
        policy=f"[{', '.join(POLICIES)}]",
        channel="push",
        segments=None,
        batch="20",
        sender=f"{{webhook: {{url: '{far.url}', concurrency: 4}}}}",
    )


@pytest.mark.parametrize("seed", range(size(1, 4)))
def test_killed_anywhere_each_message_counts_in_all_logs_or_in_none(tmp_path: Path, seed: int) -> None:
    chance, site = random.Random(seed), Site(tmp_path)
    seeded(site)
    with site.limiter() as limiter:
        before = {
            policy: [len(limiter.explain(policy, subject).hits) for subject in range(SUBJECTS)] for policy in POLICIES
        }
    gone = set(range(350, SUBJECTS, 50))
    with receiver(lambda subject, _tries: 410 if subject in gone else 200) as far:
        written(site, far)
        kills = 0
        while kills < 3:
            trigger = (
                ledger_trigger(site, chance.randint(1, 6))
                if chance.random() < 0.6
                else requests_trigger(far, chance.randint(1, 30))
            )
            if not kill_when(start(site), trigger, chance.uniform(0, 0.002)):
                break  # it was over
            kills += 1
        assert kills
        total = answer("campaign", "run", site.file)["total"]
        delivered = far.delivered()
        assert len(far.taken) == len(delivered), "nobody twice"
    assert {*delivered} == {*range(3 * USED, SUBJECTS)} - gone
    counts = total["sent"], total["failed"] + total["not_known"], total["refused"]
    assert counts == (len(delivered), len(gone), 3 * USED)
    assert total["refused_by"] == {"global: 2/day": USED, "promo-tag: 1/day": USED, "summer: 3/30 days": USED}
    with site.limiter() as limiter:
        kept = {
            subject: [
                sum(hit.units for hit in limiter.explain(policy, subject).hits) - before[policy][subject]
                for policy in POLICIES
            ]
            for subject in range(SUBJECTS)
        }
    assert all(more in ([0] * 3, [1] * 3) for more in kept.values()), "in all logs or in none"
    counted = {subject for subject, more in kept.items() if more[0]}
    assert {*delivered} <= counted <= {*delivered} | gone
    assert len(counted) == len(delivered) + total["not_known"]
