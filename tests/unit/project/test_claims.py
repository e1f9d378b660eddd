"""What README and docs say of capline, where it was once said wrongly: a sentence stands as it holds, or nowhere."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "pyproject.toml", *sorted((ROOT / "docs").rglob("*.md"))]
WRONG = (
    "less time than",  # redis-py's SET takes
    "a microsecond a decision",
    "hundred thousand a second",
    "nothing is skipped",  # blank lines are
    "gives the same answer, and",  # a peek without the segment
    "gets the first answer",  # a retry with an id, of which `hit` and `allowed` are
    "are no headers",  # in an outage
    "where a refusal costs most",  # `Insurance`
    "(not built yet)",  # words of the glossary
    "only the exact log has a fast path",
)
SAID = {
    "README.md": [
        "| µs a decision, two limits, and what remains: memory |",
        "| the same on Redis |",
        'Limit.margin("100/s"',
        "some twenty seconds, after a setup of a minute or\ntwo",
    ],
    "CHANGELOG.md": [
        "`Decision.as_dict()`: what the command line shows as JSON; over HTTP times are seconds (`retry_after`)"
    ],
    "docs/howto/headers.md": [
        "A retry with an id has the first answer's `allowed` and `hit`",
        "In an outage only `Insurance` has headers of limits; a refusal has `Retry-After: 1`",
    ],
    "docs/howto/waiting.md": ["the SDKs of OpenAI (3) and Anthropic (2) | `capline.middleware.httpx2`"],
    "docs/howto/web.md": [
        "Starlette, Litestar, Quart, Falcon, Sanic, Strawberry, any ASGI app",
        "Pyramid, Bottle, Falcon's `App`, any WSGI app",
    ],
    "docs/reference/benchmarks.md": [
        "capline over SET (target 0.9; other runs on Redis: **1.04 to 1.19**)",
        "On `memory://` a row takes as long as a `decide`",
    ],
    "docs/reference/campaigns.md": ["exit 1; 3 where the receiver refused all that failed for good"],
    "docs/reference/stores.md": ["On `lmdb://` text longer than 400 bytes is kept as a 256-bit hash"],
    "docs/reference/web.md": ["limits=lambda request: plans.get("],
}


def test_no_page_says_what_did_not_hold() -> None:
    texts = {page: " ".join(page.read_text(encoding="utf-8").lower().split()) for page in PAGES}
    assert [(page, words) for page, text in texts.items() for words in WRONG if words in text] == []


@pytest.mark.parametrize("page", SAID)
def test_a_page_says_what_holds(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [words for words in SAID[page] if words not in text] == []


def test_every_sample_is_python() -> None:
    """Those that need a framework or a server too; others run in tests/e2e/test_docs.py."""
    samples = [block for page in PAGES for block in re.findall(r"```py\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]
    for sample in samples:
        compile(sample, "sample", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert len(samples) > 5
