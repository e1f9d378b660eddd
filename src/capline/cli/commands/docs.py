"""`capline docs`: the documentation's site, read without a network."""

import webbrowser
from typing import Annotated

import typer

from capline.cli.input.declare import Commands
from capline.cli.render.console import Answer
from capline.cli.render.site import site
from capline.model.errors import CaplineError

app = Commands()


@app.answers("capline docs", "capline docs --print")
def docs(print_: Annotated[bool, typer.Option("--print", help="Only print its first page's path.")] = False) -> Answer:
    """Open the documentation in a browser: a copy on this machine, with search.

    The package capline-docs brings the copy. Where it is not installed, one line says how to get it, and the exit
    code is 2.
    """
    folder = site()
    if folder is None:
        raise CaplineError(
            "the documentation is not installed; make docs in a clone builds it, and a wheel for pip install"
        )
    page = folder / "index.html"
    opened = not print_ and webbrowser.open(page.as_uri())
    return Answer({"page": str(page), "opened": opened}, f"{page}")
