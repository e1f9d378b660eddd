"""The policy file and its watch: what is read, what is refused and how, and what a change of the file does."""

import contextlib
import os
import pickle
import re
import threading
from pathlib import Path

import pytest
import yaml

from capline.forms import tree
from capline.model.clock import ManualClock
from capline.model.errors import CaplineError, InvalidTypeError, PolicyError
from capline.model.limit import Limit
from capline.model.policy import Policy
from capline.policy import watch as module
from capline.policy.file import LARGEST_FILE_BYTES, PolicyFile, PolicyFileError, load, loads
from capline.policy.watch import PolicyWatch

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "policies.md"

FULL = """\
namespace: marketing
policies:
  promo:
    limits: [1/day, 2/week]          # subjects in no segment
    by_segment:
      new:    [1/day, 3/week]
      active: [3/day, 10/week]
    channels: {push: [2/day], email: [1/day, 4/week]}
    log: shared
    layout: bucket
    population: 2_000_000
    wait_replicas: 2
    algorithm: sliding_log
    count_denied: false
  reminder:
    limits:
    - "3 per day"
"""


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def either_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with libyaml, and as on a machine without it."""
    monkeypatch.setattr(tree, "LOADER", getattr(yaml, request.param))


def refusal(text: str | bytes) -> PolicyFileError:
    with pytest.raises(PolicyFileError) as caught:
        loads(text)
    assert "\n" not in str(caught.value)
    assert caught.value.faults
    return caught.value


def policies(*lines: str) -> str:
    """A file whose first policy, `p`, has these lines, from line 3 on."""
    return "policies:\n  p:\n" + "".join(f"    {line}\n" for line in lines)


# ---- what is read --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("either_parser")
def test_the_full_form() -> None:
    assert loads(FULL) == PolicyFile(
        "marketing",
        (
            Policy(
                "promo",
                ["1/day", "2/week"],
                by_segment={"new": ["1/day", "3/week"], "active": ["3/day", "10/week"]},
                channels={"push": ["2/day"], "email": ["1/day", "4/week"]},
                layout="bucket",
                log="shared",
                population=2_000_000,
                wait_replicas=2,
            ),
            Policy("reminder", ["3/day"]),
        ),
    )


def test_the_namespace_is_capline_unless_said() -> None:
    assert loads("policies: {p: {limits: [1/day]}}").namespace == "capline"


def test_json_is_yaml_too() -> None:
    assert loads('{"policies": {"p": {"limits": ["1/day"]}}}').policies == (Policy("p", ["1/day"]),)


def test_bytes_may_begin_with_a_byte_order_mark_and_lines_end_as_on_windows() -> None:
    assert loads(FULL.replace("\n", "\r\n").encode("utf-8-sig")) == loads(FULL)


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize("name", ["on", "no", "Yes", "2024", "1e3", "0x10", "true", "007", "'null'", "1_0", "a.b-c_"])
def test_a_name_is_the_word_that_is_written_whatever_yaml_would_make_of_it(name: str) -> None:
    (policy,) = loads(policies("limits: [1/day]", f"by_segment: {{{name}: [2/day]}}")).policies
    assert list(policy.by_segment) == [name.strip("'")]


@pytest.mark.parametrize("word", ["false", "False", "no", "off"])
def test_count_denied_takes_every_word_for_false(word: str) -> None:
    assert loads(policies("limits: [1/day]", f"count_denied: {word}")).policies[0].count_denied is False


def test_an_algorithm_a_zone_and_refusals_that_count() -> None:
    [policy] = loads(
        policies(
            "limits: [100/day, 3/calendar-day, not between 22:00 and 08:00]",
            "algorithm: bucketed",
            "granularity: 1min",
            "count_denied: on",
            "zone: Asia/Singapore",
        )
    ).policies
    assert (policy.algorithm, policy.grain_us, policy.count_denied) == ("bucketed", 60_000_000, True)
    assert policy.zone == "Asia/Singapore"
    assert [str(limit) for limit in policy.limits] == ["100/day", "3/calendar-day", "not between 22:00 and 08:00"]


@pytest.mark.parametrize("quoted", ["'5'", '"5"'])
def test_a_whole_number_may_stand_in_quotes(quoted: str) -> None:
    (policy,) = loads(policies("limits: [1/day]", f"population: {quoted}")).policies
    assert policy.population == 5


def test_a_quota_of_zero_is_a_limit() -> None:
    assert loads(policies("limits: [0/day]")).policies[0].limits == (Limit.parse("0/day"),)


def test_channels_alone_are_a_policy() -> None:
    assert loads(policies("channels: {push: [1/day]}")).policies == (Policy("p", [], channels={"push": ["1/day"]}),)


def test_a_name_of_the_longest_length_is_taken_and_one_more_is_refused() -> None:
    assert loads(f"policies: {{{'n' * 64}: {{limits: [1/day]}}}}").policies[0].name == "n" * 64
    assert "policy name" in str(refusal(f"policies: {{{'n' * 65}: {{limits: [1/day]}}}}"))


def test_load_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(FULL)
    assert load(path) == load(str(path)) == loads(FULL)


# ---- what is refused: the message, word for word -------------------------------------------------------------------

REFUSED = {
    "": "policies.yaml: the file is empty; begin it with 'policies:'",
    "# nothing yet\n": "policies.yaml: the file is empty; begin it with 'policies:'",
    "- a": "policies.yaml:1: the file: expected a mapping, like policies: {promo: {limits: [3/day]}}, found a list",
    "namespace: x": "policies.yaml:1: no 'policies:' in the file; add it, with a policy below it",
    "policies:": "policies.yaml:1: policies: expected a mapping, like promo: {limits: [3/day]}, found nothing",
    "policies: {}": "policies.yaml:1: policies: there is none; define one, like promo: {limits: [3/day]}",
    "policies: [a]": "policies.yaml:1: policies: expected a mapping, like promo: {limits: [3/day]}, found a list",
    "policies:\n  p:\n": "policies.yaml:2: policy 'p': expected a mapping, like {limits: [3/day]}, found nothing",
    "namespace: a b\npolicies: {p: {limits: [1/day]}}": "policies.yaml:1: namespace name 'a b' is not 1 to 64 letters, "
    "digits, '_', '.' or '-' (not starting with '.' or '-')",
    "namespace:\npolicies: {p: {limits: [1/day]}}": "policies.yaml:1: namespace: expected a name, or leave it out, "
    "found nothing",
    "policies: {p: {limits: [1/day]}}\nextra: 1": "policies.yaml:2: unknown key 'extra'; use namespace or policies",
    "Policies: {p: {limits: [1/day]}}": "policies.yaml:1: unknown key 'Policies'; did you mean policies? "
    "(and 1 more: line 1)",
    policies("limit: [1/day]"): "policies.yaml:3: policy 'p': unknown key 'limit'; did you mean limits?",
    policies("limits: [1/day]", "By-Segments: {}"): "policies.yaml:4: policy 'p': unknown key 'By-Segments'; "
    "did you mean by_segment?",
    policies("limits: [1/day]", "zzz: 1"): "policies.yaml:4: policy 'p': unknown key 'zzz'; use limits, by_segment, "
    "channels, algorithm, count_denied, layout, log, wait_replicas, population, zone, reservations, shadow or "
    "granularity",
    policies(
        "layout: subject"
    ): "policies.yaml:2: policy 'p' has no limit at all; give it at least one, like ['3/day']",
    policies(
        "limits: [1/day]", "channels:", "  push: []"
    ): "policies.yaml:5: policy 'p', channel 'push' has no limit at all; give it one, like '3/day', or leave it out",
    policies("limits:", "layout: subject"): "policies.yaml:3: policy 'p': limits: expected a list of limits, like "
    "[3/day, 10/week], found nothing",
    policies("limits: 1/day"): "policies.yaml:3: policy 'p': limits: expected a list of limits, like [3/day, 10/week], "
    "found '1/day'; write [1/day]",
    policies("limits: {day: 1}"): "policies.yaml:3: policy 'p': limits: expected a list of limits, like "
    "[3/day, 10/week], found a mapping",
    policies("limits:[1/day]"): "policies.yaml:3: policy 'p': expected a mapping, like {limits: [3/day]}, found "
    "'limits:[1/day]'; is there a space after the colon?",
    policies("limits:", "- 1/day", "- 3/fortnight"): "policies.yaml:5: policy 'p': limit '3/fortnight': unknown unit "
    "'fortnight'; use us, ms, second, minute, hour, day or week (a month has no fixed length: write '30 days')",
    policies("limits: [1/day 2/week]"): "policies.yaml:3: policy 'p': limit '1/day 2/week': it is not "
    "'quota/window'; write it like '3/day', '100/minute', '5 per 10s', '3/calendar-day', 'gap 30 minutes' or "
    "'not between 22:00 and 08:00'",
    policies("limits: [1/0s]"): "policies.yaml:3: policy 'p': limit '1/0s': a window is 1 microsecond to 3,660 days, "
    "not 0 microseconds",
    policies("limits: [1/day, 3/24h]"): "policies.yaml:3: policy 'p': two limits over the same window; "
    "keep the smaller quota",
    policies("limits: [1/day]", "by_segment:", "  new: [1/day, 2/day]"): "policies.yaml:5: policy 'p', segment 'new': "
    "two limits over the same window; keep the smaller quota",
    policies("limits: [1/day]", "channels:", "  push: 7"): "policies.yaml:5: policy 'p', channel 'push': limits: "
    "expected a list of limits, like [3/day, 10/week], found '7'",
    policies(
        "limits: [1/day]", "channels:", "  'in app': [1/day]"
    ): "policies.yaml:5: policy 'p': channel name 'in app' "
    "is not 1 to 64 letters, digits, '_', '.' or '-' (not starting with '.' or '-')",
    policies("limits: [1/day]", "by_segment: [new]"): "policies.yaml:4: policy 'p': by_segment: expected a mapping, "
    "like segment_1: [3/day], found a list",
    policies(
        "limits: [1/day]", "by_segment: {~: [1/day]}"
    ): "policies.yaml:4: policy 'p': by_segment: a key is empty or null; write a name, or quote it",
    policies("limits: [1/day]", "layout: hash"): "policies.yaml:4: policy 'p': layout 'hash' is not known; "
    "use subject or bucket",
    policies(
        "limits: [1/day]", "layout: [subject]"
    ): "policies.yaml:4: policy 'p': layout: expected one word, found a list",
    policies("limits: [1/day]", "algorithm: leaky"): "policies.yaml:4: policy 'p': algorithm 'leaky' is not known; "
    "use sliding_log or bucketed or sliding_counter or fixed_window or gcra",
    policies(
        "limits: [1/day]", "algorithm: gcra", "count_denied: yes"
    ): "policies.yaml:2: policy 'p': count_denied goes with sliding_log or bucketed, not with algorithm 'gcra'",
    policies("limits: [1/day]", "granularity: 1h"): "policies.yaml:2: policy 'p': granularity is of algorithm "
    "'bucketed'; leave it out of 'sliding_log'",
    policies("limits: [1/day]", "granularity: soon"): "policies.yaml:4: policy 'p': granularity: unknown unit 'soon'; "
    "use us, ms, second, minute, hour, day or week (a month has no fixed length: write '30 days')",
    policies("limits: [1/day]", "algorithm: bucketed", "granularity: 13h"): "policies.yaml:2: policy 'p': granularity "
    "'13h' is more than half of its narrowest window, day; take a finer one",
    policies("limits: [1/day]", "zone: Europe/Atlantis"): "policies.yaml:4: policy 'p': no time zone "
    "'Europe/Atlantis'; use a name of the IANA database, like 'Asia/Singapore' or 'UTC'",
    policies("limits: [1/day]", "count_denied: 'false'"): "policies.yaml:4: policy 'p': count_denied: expected true or "
    "false, found 'false'",
    policies(
        "limits: [1/day]", "reservations: 1"
    ): "policies.yaml:4: policy 'p': reservations: expected true or false, found '1'",
    policies("limits: [1/day]", "reservations: true", "count_denied: true"): "policies.yaml:2: policy 'p': "
    "reservations need sliding_log without count_denied; leave them out",
    policies("limits: [1/day]", "log: ~"): "policies.yaml:4: policy 'p': log: expected a name, or leave it out, "
    "found nothing",
    policies(
        "limits: [1/day]", "log: .x"
    ): "policies.yaml:4: policy 'p': log name '.x' is not 1 to 64 letters, digits, "
    "'_', '.' or '-' (not starting with '.' or '-')",
    "policies: {a b: {limits: [1/day]}}": "policies.yaml:1: policy name 'a b' is not 1 to 64 letters, digits, '_', "
    "'.', '-', ':' or '/' (not starting with '.', '-' or ':')",
    "policies:\n  a: {limits: [1/day], log: l}\n  b: {limits: [2/day], log: l, layout: bucket}\n": "policies.yaml:3: "
    "policy 'b': shares log 'l' with policy 'a' but not its layout; give both the same",
    "policies:\n  a: {limits: [1/day], log: l}\n  b: {limits: [2/day], log: l, population: 5}\n": "policies.yaml:3: "
    "policy 'b': shares log 'l' with policy 'a' but not its population; give both the same",
    policies("limits: [1/day]", "wait_replicas: 17"): "policies.yaml:4: policy 'p': wait_replicas is 0 to 16, not 17",
    policies(
        "limits: [1/day]", "population: 0"
    ): "policies.yaml:4: policy 'p': population is 1 to 1000000000000, not 0",
    policies(
        "limits: [1/day]", "population: 1__0"
    ): "policies.yaml:4: policy 'p': population: expected a whole number, like 2 or 10_000_000, found '1__0'",
    policies("limits: [1/day]", "wait_replicas: -1"): "policies.yaml:4: policy 'p': wait_replicas: expected a whole "
    "number, like 2 or 10_000_000, found '-1'",
    policies("limits: [1/day]", "wait_replicas: [1]"): "policies.yaml:4: policy 'p': wait_replicas: expected one word, "
    "found a list",
    "policies:\n  p: {limits: [1/day]}\n  q: {limits: [1/day]}\n  p: {limits: [1/day]}\n": "policies.yaml:4: 'p' is "
    "given twice, first on line 2; keep one",
    "policies: {p: {limits: &a [1/day]}}": "policies.yaml:1: anchor '&a' is not used here; remove it",
    "policies: {p: {limits: !!seq [1/day]}}": "policies.yaml:1: tag '!!seq' is not used here; remove it",
    "policies: {p: {limits: [!x 1/day]}}": "policies.yaml:1: tag '!x' is not used here; remove it",
    "policies: {p: {limits: [1/day], <<: {log: x}}}": "policies.yaml:1: merge key '<<' is not used here; "
    "write out what it stands for",
    "policies: {p: {limits: [1/day]}}\n---\npolicies: {}": "policies.yaml:2: a second document begins here; "
    "keep one in a file",
    "? [a]\n: b\n": "policies.yaml:1: a key is a word, not a list or a mapping (and 1 more: line 1)",
    "policies:\n  p: \0": "policies.yaml:2: the character U+0000 cannot stand in a YAML text; remove it",
    "policies:\n  p: \udc80": "policies.yaml:2: the character U+DC80 cannot stand in a YAML text; remove it",
    "[" * 5000: "policies.yaml:1: lists and mappings stand 17 deep here; at most 16",
    "- " * 5000: "policies.yaml:1: lists and mappings stand 17 deep here; at most 16",
}


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text)[:50])
def test_a_refusal_is_one_line_with_the_place_and_the_fix(text: str) -> None:
    assert str(refusal(text)) == REFUSED[text]


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("policies:\n\tp: 1", 2),
        ("policies: [1, 2", 1),
        ("policies: 'x\n", 1),
        ("policies:\n  p: a: b", 2),
        ("policies:\n  p: %b", 2),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_line_or_the_next(text: str, line: int) -> None:
    ((told, problem),) = refusal(text).faults
    assert problem.startswith("not YAML:")
    assert told in (line, line + 1)


@pytest.mark.usefixtures("either_parser")
@pytest.mark.parametrize(
    "text", ['"\\UFFFFFFFF"', '"\\U00110000"', "%YAML 1." + "9" * 5000 + "\n---\na", "!%ff x", '"\\ud800"']
)
def test_what_trips_the_parser_itself_is_still_a_refusal(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "limit", ["1:30", "3", "1.5/day", ".nan", "nan/day", "-1/day", "1e3/day", "true", "0x10/day", "1/day/day"]
)
def test_what_yaml_would_read_as_another_type_is_not_a_limit(limit: str) -> None:
    assert f"limit '{limit}'" in str(refusal(policies(f"limits: [{limit}]")))


@pytest.mark.parametrize("item", ["~", "null", "''", "[1/day]", "{a: b}"])
def test_only_text_is_a_limit(item: str) -> None:
    refusal(policies(f"limits: [1/day, {item}]"))


def test_every_fault_is_reported_in_the_order_of_the_file() -> None:
    error = refusal(
        "namespace: a b\n"
        "policies:\n"
        "  'x y':\n"
        "    limits: [1/day, 2/24h]\n"
        "    layout: hash\n"
        "  promo:\n"
        "    limits:\n"
        "    - 1/day\n"
        "    - 1/fortnight\n"
        "    - 3\n"
        "    channel: {push: [1/day]}\n"
        "    count_denied: maybe\n"
    )
    assert [line for line, _ in error.faults] == [1, 3, 4, 5, 9, 10, 11, 12]
    assert str(error).startswith("policies.yaml:1: ")
    assert str(error).endswith("(and 7 more: lines 3, 4, 5, 9, 10, 11, 12)")


def test_many_faults_are_counted_and_not_all_listed() -> None:
    error = refusal("policies:\n" + "".join(f"  p{i}: 1\n" for i in range(40)))
    assert len(error.faults) == 40
    assert str(error).endswith("(and 39 more: lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, …)")


def test_an_alias_is_one_fault_and_not_a_bomb() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 8)}]\n" for i in range(12)
    )
    assert {text.split(" ")[0] for _, text in refusal(bomb).faults} == {"anchor", "alias", "unknown", "no"}
    error = refusal("policies:\n  p: &x {limits: [1/day]}\n  q: *x\n")
    assert [line for line, _ in error.faults] == [2, 3]


def test_the_number_of_values_is_bounded() -> None:
    _, faults = tree.read_tree("[" + "a," * (tree.MOST_NODES + 1) + "]")
    assert [text for _, text in faults] == [f"more than {tree.MOST_NODES} values in one file; split it"]


def test_a_policy_file_may_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capline.policy.file.MOST_NODES", 1000)
    refused = refusal("[" + "a," * 1001 + "]")
    assert [text for _, text in refused.faults] == ["more than 1000 values in one file; split it"]


def test_the_size_is_bounded_as_text_and_as_a_file(tmp_path: Path) -> None:
    assert "larger than" in str(refusal("#" * (LARGEST_FILE_BYTES + 1)))
    assert "larger than" in str(refusal(b"#" * (LARGEST_FILE_BYTES + 1)))
    path = tmp_path / "p.yaml"
    path.write_text("#" * (LARGEST_FILE_BYTES + 1))
    with pytest.raises(PolicyFileError, match="larger than"):
        load(path)
    path.write_text("policies: {p: {limits: [1/day]}}\n" + "#" * (LARGEST_FILE_BYTES - 33))
    assert path.stat().st_size == LARGEST_FILE_BYTES
    assert load(path).policies


def test_bytes_that_are_not_utf_8_are_refused_with_their_line() -> None:
    assert str(refusal(b"policies:\n  p: \xff")) == "policies.yaml:2: byte 0xFF is not UTF-8; save the file as UTF-8"


def test_a_very_long_word_does_not_make_a_very_long_message() -> None:
    word = "w" * 100_000
    for text in (
        f"namespace: {word}",
        f"{word}: 1",
        f"policies: {{{word}: 1}}",
        policies("limits: [1/day]", f"layout: {word}"),
    ):
        assert len(str(refusal(text))) < 400


def test_the_error_survives_pickling() -> None:
    error = refusal("policies: 1\nextra: 2")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - the bytes were made on this line
    assert isinstance(again, PolicyFileError)
    assert (str(again), again.faults) == (str(error), error.faults)


@pytest.mark.parametrize("value", [None, 3, ["policies"], {"policies": {}}])
def test_only_text_and_bytes_are_taken(value: object) -> None:
    with pytest.raises(InvalidTypeError, match="text or bytes"):
        loads(value)  # pyright: ignore[reportArgumentType] - an untyped caller


# ---- files that are none -------------------------------------------------------------------------------------------


def test_a_missing_file_a_directory_and_a_name_that_cannot_be_one(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "is a directory"),
        (tmp_path / "a\0b", "null byte"),
        (tmp_path / "a\nb", "no such file"),
    ):
        with pytest.raises(PolicyFileError, match=reason) as caught:
            load(path)
        assert str(caught.value).isprintable()


def test_a_pipe_is_refused_at_once_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PolicyFileError, match="not a regular file"):
        load(tmp_path / "pipe")


@pytest.mark.parametrize("path", [3, None, ["x"]])
def test_a_path_is_text_or_a_path(path: object) -> None:
    with pytest.raises(InvalidTypeError):
        load(path)  # pyright: ignore[reportArgumentType] - an untyped caller


# ---- the watch -----------------------------------------------------------------------------------------------------

GOOD = "policies: {promo: {limits: [1/day]}}\n"
OTHER = "policies: {promo: {limits: [2/day]}}\n"
BROKEN = "policies: {promo: {limits: [3/da]}}\n"
"""All of one size: what tells them apart is never the length."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policies.yaml"
    path.write_text(GOOD)
    return path


def quotas(watch: PolicyWatch) -> list[int]:
    return [limit.quota for limit in watch.current.policies[0].limits]


def test_a_watch_cannot_begin_on_a_file_that_is_not_good(path: Path) -> None:
    path.write_text(BROKEN)
    with pytest.raises(PolicyFileError):
        PolicyWatch(path)


def test_a_change_is_taken_once(path: Path) -> None:
    watch = PolicyWatch(path)
    assert not watch.poll()
    path.write_text(OTHER)
    assert quotas(watch) == [1]
    assert watch.poll()
    assert quotas(watch) == [2]
    assert not watch.poll()


def test_a_file_renamed_into_place_is_taken(path: Path) -> None:
    watch = PolicyWatch(path)
    beside = path.with_suffix(".new")
    beside.write_text(OTHER)
    beside.rename(path)
    assert watch.poll()
    assert quotas(watch) == [2]


def test_a_link_that_points_elsewhere_now_is_taken(tmp_path: Path) -> None:
    for name, text in (("v1", GOOD), ("v2", OTHER)):
        (tmp_path / name).write_text(text)
    link = tmp_path / "policies.yaml"
    link.symlink_to("v1")
    watch = PolicyWatch(link)
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").rename(link)
    assert watch.poll()
    assert quotas(watch) == [2]


def test_the_same_bytes_written_again_are_no_change(path: Path) -> None:
    watch = PolicyWatch(path)
    before = watch.current
    path.write_text(GOOD)
    os.utime(path, ns=(1, 1))
    assert not watch.poll()
    assert watch.current is before


def test_a_broken_version_is_refused_and_the_last_good_one_stays(path: Path) -> None:
    watch = PolicyWatch(path)
    path.write_text(BROKEN)
    assert not watch.poll()
    assert quotas(watch) == [1]
    assert watch.error is not None
    assert str(watch.error).startswith(f"{path}:1: policy 'promo': limit '3/da'")
    assert not watch.poll()
    assert watch.error is not None
    path.write_text(OTHER)
    assert watch.poll()
    assert watch.error is None
    assert quotas(watch) == [2]


def test_going_back_to_the_good_version_clears_the_error_without_a_change(path: Path) -> None:
    watch = PolicyWatch(path)
    path.write_text(BROKEN)
    watch.poll()
    path.write_text(GOOD)
    assert not watch.poll()
    assert watch.error is None


def test_a_file_that_is_gone_leaves_the_last_good_one_until_it_is_back(path: Path) -> None:
    watch = PolicyWatch(path)
    path.unlink()
    assert not watch.poll()
    assert "no such file" in str(watch.error)
    assert quotas(watch) == [1]
    path.write_text(GOOD)
    assert not watch.poll()
    assert watch.error is None
    path.unlink()
    path.mkdir()
    assert not watch.poll()
    assert "is a directory" in str(watch.error)


def test_a_changed_namespace_is_refused(path: Path) -> None:
    watch = PolicyWatch(path)
    path.write_text("namespace: other\n" + OTHER)
    assert not watch.poll()
    assert "namespace changed from 'capline' to 'other'" in str(watch.error)
    assert (watch.current.namespace, quotas(watch)) == ("capline", [1])


def settled_watch(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[PolicyWatch, list[str]]:
    """A watch that has trusted the file's state, and a list that grows by one for each reading of the bytes."""
    reads: list[str] = []
    clock = ManualClock(path.stat().st_ctime_ns // 1000 + 10_000_000)
    watch = PolicyWatch(path, clock)
    watch.poll()
    read_bytes = module.read_bytes

    def counted(path: str | os.PathLike[str]) -> tuple[bytes, os.stat_result]:
        reads.append(str(path))
        return read_bytes(path)

    monkeypatch.setattr(module, "read_bytes", counted)
    return watch, reads


def test_an_old_unchanged_file_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, reads = settled_watch(path, monkeypatch)
    assert not any(watch.poll() for _ in range(5))
    assert reads == []
    path.write_text(OTHER)
    assert watch.poll()
    assert len(reads) == 1


def test_a_young_file_is_read_again_since_its_state_may_hide_a_second_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(path.stat().st_ctime_ns // 1000)
    watch = PolicyWatch(path, clock)
    assert not watch.poll()
    state = path.stat()
    path.write_text(OTHER)

    # As where the file system's clock has not ticked between the two writes: the state is the same.
    def the_same(_: os.stat_result) -> tuple[int, int, int, int, int]:
        return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns

    monkeypatch.setattr(module, "_signature_of", the_same)
    assert watch.poll()
    assert quotas(watch) == [2]


def test_a_file_that_changes_while_it_is_read_waits_for_the_next_poll(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = PolicyWatch(path)
    read_bytes = module.read_bytes
    path.write_text("policies: {promo: {limits: [9/day]}}\n")

    def slow(path: str | os.PathLike[str]) -> tuple[bytes, os.stat_result]:
        answer = read_bytes(path)
        Path(path).write_text(OTHER + "# written meanwhile\n")
        return answer

    monkeypatch.setattr(module, "read_bytes", slow)
    assert not watch.poll()
    assert quotas(watch) == [1]
    monkeypatch.undo()
    assert watch.poll()
    assert quotas(watch) == [2]


def test_a_relative_path_means_the_same_file_after_a_chdir(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(path.parent)
    watch = PolicyWatch("policies.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path.write_text(BROKEN)
    assert not watch.poll()
    assert str(watch.error).startswith("policies.yaml:1: ")


def test_threads_that_poll_together_take_a_version_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = PolicyWatch(path)
    path.write_text(OTHER)
    inside = threading.Barrier(2)

    def waits_for_the_other_thread(text: str | bytes, name: str) -> PolicyFile:
        with contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(timeout=0.2)  # both get here only where nothing keeps one of them out
        return loads(text, name)

    monkeypatch.setattr(module, "loads", waits_for_the_other_thread)
    taken: list[bool] = []
    threads = [threading.Thread(target=lambda: taken.append(watch.poll())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False, True]
    assert quotas(watch) == [2]


# ---- the page about it ---------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"^```(\S+)( refused)?\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)


def test_the_examples_in_the_docs_are_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [kind + refused for kind, refused, _ in BLOCKS]
    assert (kinds.count("yaml"), kinds.count("yaml refused"), kinds.count("python")) == (3, 1, 4)
    monkeypatch.chdir(tmp_path)
    Path("policies.yaml").write_text(BLOCKS[0][2])
    for i, (kind, refused, text) in enumerate(BLOCKS):
        if kind == "yaml" and refused:
            assert str(refusal(text)) + "\n" == BLOCKS[i + 1][2]
        elif kind == "yaml":
            assert loads(text).policies
        elif kind == "python":
            exec(text, {})  # noqa: S102 - the page's own program


def test_the_error_is_a_policy_error_and_so_a_value_error() -> None:
    assert issubclass(PolicyFileError, PolicyError)
    assert issubclass(PolicyFileError, CaplineError)
    assert issubclass(PolicyFileError, ValueError)
