"""The YAML of envoyproxy/ratelimit: which descriptor has which limit, what is refused, what is followed."""

from pathlib import Path

import pytest

from capline.model.errors import CaplineError
from capline.service.envoy.files import Files, load
from capline.service.envoy.rules import Match

BASIC = """
domain: test-domain
descriptors:
  - key: key1
    value: value1
    descriptors:
      - key: subkey1
        rate_limit: {unit: second, requests_per_unit: 5}
      - key: subkey1
        value: subvalue1
        shadow_mode: true
        rate_limit: {unit: SECOND, requests_per_unit: 10}
  - key: key2
    rate_limit: {unit: minute, requests_per_unit: 20}
  - key: key2
    value: value2
    rate_limit: {unit: minute, requests_per_unit: 30, name: two, replaces: [{name: one}]}
  - {key: key2, value: value3}
  - {key: key3, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: key4, rate_limit: {unit: Month, requests_per_unit: 1}, quota_mode: true}
  - key: key5
    value: value5
    rate_limit: {unit: year, requests_per_unit: 15}
    descriptors:
      - {key: subkey5, value: subvalue5, rate_limit: {unit: day, requests_per_unit: 25}}
  - {key: key6, rate_limit: {unlimited: true}}
  - {key: key7, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 70}}
  - key: route
    value_to_metric: true
    descriptors:
      - {key: method, rate_limit: {unit: minute, requests_per_unit: 60}}
"""

WILD = """
domain: test-domain
descriptors:
  - {key: wild, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: wild, value: foo*, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: wild, value: fo*, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: wild, value: food, rate_limit: {unit: minute, requests_per_unit: 4}}
  - {key: noWild, value: foo, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: mid, value: a*b*c, rate_limit: {unit: minute, requests_per_unit: 6}}
  - {key: files, value: files/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 7}}
  - key: user
    value: u*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - {key: file, value: f*, rate_limit: {unit: minute, requests_per_unit: 8}}
"""


def match(folder: Path, text: str, *entries: str, domain: str = "test-domain") -> Match | None:
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    pairs = [(key, value) for key, _, value in (entry.partition("=") for entry in entries)]
    return load(folder).match(domain, pairs)


@pytest.mark.parametrize(
    ("entries", "limit", "metric"),
    [
        ("key1=value1 subkey1=something", "5/second", "key1_value1.subkey1"),
        ("key1=value1 subkey1=subvalue1", "10/second", "key1_value1.subkey1_subvalue1"),
        ("key2=something", "20/minute", "key2"),
        ("key2=value2", "30/minute", "key2_value2"),
        ("key3=foo", "1/week", "key3"),
        ("key4=foo", "1/month", "key4"),
        ("key5=value5", "15/year", "key5_value5"),
        ("key5=value5 subkey5=subvalue5", "25/day", "key5_value5.subkey5_subvalue5"),
        ("key6=foo", "0/", "key6"),
        ("key7=a", "70/hour", "key7_a"),
        ("route=api method=GET", "60/minute", "route_api.method"),
    ],
)
def test_a_descriptor_has_its_limit(tmp_path: Path, entries: str, limit: str, metric: str) -> None:
    found = match(tmp_path, BASIC, *entries.split())
    assert found is not None
    assert f"{found.rule.quota}/{found.rule.unit}" == limit
    assert found.metric == f"test-domain.{metric}"


@pytest.mark.parametrize(
    "entries",
    [
        "",
        "key1=something",
        "key1=value1",
        "key2=value2 subkey=subvalue",
        "key5=value5 subkey5=other",
        "key2=value3",
        "x=y",
    ],
)
def test_a_descriptor_without_a_limit_of_its_own_depth_has_none(tmp_path: Path, entries: str) -> None:
    assert match(tmp_path, BASIC, *entries.split()) is None


def test_options_are_those_of_the_descriptor(tmp_path: Path) -> None:
    shadow = match(tmp_path, BASIC, "key1=value1", "subkey1=subvalue1")
    named = match(tmp_path, BASIC, "key2=value2")
    quota = match(tmp_path, BASIC, "key4=a")
    unlimited = match(tmp_path, BASIC, "key6=a")
    assert shadow is not None
    assert named is not None
    assert quota is not None
    assert unlimited is not None
    assert (shadow.rule.shadow, quota.rule.quota_mode, unlimited.rule.unlimited) == (True, True, True)
    assert (named.rule.name, named.rule.replaces, named.rule.shadow) == ("two", ("one",), False)
    assert match(tmp_path, BASIC, "key2=a", domain="other") is None


@pytest.mark.parametrize(
    ("entry", "quota"),
    [
        ("wild=food", 4),
        ("wild=foo1", 2),
        ("wild=foo*", 2),
        ("wild=foe", 3),
        ("wild=bar", 1),
        ("mid=abc", 6),
        ("mid=a1b2c", 6),
        ("mid=a1c", None),
        ("mid=abcd", None),
        ("noWild=foo1", None),
    ],
)
def test_exact_is_before_wildcards_in_their_order_and_those_before_the_key_alone(
    tmp_path: Path, entry: str, quota: int | None
) -> None:
    found = match(tmp_path, WILD, entry)
    assert (None if found is None else found.rule.quota) == quota


def test_a_shared_threshold_is_counted_by_its_pattern(tmp_path: Path) -> None:
    one, two = match(tmp_path, WILD, "files=files/a"), match(tmp_path, WILD, "files=files/b")
    assert one is not None
    assert two is not None
    assert one.entries == two.entries == (("files", "files/*"),)
    apart = match(tmp_path, WILD, "user=u1", "file=f1")
    assert apart is not None
    assert apart.entries == (("user", "u*"), ("file", "f1"))
    assert apart.metric == "test-domain.user_u.file_f*"


SHARED = """
domain: test-domain
descriptors:
  - key: a
    rate_limit: &each {unit: minute, requests_per_unit: 20}
    descriptors: &below
      - {key: b, rate_limit: *each}
      - {key: c, rate_limit: {<<: *each, requests_per_unit: 7}}
      - {key: d, rate_limit: {name: d, <<: [&day {unit: day}, *each]}}
  - {key: &named e, descriptors: *below}
  - {key: f, value: *named, rate_limit: {<<: [{unit: hour}, *day], requests_per_unit: 3}}
"""


@pytest.mark.parametrize(
    ("entries", "limit"),
    [
        ("a=1", "20/minute"),
        ("a=1 b=1", "20/minute"),
        ("a=1 c=1", "7/minute"),
        ("a=1 d=1", "20/day"),
        ("e=1 c=1", "7/minute"),
        ("f=e", "3/hour"),
    ],
)
def test_what_an_alias_stands_for_counts_as_written_out(tmp_path: Path, entries: str, limit: str) -> None:
    found = match(tmp_path, SHARED, *entries.split())
    assert found is not None
    assert f"{found.rule.quota}/{found.rule.unit}" == limit


EVERY_FEATURE = """
---
domain: rl
descriptors:
  - key: from
    value: web
    descriptors:
      - {key: to, value: shop, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 2}
    metadata: &plan
      plan: free
      limits: {burst: 2, names: [a, b]}
    descriptors:
      - {key: user, rate_limit: {name: user, unit: hour, requests_per_unit: 3}, detailed_metric: true}
      - {key: user, value: blocked, rate_limit: {unit: day, requests_per_unit: 0}, metadata: {}}
      - {key: user, value: staff*, share_threshold: true, rate_limit: {unit: week, requests_per_unit: 4}}
      - {key: trial, shadow_mode: true, value_to_metric: true, rate_limit: {unit: second, requests_per_unit: 1}}
      - {key: paid, rate_limit: {unlimited: true, replaces: [{name: user}]}, metadata: *plan}
      - {key: pool, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 9}, metadata: ~}
"""


@pytest.mark.parametrize(
    ("entries", "metadata"),
    [
        ("tenant=t", {"plan": "free", "limits": {"burst": 2, "names": ["a", "b"]}}),
        ("tenant=t paid=yes", {"plan": "free", "limits": {"burst": 2, "names": ["a", "b"]}}),
        ("tenant=t user=blocked", {}),
        ("tenant=t pool=1", None),
        ("from=web to=shop", None),
    ],
)
def test_a_file_with_all_that_upstream_has(tmp_path: Path, entries: str, metadata: object) -> None:
    found = match(tmp_path, EVERY_FEATURE, *entries.split(), domain="rl")
    assert found is not None
    assert found.rule.metadata == metadata


LAUGHS = "a: &a0 [x]\n" + "".join(f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
DEEP = "a: &a0 [[[[[[x]]]]]]\n" + "".join(f"b{i}: &a{i + 1} [[[[[[*a{i}]]]]]]\n" for i in range(900))
LIMIT = "rate_limit: {unit: day, requests_per_unit: 1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("descriptors: []", "empty domain"),
        ("domain: ''", "empty domain"),
        ("domain: d\ndescriptors: [{value: v}]", "descriptor has empty key"),
        (
            "domain: d\ndescriptors: [{key: a, value: b}, {key: a, value: b}]",
            "duplicate descriptor composite key 'd.a_b'",
        ),
        ("domain: d\ndescriptors: [{key: a}, {key: a}]", "duplicate descriptor composite key 'd.a'"),
        ("domain: d\ndescriptors: [{key: a, rate_limit: {unit: foo}}]", "invalid rate limit unit 'foo'"),
        ("domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1}}]", "invalid rate limit unit ''"),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, unit: day}}]",
            "should not specify rate limit unit",
        ),
        (
            f"domain: d\ndescriptors: [{{key: a, {LIMIT}, name: n, replaces: [{{name: n}}]}}}}]",
            "name of same descriptor",
        ),
        (f"domain: d\ndescriptors: [{{key: a, {LIMIT}, replaces: [{{name: ''}}]}}}}]", "empty replaces entry"),
        (
            "domain: d\ndescriptors: [{key: a, ratelimit: {unit: day}}]",
            "unknown key 'ratelimit'; did you mean rate_limit?",
        ),
        (
            "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requestsperunit: 5}}]",
            "unknown key 'requestsperunit'",
        ),
        ("domain: d\ndescriptors: [a]", "expected a mapping"),
        ("domain: d\ndescriptors: [{key: a, metadata: [b]}]", "faulty.yaml:2: d: metadata: expected a mapping, like"),
        ("domain: d\ndescriptors: [{key: a, share_threshold: true, value: b}]", "a value that has a *"),
        ("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: -1}}]", "a whole number from 0"),
        ("domain: d\nlimits: []", "unknown key 'limits'"),
        (LAUGHS, "faulty.yaml:6: more than 100000 values in one file"),
        (DEEP, "faulty.yaml:3: lists and mappings stand 19 deep here; at most 16"),
        ("domain: &d [*d]", "alias '*d' stands for nothing that is before it"),
        ("domain: d\ndescriptors: *below", "alias '*below' stands for nothing that is before it"),
        ("domain: &d d\n<<: *d", "faulty.yaml:2: merge key '<<' takes a mapping, or a list of them"),
        ("domain: d\ndescriptors: [&x {key: a}, *x]", "duplicate descriptor composite key 'd.a'"),
        ("domain: !!str d", "tag '!!str' is not used here"),
        ("domain: [", "not YAML"),
        ("", "domain"),
    ],
)
def test_a_fault_is_refused_with_the_file_and_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "good.yaml").write_text(BASIC, encoding="utf-8")
    (tmp_path / "faulty.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(CaplineError) as refused:
        load(tmp_path)
    told = str(refused.value)
    assert "faulty.yaml" in told
    assert reason in told
    assert "\n" not in told


def test_a_domain_of_two_files_is_refused_or_merged(tmp_path: Path) -> None:
    for name, key in (("a.yaml", "one"), ("b.yml", "two")):
        limit = "{unit: day, requests_per_unit: 1}"
        (tmp_path / name).write_text(f"domain: d\ndescriptors: [{{key: {key}, rate_limit: {limit}}}]", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no YAML: [", encoding="utf-8")
    (tmp_path / ".hidden.yaml").write_text("no YAML: [", encoding="utf-8")
    with pytest.raises(CaplineError, match=r"b\.yml:1: domain: duplicate domain 'd'"):
        load(tmp_path)
    merged = load(tmp_path, merge_domains=True)
    assert merged.match("d", [("one", "x")]) is not None
    assert merged.match("d", [("two", "x")]) is not None
    (tmp_path / "c.yaml").write_text("domain: d\ndescriptors: [{key: one}]", encoding="utf-8")
    with pytest.raises(CaplineError, match=r"c\.yaml:.*duplicate descriptor"):
        load(tmp_path, merge_domains=True)


def test_files_that_appear_change_and_vanish_are_followed_and_broken_ones_refused(tmp_path: Path) -> None:
    def domains() -> set[str]:
        return set(files.current.domains)

    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("domain: a", encoding="utf-8")
    files = Files(tmp_path)
    assert (files.poll(), domains()) == (False, {"a"})
    two.write_text("domain: b", encoding="utf-8")
    assert (files.poll(), domains()) == (True, {"a", "b"})
    one.write_text("domain: c", encoding="utf-8")
    assert (files.poll(), domains()) == (True, {"b", "c"})
    two.write_text("domain: c", encoding="utf-8")
    assert (files.poll(), domains()) == (True, {"b", "c"})
    assert "two.yaml:1: domain: duplicate" in str(files.error)
    assert files.poll() is False  # told once
    two.unlink()
    assert (files.poll(), domains(), files.error) == (True, {"c"}, None)
    one.unlink()
    assert (files.poll(), domains()) == (True, set())
    tmp_path.rmdir()
    assert (files.poll(), domains()) == (True, set())
    assert "cannot be read" in str(files.error)
    tmp_path.mkdir()
    assert (files.poll(), files.error) == (True, None)
