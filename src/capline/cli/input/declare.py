"""How a command is declared: its examples, the options of a group, and `--json` with what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from typer.core import TyperGroup

    from capline.cli.render.console import Answer

_Verb = TypeVar("_Verb", bound="Callable[..., None]")
_Answers = TypeVar("_Answers", bound="Callable[..., Answer | None]")

_JSON = Parameter(
    "json",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--json", help="Answer in JSON, for machines; nothing else on standard output.")
    ],
)

_MOST_EXAMPLES = 4
"""Of a group: the first of each of its first commands."""


class Commands(typer.Typer):
    """Commands; with a name, a group of them, like `capline segments`.

    A parameter whose type is a dataclass stands for the options that are the fields of the dataclass.
    """

    def __init__(
        self, name: str | None = None, summary: str | None = None, *, cls: type[TyperGroup] | None = None
    ) -> None:
        self._examples: list[str] = []
        super().__init__(
            name=name,
            cls=cls,
            help=summary,
            no_args_is_help=True,
            rich_markup_mode="rich",
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def verb(self, *examples: str) -> Callable[[_Verb], _Verb]:
        """Make a function a command of its name, with these examples at the end of its help page."""

        def declare(function: _Verb) -> _Verb:
            self._declare(function, signature(function, eval_str=True), examples)
            return function

        return declare

    def answers(
        self, *examples: str, help: str | None = None, name: str | None = None
    ) -> Callable[[_Answers], _Answers]:
        """The same for a function that returns an `Answer`: the command prints it, in JSON with `--json`.

        A function with a parameter `json` is told which of the two it will be. None means that all was printed.
        """

        def declare(function: _Answers) -> _Answers:
            typed = signature(function, eval_str=True)
            told = "json" in typed.parameters
            parameters = [parameter for parameter in typed.parameters.values() if parameter.name != "json"]

            @wraps(function)
            def answering(*, json: bool, **options: Any) -> None:
                answer = function(**options, **({"json": json} if told else {}))
                if answer is not None:
                    answer.end(json=json)

            self._declare(answering, Signature([*(_by_keyword(parameters)), _JSON]), examples, help, name)
            return function

        return declare

    def _declare(
        self,
        function: Callable[..., None],
        typed: Signature,
        examples: tuple[str, ...],
        help: str | None = None,
        name: str | None = None,
    ) -> None:
        self._examples += examples[:1]
        self.info.epilog = _shown(self._examples[:_MOST_EXAMPLES])
        self.command(name or function.__name__.strip("_"), help=help, epilog=_shown(examples))(_spread(function, typed))


def _shown(examples: Sequence[str]) -> str:
    return "\n\n".join(("[bold]Examples[/]", *examples))


def _spread(function: Callable[..., None], typed: Signature) -> Callable[..., None]:
    """The function as typer reads and calls it: with the options of each group in place of the group."""
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for name, parameter in typed.parameters.items():
        group: Any = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[name] = group
            parameters += signature(group, eval_str=True).parameters.values()
        else:
            parameters.append(parameter)

    @wraps(function)
    def called(**options: Any) -> None:
        for name, group in groups.items():
            options[name] = group(**{option: options.pop(option) for option in signature(group).parameters})
        function(**options)

    called.__signature__ = Signature(_by_keyword(parameters))  # pyright: ignore[reportAttributeAccessIssue] - as inspect reads it
    return called


def _by_keyword(parameters: list[Parameter]) -> list[Parameter]:
    """By keyword, as options with defaults stand before arguments without one."""
    return [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
