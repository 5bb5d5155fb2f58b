"""The command line is frozen: a change of a name, a type or a default is a decision.

After a decision: `python tests/commands/test_command_line.py write`, and a line in CHANGELOG.md.
"""

import inspect
import json
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from accelssl import cli

FROZEN = Path(__file__).with_name("command_line.json")


def command_line() -> dict[str, dict[str, dict[str, Any]]]:
    """Return name, type, limits and default of every parameter of every command."""
    return {
        str(command.name): {
            parameter.name: described(parameter)
            for parameter in inspect.signature(command.callback, eval_str=True).parameters.values()
        }
        for command in cli.app.registered_commands
        if command.callback
    }


def described(parameter: inspect.Parameter) -> dict[str, Any]:
    kind, *infos = get_args(parameter.annotation)
    (info,) = infos
    default = parameter.default
    return {
        "names": list(info.param_decls or ()),
        "argument": isinstance(info, typer.models.ArgumentInfo),
        "type": kind.__name__ if isinstance(kind, type) else str(kind),
        "limits": [info.min, info.max],
        "default": "required" if default is inspect.Parameter.empty else plain(default),
    }


def plain(default: Any) -> Any:
    if isinstance(default, (list, tuple)):
        return [plain(each) for each in default]
    return default if isinstance(default, (str, int, float, bool, type(None))) else str(default)


def one_option_a_line(commands: dict[str, dict[str, dict[str, Any]]]) -> str:
    texts = [
        f'"{name}": {{\n'
        + ",\n".join(f'  "{option}": {json.dumps(options[option])}' for option in sorted(options))
        + "\n}"
        for name, options in sorted(commands.items())
    ]
    return "{\n" + ",\n".join(texts) + "\n}\n"


@pytest.mark.parametrize("name", sorted(json.loads(FROZEN.read_text())) if FROZEN.exists() else [])
def test_a_command_takes_the_same_options_as_before(name: str) -> None:
    now, frozen = command_line().get(name), json.loads(FROZEN.read_text())[name]
    assert now is not None, f"the command {name} is gone"
    assert now == frozen, f"{name} has changed: see the top of {Path(__file__).name}"


def test_all_commands_are_frozen() -> None:
    assert set(command_line()) == set(json.loads(FROZEN.read_text()))


if __name__ == "__main__":
    if sys.argv[1:] != ["write"]:
        sys.exit(f"{sys.argv[0]} takes one word: write")
    FROZEN.write_text(one_option_a_line(command_line()))
