"""Examples as a table: under which limits, what is called at which second, and what is answered.

    test_two_per_minute: 2/min
        decide -> yes; 10: decide -> yes
        20: decide -> no, left 0, after 40, empty 50

A head is a check's name and the limits of policy "p", then its options (`| channels.push=1/h,3/day`; `| policy.q=2/day`
is one more policy with these options; `| algorithm=*` makes a check of each algorithm, `| each=gcra,bucketed` one of
these, which `use LIMITS algorithm=*` names; `| numbers=True` is for stores that keep all numbers in one value).

A step is `[second:] [name =] verb [words] [-> facts]`; it asks for subject "s" under "p" unless it says `of=` or `on=`.
`$name` is the hit of an earlier step (`$name.1` that of its second part). A fact has one value, or one for each of
several calls: `decide -> yes yes no` is three, and `decide x9 -> yes` nine; `0+0.1: decide x9` asks every 0.1 seconds.
Beside a limiter's verbs there are `later SECONDS`, `when TIME ZONE`, `use LIMITS`, and `opens COST`: refused until
`retry_after`, and allowed then, to the microsecond. Verbs of several policies have parts, a cost and an id each:
`decide_all a:1 b:10:x`.
"""

import re
from collections.abc import Callable, Iterable
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from capline.model import errors
from capline.model.attempt import Attempt
from capline.model.decision import Joint
from capline.testing.setting import ALGORITHMS, SECOND, START_US, StoreSetting, begins_next

Check = Callable[..., None]

_STEP = re.compile(
    r"(?:(?P<at>-?[0-9.]+)(?:\+(?P<apart>[0-9.]+))?: )?(?:(?P<name>\w+) = )?(?P<call>.+?)(?: -> (?P<facts>.+))?"
)
_WORDS = {"yes": True, "no": False, "never": None, "none": None, "True": True}


def examples(table: str, *, several: bool = False) -> dict[str, Check]:
    """The checks of a table, by their names; with `several`, each policy is asked about a subject of its own."""
    checks: dict[str, Check] = {}
    joined = re.sub(r"\n +(?=[|,] )", " ", dedent(table).strip())
    for block in re.split(r"\n(?=\S)", joined):
        head, *lines = block.splitlines()
        name, _, policy = head.partition(": ")
        steps = [step.strip() for line in lines for step in line.split(";") if step.strip()]
        checks[f"{name}_of_several_subjects" if several else name] = _check(policy, steps, several)
    return checks


def _check(head: str, steps: list[str], several: bool) -> Check:
    limits, *rest = head.split(" | ")
    options = _options(rest)
    policies = {"p": re.split(" ?, ", limits), **options.pop("policy", {})}
    numbers = options.pop("numbers", False)
    each = options.pop("each", "").split(",")
    if options.get("algorithm") == "*" and not any(each):
        each = ALGORITHMS

    def check(self: StoreSetting, algorithm: str) -> None:
        if numbers and not begins_next(self.url):
            pytest.skip("each number has a log of its own here: a new one begins without")
        chosen = options | ({"algorithm": algorithm} if "algorithm" in options and algorithm else {})
        limiter = self.limiter(*(self.policy(name, of, **chosen) for name, of in policies.items()))
        subjects = {name: self.subject(number) for number, name in enumerate(policies)} if several else {}
        _Run(self, limiter, algorithm, subjects).take(steps)

    def alone(self: StoreSetting) -> None:
        check(self, "")

    return pytest.mark.parametrize("algorithm", each)(check) if any(each) else alone


def _options(pairs: Iterable[str], algorithm: str = "*") -> dict[str, Any]:
    """Options of a policy: `channels.push=1/h,3/day`, `zone=UTC`."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        kind, _, name = key.partition(".")
        if name:
            options.setdefault(kind, {})[name] = text.split(",")
        else:
            options[kind] = algorithm if text == "*" else _value(text, {})
    return options


class _Run:
    def __init__(self, setting: StoreSetting, limiter: Any, algorithm: str, subjects: dict[str, Any]) -> None:
        self._setting, self._limiter, self._algorithm, self._subjects = setting, limiter, algorithm, subjects
        self._hits: dict[str, Any] = {}

    def take(self, steps: Iterable[str]) -> None:
        for step in steps:
            found = _STEP.fullmatch(step)
            assert found is not None, f"{step!r} is no step"
            if found["at"]:
                self._setting.at(float(found["at"]))
            verb, *words = found["call"].split()
            facts = [fact.split() for fact in (found["facts"] or "").split(", ") if fact]
            if facts and facts[0][0] == "raises":
                with pytest.raises(getattr(errors, facts[0][1]), match=" ".join(facts[0][2:]) or None):
                    self._ask(verb, words)
                continue
            wanted = dict(map(self._wanted, facts))
            times = max([1, *(len(values) for values in wanted.values())])
            if words and re.fullmatch(r"x[0-9]+", words[0]):
                times = int(words.pop(0)[1:])
            answers = [self._ask(verb, words)]
            for _ in range(times - 1):
                self._setting.clock.advance_us(round(float(found["apart"] or 0) * SECOND))
                answers.append(self._ask(verb, words))
            for fact, values in wanted.items():
                seen = [_FACTS[fact](answer) for answer in answers]
                assert seen == (values if len(values) == times else values * times), f"{step!r}: {fact} is {seen}"
            if "new" in wanted:
                assert _hit(answers[-1]) not in self._hits.values(), f"{step!r}: {answers[-1]}"
            if found["name"]:
                self._hits[found["name"]] = _hit(answers[-1])

    def _wanted(self, fact: list[str]) -> tuple[str, list[Any]]:
        """What a fact is called, and its values."""
        if fact[0] in ("yes", "no"):
            return "says", [_WORDS[word] for word in fact]
        if fact[0] == "by":
            return "by", [" ".join(fact[1:])]
        return fact[0], [_value(word, self._hits) for word in fact[1:]] or [True]

    def _ask(self, verb: str, words: list[str]) -> Any:
        setting = self._setting
        if verb == "later":
            return setting.clock.advance_us(round(float(words[0]) * SECOND))
        if verb == "when":
            return setting.when(*words)
        if verb == "use":
            limits = [word for word in words if "=" not in word]
            options = _options((word for word in words if "=" in word), self._algorithm)
            policies = {"p": limits, **options.pop("policy", {})}
            return self._limiter.use([setting.policy(name, of, **options) for name, of in policies.items()])
        args = [_value(word, self._hits) for word in words if "=" not in word]
        names = {key: _value(text, self._hits) for key, _, text in (word.partition("=") for word in words) if text}
        policy = names.pop("on", "p")
        subject = names.pop("of", self._subjects.get(policy, "s"))
        if verb == "opens":
            return setting.opens(self._limiter, policy, subject, *args, **names)
        if verb.endswith("_all"):
            return self._ask_all(verb, subject, args, names)
        values = {"sweep": [], "erase": [subject], "flush": [policy]}.get(verb, [policy, subject, *args])
        return getattr(self._limiter, verb)(*values, **names)

    def _ask_all(self, verb: str, subject: Any, args: list[Any], names: dict[str, Any]) -> Any:
        id = names.pop("id", None)
        parts = [(*word.split(":"), id)[:3] for word in args if isinstance(word, str)]
        attempts = [
            Attempt(policy, self._subjects.get(policy, subject), int(cost), name) for policy, cost, name in parts
        ]
        return getattr(self._limiter, verb)(attempts, *args[len(parts) :], **names)


def _value(text: str, hits: dict[str, Any]) -> Any:
    if text.startswith("$"):
        name, _, part = text[1:].partition(".")
        return hits[name][int(part)] if part else hits[name]
    if text in _WORDS:
        return _WORDS[text]
    try:
        return float(text) if "." in text or "e-" in text else int(text)
    except ValueError:
        return text


def _hit(answer: Any) -> Any:
    return answer.hits if isinstance(answer, Joint) else answer.hit


def _states(answer: Any) -> Any:
    return getattr(answer, "limits", answer)


def _joined(values: Iterable[Any]) -> Any:
    """One number as it is, several with a plus between."""
    listed = [*values]
    return listed[0] if len(listed) == 1 else "+".join(map(str, listed))


_FACTS: dict[str, Callable[[Any], Any]] = {
    "says": bool,
    "gives": lambda answer: answer,
    "left": lambda answer: answer.remaining,
    "after": lambda answer: answer.retry_after,
    "empty": lambda answer: answer.reset_after,
    "wait": lambda answer: answer.wait,
    "late": lambda answer: answer.late,
    "by": lambda answer: str(answer.limit),
    "hit": _hit,
    "new": lambda answer: answer.hit is not None,
    "binds": lambda joint: joint.binds,
    "origin": lambda answer: answer.origin,
    "stamp": lambda answer: _joined((hit - START_US) / SECOND for hit in np.atleast_1d(_hit(answer)).tolist()),
    "used": lambda answer: _joined(state.used for state in _states(answer)),
    "free": lambda answer: _joined(state.remaining for state in _states(answer)),
    "past": lambda answer: _joined(state.past for state in _states(answer)),
    "frees": lambda answer: _joined(state.frees_in for state in _states(answer)),
    "whole": lambda answer: _joined(state.whole_in for state in _states(answer)),
    "names": lambda answer: _joined(state.name for state in _states(answer)),
    "units": lambda why: _joined(hit.units for hit in why.hits),
    "stamps": lambda why: _joined((hit.stamp_us - START_US) / SECOND for hit in why.hits),
    "hits": lambda why: len(why.hits),
}
