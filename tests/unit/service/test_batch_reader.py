"""A large batch of attempts is read attempt by attempt, with the same outcome as when it is read whole."""

import pytest

from capline.service.http.forms import Reader
from capline.service.http.problems import Problem
from capline.service.verbs.batch import LOOP_BYTES, BatchReader, BatchRequest

GOOD = '{"policy":"promo","subject":"u"}'
FULL = '{"policy":"promo","subject":7,"cost":2,"id":"a\\"b","segment":"s","channel":"c","zone":"UTC"}'


def outcome(reader: Reader, body: str) -> BatchRequest | str:
    try:
        return reader(body.encode())
    except Problem as problem:
        return str(problem)


@pytest.mark.parametrize(
    "body",
    [
        f'{{"attempts":[{GOOD},{FULL}]}}',
        f' {{ "attempts" : [ {GOOD} , {FULL} ] }} ',
        '{"attempts":[]}',
        f'{{"att\\u0065mpts":[{GOOD}]}}',
        f'{{"attempts":[{GOOD}],"attempts":[{FULL}]}}',
        f'{{"attempts":[{GOOD}],"att\\u0065mpts":[{FULL}]}}',
        f'{{"attempts":[{GOOD}],"cost":1}}',
        f'{{"attempts":[{GOOD}],"cost":2}}',
        f'{{"attempts":[{GOOD},{{"policy":"promo"}}]}}',
        f'{{"attempts":[{GOOD},{{"policy":"promo","subject":[1]}}]}}',
        f'{{"attempts":[{GOOD},{{"policy":"promo","subject":"u","policy":"q"}}]}}',
        f'{{"attempts":[{GOOD},{{"policy":"promo","subject":"u","p\\u006flicy":"q"}}]}}',
        f'{{"attempts":[{GOOD}]',
        f'{{"attempts":[{GOOD}] x',
        f'{{"attempts":{GOOD}}}',
        '{"policy":"promo","subjects":["attempts",2]}',
    ],
)
def test_the_outcome_is_that_of_the_whole(body: str) -> None:
    large = body.ljust(LOOP_BYTES + 1)
    assert outcome(BatchReader(), large) == outcome(Reader(BatchRequest), large)
