"""Run the programs of bench/ and write what they found to docs/reference/benchmarks.md and its charts.

Each program runs so often, in a process of its own; its figures are kept in bench/results, and page and charts are
drawn from these files alone. A row of the page is a figure with a target or with peers: the median of the runs, and the
lowest and the highest. A wrong answer ends it with 1; a time never does. `--short` runs each at its smallest, checks
the answers and writes nothing; `--runs 0` draws again what was kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

from _harness import shown
from proof.options import Options
from tools.picture import COLOURS

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
PAGE = DOCS / "reference" / "benchmarks.md"
RESULTS = HERE / "results"
PROGRAMS = {
    "paths": "--rounds=1",
    "decide": "--rounds=20",
    "flat": "--hits=1000 --decisions=100",
    "many": "--subjects=10000",
    "several_policies": "--rounds=1 --kinds=memory,lmdb",
    "algorithms": "--rounds=1",
    "import_time": "--rounds=1",
    "redis_paths": "--rounds=1 --kinds=redis",
    "redis_one": "--rounds=1 --hits=1000 --decisions=100",
    "redis_async": "--concurrent=100 --rounds=1",
    "redis_bulk": "--users=10000 --rounds=1",
    "redis_campaign": "--users=20000 --batch=1000",
    "verbs": "--rounds=1",
    "keep_free": "--rounds=1 --kinds=memory,lmdb,redis",
    "acquire": "--slots=640",
    "overrides": "--overrides=1000 --calls=1000 --rounds=1",
    "service": "--requests=2000 --rounds=1 --batches=4",
    "service_parts": "--rounds=10",
    "console": "--seconds=5 --decisions=1000",
    "instances": "--requests=2000 --rounds=1",
    "envoy_grpc": "--calls=500 --rounds=1",
    "envoy_filter": "--requests=500 --rounds=1",
    "web": "--short",
    "tasks": "--tasks=60",
    "campaign_ids": "--ids=20000",
    "campaign_delay": "--users=3000 --batch=500 --waits=12",
    "conflicts": "--users=20000",
    "webhook": "--users=2000 --single=400 --rounds=1",
    "smtp": "--users=1000 --slow=500",
    "replay": "--rows=20000 --suggest=20000",
    "by_rules": "--rows=100000",
    "segments_country": "--users=1000000 --audience=10000",
    "segments_swap": "--users=1000000 --swaps=2",
    "growth": "--short",
}
"""In the page's order, each with the options of its smallest run."""
BY_HAND = "## Earlier runs\n"
"""From this line on the page is nobody's but its author's."""
HEAD = """# Benchmarks

All parties share the cores of one machine, servers and load generators included, so ratios say more than times. A run's
figure is its best round, as noise only adds; a row is the median of its runs, with the lowest and the highest. Peers
did the same work in the same run, and every answer was checked. Where a peer says only yes or no, capline also says
what is left and when more is. What misses its target stands in **bold**.
"""
PICTURE = """<picture>
  <source media="(prefers-color-scheme: dark)" srcset="../_static/benchmarks-dark.svg">
  <img src="../_static/benchmarks-light.svg" width="760" alt="How many times as fast as the fastest peer, by row">
</picture>
"""
FOOT = """## How to run it

`make bench` runs everything, some hours, and writes this page; `python bench/page.py --only paths --runs 1` a part,
`python bench/paths.py` one program with all its figures. `make test-deep` runs the rows with peers at their
smallest: a wrong answer fails, a time never does.
"""

Figure = dict[str, Any]


def output(name: str, *options: str) -> dict[str, Any]:
    """What one run of a program printed; the end of this one where an answer was wrong."""
    command = [sys.executable, str(HERE / f"{name}.py"), *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        sys.exit(f"bench/{name}.py ended with {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def together(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The runs of a program as one report: `value` is the median, `values` are all; peers have their medians."""
    report, beside = runs[0], [{figure["name"]: figure for figure in run["figures"]} for run in runs]
    report["load"] = max(run["load"] for run in runs)
    for figure in report["figures"]:
        same = [figures[figure["name"]] for figures in beside if figure["name"] in figures]
        figure["values"] = [float(f"{one['value']:.4g}") for one in same]
        figure["value"] = statistics.median(figure["values"])
        peers = {peer: statistics.median(one["peers"][peer] for one in same) for peer in figure["peers"]}
        figure["peers"] = {peer: float(f"{value:.4g}") for peer, value in peers.items()}
        if figure["met"] is not None:
            bound = float(figure["target"].split()[-1].replace(",", ""))
            figure["met"] = figure["value"] <= bound if "most" in figure["target"] else figure["value"] >= bound
    return report


def results() -> dict[str, dict[str, Any]]:
    """What was kept, by program."""
    kept = {name: RESULTS / f"{name}.json" for name in PROGRAMS}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in kept.items() if path.exists()}


def rows_of(report: dict[str, Any]) -> list[Figure]:
    """The figures that the page shows."""
    return [figure for figure in report["figures"] if figure["target"] or figure["peers"]]


def ahead(figure: Figure) -> float:
    """How many times better than the best of its peers; of what is counted a second or wanted high, more is better."""
    if figure["unit"].endswith("/s") or figure["target"].startswith("at least"):
        return figure["value"] / max(figure["peers"].values())
    return min(figure["peers"].values()) / figure["value"]


def table(report: dict[str, Any]) -> list[str]:
    """The rows of one program."""
    lines = ["| | median | lowest to highest | target | peers |", "|---|---:|---:|---|---|"]
    for figure in rows_of(report):
        value = f"{shown(figure['value'])} {figure['unit']}"
        values = figure["values"]
        spread = f"{shown(min(values))} to {shown(max(values))}" if len(values) > 1 else ""
        peers = ", ".join(f"{peer} {shown(value)}" for peer, value in figure["peers"].items())
        bold = f"**{value}**" if figure["met"] is False else value
        lines.append(f"| {figure['name']} | {bold} | {spread} | {figure['target']} | {peers} |")
    return lines


def short_of(found: dict[str, dict[str, Any]]) -> list[str]:
    """What misses its target, each with its reason."""
    lines = [
        f"- {figure['name']}: {shown(figure['value'])} {figure['unit']}, target {figure['target']}."
        + (f" {figure['why']}." if figure["why"] else "")
        for report in found.values()
        for figure in rows_of(report)
        if figure["met"] is False
    ]
    return lines or ["Nothing that was run."]


def page(found: dict[str, dict[str, Any]]) -> str:
    """The written part of the page."""
    machines = sorted({report["machine"] for report in found.values()})
    versions = sorted({f"{name} {number}" for report in found.values() for name, number in report["versions"].items()})
    lines = [HEAD]
    if found:
        load = max(report["load"] for report in found.values())
        lines += [f"{'; '.join(machines)}. {', '.join(versions)}.", ""]
        lines += [f"The highest load of the machine as a program began was {load:.1f}: an idle one has about 0.", ""]
    if charted(found):
        lines += [PICTURE]
    if found:
        lines += ["## What falls short", "", *short_of(found), ""]
    for name, report in found.items():
        if rows_of(report):
            runs = len(report["figures"][0]["values"])
            lines += [
                f"## {report['title']}",
                "",
                f"`bench/{name}.py`, {runs} run{'s' * (runs > 1)}.",
                "",
            ]
            lines += [*table(report), ""]
    missing = [f"`bench/{name}.py`" for name in PROGRAMS if name not in found]
    if missing:
        lines += ["## Not run", "", f"{', '.join(missing)}: not run since rows are kept.", ""]
    return "\n".join([*lines, FOOT])


def charted(found: dict[str, dict[str, Any]]) -> list[tuple[str, float]]:
    """The rows with peers, each with how far it is ahead."""
    return [
        (figure["name"], ahead(figure)) for report in found.values() for figure in rows_of(report) if figure["peers"]
    ]


def chart(found: dict[str, dict[str, Any]], scheme: str) -> str:
    """Bars as SVG in the colours of a scheme: as fast as the fastest peer is 1."""
    colour, rows = COLOURS[scheme], charted(found)
    left, unit, most, step = 340, 60, 6, 20
    bottom = 30 + step * len(rows)

    def word(x: float, y: float, text: str, kind: str, anchor: str) -> str:
        return (
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="12" fill="{colour[kind]}">{escape(text)}</text>'
        )

    box = f'viewBox="0 0 760 {bottom + 10}" role="img" font-family="system-ui, sans-serif"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        "<title>How many times as fast as the fastest peer</title>",
        word(left + unit, 16, "the fastest peer", "soft", "middle"),
    ]
    for number, (name, ratio) in enumerate(rows):
        y = 30 + step * number
        long, kind = round(min(ratio, most) * unit, 1), "hit" if ratio >= 1 else "no"
        parts += [
            word(left - 8, y + 12, name, "text", "end"),
            f'<rect x="{left}" y="{y + 2}" width="{long}" height="13" fill="{colour[kind]}"/>',
            word(left + long + 6, y + 12, f"{ratio:.2g}", "soft", "start"),
        ]
    parts += [f'<path d="M{left + unit} 22V{bottom}" stroke="{colour["line"]}" stroke-width="2"/>', "</svg>\n"]
    return "\n".join(parts)


def drawn() -> dict[Path, str]:
    """Every file that is written, from what was kept."""
    found = results()
    by_hand = PAGE.read_text(encoding="utf-8").partition(BY_HAND)
    files = {PAGE: page(found) + ("\n" + "".join(by_hand[1:]) if by_hand[1] else "")}
    if charted(found):
        files |= {DOCS / "_static" / f"benchmarks-{scheme}.svg": chart(found, scheme) for scheme in COLOURS}
    return files


def names(text: str) -> list[str]:
    """The type of `--only`."""
    unknown = set(text.split(",")) - set(PROGRAMS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no program {', '.join(sorted(unknown))}")
    return text.split(",")


def main() -> None:
    """Run, keep, draw."""
    parser = Options("python bench/page.py", __doc__ or "", "--only paths,service --runs 1")
    parser.add_argument("--runs", type=int, default=3, help="of each program; default: %(default)s")
    parser.add_argument("--only", type=names, default=list(PROGRAMS), help="programs, separated by commas")
    parser.add_argument("--short", action="store_true", help="each at its smallest, for the answers alone")
    options = parser.parse_args()
    for name in options.only:
        if options.short or options.runs > 0:
            print(f"bench/{name}.py", flush=True)
        if options.short:
            output(name, *PROGRAMS[name].split())
        elif options.runs > 0:
            report = together([output(name) for _ in range(options.runs)])
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not options.short:
        for path, text in drawn().items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
