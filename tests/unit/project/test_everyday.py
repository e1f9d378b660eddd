"""`make test` has a test of every promise, verb and fault that the docs name: these tables say which.

A promise, verb or fault that is new in the docs or the limiter fails here until it has its line. A test that is marked
`deep` does not count. Of stores `test_combinations` says the same.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from capline import AsyncLimiter, Limiter

ROOT = Path(__file__).parents[3]
TOLD = "".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("explanation/reliability.md", "reference/failures.md")
)
LAW = "src/capline/testing/law"
FAULT = "tests/faults/test"

PROMISES = {
    "0": ("tests/proof/test_concurrency.py::test_so_do_those_who_take_slots_between_those_who_ask",),
    "1": ("tests/proof/test_concurrency.py::test_callers_at_the_same_time_find_every_promise_kept",),
    "2": (f"{LAW}/limits/rule.py::test_refused_one_microsecond_before_retry_after_and_allowed_at_it",),
    "3": (f"{LAW}/verbs/hits.py::test_peek_and_refusals_change_nothing",),
    "4": (f"{LAW}/verbs/hits.py::test_the_same_id_is_one_consumption",),
    "5": (f"{LAW}/verbs/hits.py::test_a_refund_gives_back_exactly_that_hit_once",),
    "6": (
        f"{LAW}/bulk/many.py::test_a_batch_equals_the_same_attempts_one_by_one",
        f"{LAW}/bulk/many.py::test_columns_equal_single_decisions",
    ),
    "7": (
        "tests/proof/test_crashes.py::test_killed_writers_lose_nothing_that_was_acknowledged",
        "tests/proof/test_crashes.py::test_power_that_is_lost_takes_nothing_that_was_acknowledged_with_full_durability",
    ),
    "8": (
        "tests/proof/test_simulator.py::test_the_store_keeps_every_promise_under_faults_of_every_kind",
        "tests/faults/test_redis_replicas.py::test_an_allowed_hit_is_answered_when_the_replica_has_it",
    ),
    "9": ("tests/faults/test_redis_deadline.py::test_every_verb_ends_by_its_deadline",),
    "10": (
        f"{FAULT}_policies_while_serving.py::test_a_broken_or_missing_policy_file_changes_nothing_while_decisions_go_on",
        "tests/unit/segment/test_snapshot.py::test_a_reader_that_is_overtaken_gets_the_new_one",
    ),
    "11": ("tests/faults/test_redis_expiry.py::test_every_key_has_an_end_and_comes_to_it",),
    "12": (
        "tests/faults/test_campaign_crash.py::test_killed_at_any_one_step_it_ends_the_same",
        "tests/faults/test_campaign_kill.py::test_killed_between_the_store_and_the_ledger_nobody_is_consumed_twice",
    ),
}

FAULTS = {
    "server down at start": "faults/test_redis_deadline"
    "::test_a_server_that_is_not_there_yet_is_waited_for_till_the_deadline",
    "killed in the middle of a batch": "faults/test_redis_half_open"
    "::test_a_batch_whose_server_is_killed_in_its_middle_is_reported_row_by_row_and_a_receipt_completes_it",
    "SIGSTOP": "faults/test_redis_deadline::test_a_server_that_hangs_is_unknown_by_the_deadline",
    "connection reset": "faults/test_redis_unknown"
    "::test_rows_of_a_batch_get_their_own_answers_when_a_connection_is_lost_between_its_parts",
    "half-open connection": "faults/test_redis_half_open"
    "::test_connections_that_are_half_open_cost_one_deadline_each_and_record_nothing",
    "reply lost": "faults/test_redis_unknown::test_a_lost_reply_is_an_unknown_answer_and_the_hit_is_there",
    # The simulator: a primary that has not replicated goes on answering, then its replica takes over.
    "partition": "proof/test_simulator::test_the_store_keeps_every_promise_under_faults_of_every_kind",
    "planned failover": "faults/test_redis_scripts::test_after_a_planned_failover_of_a_cluster_all_goes_on",
    "failover by `kill -9`": "proof/test_simulator::test_the_store_keeps_every_promise_under_faults_of_every_kind",
    "failover by sentinels": "proof/test_simulator::test_every_kind_of_scenario_has_its_turn",
    "resharding": "faults/test_redis_redirects"
    "::test_a_slot_that_moves_under_load_loses_nothing_and_counts_nothing_twice",
    "`SCRIPT FLUSH`": "faults/test_redis_scripts::test_a_batch_is_whole_when_scripts_are_flushed_in_its_middle",
    "OOM": "faults/test_redis_refusals::test_a_full_memory_records_nothing_and_looks_go_on",
    "LOADING": "faults/test_redis_refusals::test_a_loading_server_records_nothing_and_the_patient_wait",
    "maxclients": "faults/test_redis_refusals::test_a_server_without_a_free_connection_records_nothing",
    "eviction policy": "faults/test_redis_start::test_each_setting_is_warned_of_once",
    "a replica that does not": "faults/test_redis_replicas"
    "::test_without_the_replica_an_allowed_hit_is_unknown_and_a_refusal_a_refusal",
    "the caller's clock": "faults/test_clocks::test_whose_clock_is_wrong_makes_no_difference_where_the_server_s_counts",
    "the server's clock stepping back": "faults/test_clocks"
    "::test_a_server_s_clock_that_steps_back_only_makes_callers_wait",
    "the server's clock stepping ahead": "faults/test_clocks"
    "::test_a_server_s_clock_that_steps_back_only_makes_callers_wait",
    "the machine's clock": "faults/test_clocks::test_a_machine_s_clock_that_steps_back_only_makes_callers_wait",
    "a clock in another unit": "property/store/redis/test_keys"
    "::test_a_clock_that_no_script_can_count_by_is_an_error_and_not_a_script_without_end",
    "a task cancelled": "faults/test_redis_fork_and_cancel"
    "::test_a_task_cancelled_at_any_point_leaves_no_reply_and_no_connection_behind",
    "a fork": "faults/test_redis_fork_and_cancel"
    "::test_after_a_fork_parent_and_children_share_the_quota_and_no_connection",
    "`kill -9` during a campaign": "faults/test_campaign_crash::test_killed_at_any_one_step_it_ends_the_same",
    "disk full": "faults/test_lmdb_store::test_a_full_disk_is_one_clear_error_and_the_store_goes_on_when_there_is_room",
    "a damaged lmdb file": "faults/test_lmdb_store::test_a_file_that_was_cut_off_is_refused_before_it_is_mapped",
    "a damaged log in it": "faults/test_lmdb_store::test_a_damaged_value_is_an_error_and_never_an_admission",
    "a damaged value on a server": "property/store/redis/test_damage"
    "::test_a_damaged_value_is_an_error_of_its_subject_or_a_decision_and_nothing_else",
    "a torn snapshot": "unit/segment/test_snapshot::test_every_truncation_and_every_addition_is_found",
    "policies broken": "faults/test_policies_while_serving"
    "::test_a_broken_or_missing_policy_file_changes_nothing_while_decisions_go_on",
    "a worker dies": "unit/service/test_reload"
    "::test_what_was_in_force_is_kept_for_those_that_start_while_the_file_is_broken",
    "SIGTERM behind a balancer": "e2e/test_serve::test_told_to_end_it_is_not_ready_and_ends_connections_as_it_answers",
    "poison": "faults/test_poison::test_in_a_batch_poison_fails_alone",
    "a user without rights": "faults/test_redis_rights"
    "::test_a_wrong_password_is_reported_at_once_and_nobody_s_password_is_shown",
}
"""By how a row of the fault matrix begins, the test below tests/."""

VERBS = {
    "acquire_all": "unit/limiter/test_joint_slots.py",
    "beside": "unit/limiter/test_beside.py",
    "check_policy": "unit/limiter/test_beside.py",
    "log_of": "unit/limiter/test_beside.py",
    "from_config": "unit/limiter/test_overrides.py",
    "from_file": "unit/limiter/test_async.py",
    "reload": "unit/limiter/test_async.py",
    "segment_of": "unit/limiter/test_segments.py",
    "servers": "unit/observe/test_servers.py",
    "stats": "unit/observe/test_store.py",
    "try_write": "faults/test_full_store.py",
}
"""Verbs that the conformance suite does not call, as they are about the limiter and not its store."""


@cache
def named_tests(path: Path) -> dict[str, bool]:
    """The tests of a file, and whether each is in the fast part. Those of a table of examples are."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    whole = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    late = any(re.search(r"\bmark\.deep\b", value) for value in whole if value.startswith(("pytest.mark", "[pytest")))
    return dict.fromkeys(re.findall(r"^ +(test_\w+): ", text, re.MULTILINE), True) | {
        node.name: not late and not any(ast.unparse(mark) == "pytest.mark.deep" for mark in node.decorator_list)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    }


def is_in_the_fast_part(path: str, name: str) -> bool:
    return named_tests(ROOT / path).get(name, False)


def rows(heading: str) -> list[str]:
    """The first cell of each row of the first table under this heading."""
    table = TOLD.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line.strip("| ").split(" | ")[0] for line in table.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("promise", PROMISES)
def test_every_promise_has_a_test_all_day(promise: str) -> None:
    for test in PROMISES[promise]:
        assert is_in_the_fast_part(*test.split("::")), test


def test_no_promise_is_left_out() -> None:
    told = {number for cell in rows("The promises") for number in re.findall(r"\d+", cell)}
    assert told == PROMISES.keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_a_test_all_day(fault: str) -> None:
    path, name = FAULTS[fault].split("::")
    assert is_in_the_fast_part(f"tests/{path}.py", name), FAULTS[fault]


def test_no_fault_is_left_out() -> None:
    told = [[fault for fault in FAULTS if row.startswith(fault)] for row in rows("Fault matrix")]
    assert [found[0] if len(found) == 1 else found for found in told] == [*FAULTS]


@pytest.mark.parametrize("limiter", [Limiter, AsyncLimiter])
def test_every_verb_has_a_test_all_day(limiter: type) -> None:
    verbs = {name for name in dir(limiter) if not name.startswith("_") and callable(getattr(limiter, name))}
    called = calls((ROOT / LAW).rglob("*.py"))
    assert verbs - called - {"aclose", "flush"} == VERBS.keys()
    for verb, path in VERBS.items():
        assert verb in calls([ROOT / "tests" / path]), f"{path} does not call {verb}"
        assert any(named_tests(ROOT / "tests" / path).values())


def calls(paths: Iterable[Path]) -> set[str]:
    """The methods that are called in these files, and the verbs in their tables of examples."""
    found: set[str] = set()
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for table in re.findall(r'examples\("""(.*?)"""', text, re.DOTALL):
            found.update(re.findall(r"(?:^ +|[;:=] )(\w+)", table, re.MULTILINE))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found.add(node.func.attr)
    return found
