"""Limited tasks in real Celery workers, which are stopped in between; the broker is a folder."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.program import worker_did

from capline import Limiter, Policy

APP = """
import os, pathlib
from celery import Celery
from capline import Limiter, Policy
from capline.middleware.celery import limited_task

root = pathlib.Path(__file__).parent
app = Celery("payments", broker="filesystem://", broker_transport_options={
    "data_folder_in": str(root / "queue"), "data_folder_out": str(root / "queue"),
    "control_folder": str(root / "control")})
made = []

def limiter():
    if not made:
        made.append(Limiter(f"lmdb://{root}/store", policies=[Policy("psp", ["3/300ms", "1000/h"])]))
    return made[0]

@app.task(bind=True, max_retries=2)
@limited_task(limiter, "psp", subject=lambda number: "adyen", early=0.1)
def pay(self, number):
    with open(root / "paid", "a") as paid:
        paid.write(f"{number} {self.request.retries}\\n")
    if number == 0 and self.request.retries == 0:
        raise self.retry(countdown=0)
"""
TASKS = 15


@pytest.mark.deep
def test_every_task_runs_once_in_its_slot_though_a_worker_is_stopped(tmp_path: Path) -> None:
    for folder in ("queue", "control"):
        (tmp_path / folder).mkdir()
    (tmp_path / "payments.py").write_text(APP)
    send = f"import payments\nfor number in range({TASKS}): payments.pay.delay(number)"
    subprocess.run([sys.executable, "-c", send], cwd=tmp_path, check=True, timeout=60)

    def paid() -> list[str]:
        file = tmp_path / "paid"
        return file.read_text().splitlines() if file.exists() else []

    def work(until: Callable[[], bool]) -> None:
        words = ["-m", "celery", "-A", "payments", "worker", "-c", "2", "-l", "INFO", "--without-gossip"]
        with (tmp_path / "log").open("ab") as log:
            worker = subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdout=log, stderr=log)
        try:
            worker_did(until, worker, tmp_path / "log")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            worker.kill()
            worker.wait()

    work(lambda: len(paid()) >= 2)
    work(lambda: len(paid()) >= TASKS + 1)
    numbers = sorted(int(line.split()[0]) for line in paid())
    assert numbers == sorted([0, *range(TASKS)])  # the task's own retry is one more run, in a slot of its own
    assert {line for line in paid() if line.startswith("0 ")} == {"0 0", "0 1"}
    with Limiter(f"lmdb://{tmp_path}/store", policies=[Policy("psp", ["3/300ms", "1000/h"])]) as limiter:
        assert sum(hit.units for hit in limiter.explain("psp", "adyen").hits) == TASKS + 1
