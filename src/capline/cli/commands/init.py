"""`capline init`: a small project that runs as it stands, to start from."""

import shlex
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer, out, plain
from capline.model.errors import InvalidValueError

app = Commands()


class Kind(StrEnum):
    """What the project does."""

    campaign = "campaign"
    provider = "provider"
    api = "api"


_NEXT = {
    Kind.campaign: (
        "capline segments build users.csv --out segments/today",
        "capline campaign plan campaign.yaml",
        "capline campaign run campaign.yaml",
        "capline explain promo 42 --campaign campaign.yaml",
    ),
    Kind.provider: ("python worker.py", "python worker.py --free"),
    Kind.api: ("python app.py", "curl -i http://127.0.0.1:8000/   # in another terminal, four times"),
}


@app.answers("capline init campaign spring", "capline init provider", "capline init api shop --json")
def init(
    kind: Annotated[
        Kind, typer.Argument(help="campaign: cap messages by segment; provider: share a quota; api: refuse requests.")
    ],
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="An empty or a new folder.")] = Path(),
) -> Answer:
    """Write a small project that runs as it stands, and print what to type next. Overwrites nothing."""
    sources = sorted(
        (file for file in (resources.files("capline.cli") / "projects" / kind).iterdir() if file.is_file()),
        key=lambda file: file.name,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InvalidValueError(f"{folder}: not empty; name a new folder: capline init {kind} NAME")
        for source in sources:
            with (folder / source.name).open("x", encoding="utf-8") as file:
                file.write(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidValueError(f"{folder}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    steps = [*([] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]), *_NEXT[kind]]

    def lines() -> None:
        out.print(f"Wrote {', '.join(source.name for source in sources)}. Next:")
        for step in steps:
            out.print(f"  {plain(step)}", soft_wrap=True)

    return Answer({"folder": str(folder), "files": [source.name for source in sources], "next": steps}, lines)
