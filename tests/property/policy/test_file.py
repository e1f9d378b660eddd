"""The policy file, for any text at all: it is read or refused, and what is written is read back."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from capline.forms import tree
from capline.model.limit import LARGEST_QUOTA, LONGEST_WINDOW_US, Limit
from capline.model.policy import LARGEST_POPULATION, LAYOUTS, MOST_REPLICAS, NAME_FORM, Policy
from capline.policy.file import PolicyFile, PolicyFileError, loads

NAMES = st.from_regex(NAME_FORM, fullmatch=True) | st.sampled_from(
    ["on", "no", "null", "1_0", "0x1F", "1e5", "2024", "TRUE"]
)
LIMITS = st.lists(
    st.builds(Limit, st.integers(0, LARGEST_QUOTA), st.integers(1, LONGEST_WINDOW_US)),
    max_size=5,
    unique_by=lambda limit: limit.window_us,
)
NAMED = st.dictionaries(NAMES, LIMITS.filter(bool), max_size=4)


@st.composite
def policy_sets(draw: st.DrawFn) -> PolicyFile:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    # One layout and population for all, since they may share a log.
    layout, population = draw(st.sampled_from(LAYOUTS)), draw(st.integers(1, LARGEST_POPULATION))
    made = [
        Policy(
            name,
            draw(LIMITS.filter(bool)),
            draw(NAMED),
            draw(NAMED),
            layout=layout,
            population=population,
            wait_replicas=draw(st.integers(0, MOST_REPLICAS)),
            log=draw(st.none() | st.sampled_from(names) | NAMES),
        )
        for name in names
    ]
    return PolicyFile(draw(NAMES), tuple(made))


def written(file: PolicyFile) -> dict[str, Any]:
    """The file's content as plain lists, mappings and texts."""

    def texts(limits: tuple[Limit, ...]) -> list[str]:
        return [str(limit) for limit in limits]

    return {
        "namespace": file.namespace,
        "policies": {
            policy.name: {
                "limits": texts(policy.limits),
                "by_segment": {name: texts(limits) for name, limits in policy.by_segment.items()},
                "channels": {name: texts(limits) for name, limits in policy.channels.items()},
                "layout": policy.layout,
                "population": policy.population,
                "wait_replicas": policy.wait_replicas,
                "log": policy.log,
                "count_denied": policy.count_denied,
            }
            for policy in file.policies
        },
    }


@given(policy_sets(), st.sampled_from([True, False, None]), st.sampled_from([None, "'", '"']))
def test_what_is_written_is_read_back(file: PolicyFile, flow: bool | None, quote: str | None) -> None:
    content = written(file)
    if quote:  # quoted, `false` and numbers are words: leave them out, as they are what holds unless said
        for policy in content["policies"].values():
            del policy["count_denied"], policy["population"], policy["wait_replicas"]
        bare = [Policy(p.name, p.limits, p.by_segment, p.channels, layout=p.layout, log=p.log) for p in file.policies]
        file = PolicyFile(file.namespace, tuple(bare))
    text = yaml.safe_dump(content, default_flow_style=flow, default_style=quote, sort_keys=False)
    assert loads(text) == file
    assert loads(text.encode()) == file


PIECES = st.sampled_from(
    [
        *(
            "policies:",
            "namespace:",
            "limits:",
            "by_segment:",
            "channels:",
            "log:",
            "layout:",
            "count_denied:",
            "promo:",
        ),
        *(
            "[1/day, 2/week]",
            "1/day",
            "[",
            "]",
            "{",
            "}",
            ",",
            "- ",
            "? ",
            ": ",
            "&a ",
            "*a",
            "<<: ",
            "!!str ",
            "!x ",
            "#",
        ),
        *(
            "\n",
            "\n  ",
            "\n    ",
            "\n      ",
            "\t",
            "|",
            ">",
            "'",
            '"',
            "---\n",
            "...\n",
            "%YAML 1.1\n",
            "~",
            "null",
            "on",
        ),
        *("0/day", "1/0s", "\\", "\0", "\ufeff", "\u2028", "é", "\ud800"),
    ]
)


def reads_or_refuses(text: str | bytes) -> None:
    try:
        file = loads(text, name="some.yaml")
    except PolicyFileError as error:
        check_refusal(error)
    else:
        assert file.policies
        assert all(any(policy.all_limits()) for policy in file.policies)


def check_refusal(error: PolicyFileError) -> None:
    assert str(error).isprintable()
    assert str(error).startswith("some.yaml")
    lines = [line for line, _ in error.faults]
    assert lines == sorted(lines)
    assert lines[0] >= 0


@given(st.lists(PIECES, max_size=40).map("".join) | st.text())
@example("policies: {p: {limits: [1/day], <<: *a}}")
@example("{" * 5000)
def test_any_text_is_read_or_refused(text: str) -> None:
    reads_or_refuses(text)


@given(st.lists(PIECES, max_size=40).map("".join) | st.text())
@example('"\\UFFFFFFFF"')
def test_any_text_is_read_or_refused_without_libyaml(text: str) -> None:
    libyaml, tree.LOADER = tree.LOADER, yaml.SafeLoader
    try:
        reads_or_refuses(text)
    finally:
        tree.LOADER = libyaml


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    reads_or_refuses(data)


@given(policy_sets(), st.data())
def test_a_good_file_with_some_characters_changed_is_read_or_refused(file: PolicyFile, data: st.DataObject) -> None:
    text = yaml.safe_dump(written(file), sort_keys=False)
    at = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 10))
    reads_or_refuses(text[:at] + data.draw(st.text(max_size=5) | PIECES) + text[at + length :])


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["1/day", "x", "promo", ""]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["limits", "by_segment", "channels", "log", "layout", "a b", "x"]), inner, max_size=4
        )
    ),
    max_leaves=15,
)


@given(SHAPES)
def test_any_shape_below_policies_is_read_or_refused(shape: object) -> None:
    reads_or_refuses(yaml.safe_dump({"policies": shape}))
    reads_or_refuses(yaml.safe_dump({"policies": {"p": shape}}))


@given(policy_sets(), st.lists(st.sampled_from(["limits", "layout", "name"]), min_size=1, max_size=3, unique=True))
def test_each_fault_is_reported_on_its_own(file: PolicyFile, broken: list[str]) -> None:
    content = written(file)
    first = next(iter(content["policies"]))
    body = content["policies"][first]
    if "limits" in broken:
        body["limits"] = [*body["limits"], "3/fortnight"]
    if "layout" in broken:
        body["layout"] = "hash"
    if "name" in broken:
        content["policies"] = {"a b": body, **{k: v for k, v in content["policies"].items() if k != first}}
    with pytest.raises(PolicyFileError) as caught:
        loads(yaml.safe_dump(content, sort_keys=False))
    assert len(caught.value.faults) == len(broken)
