"""Help in plain text: options under headings, which typer has with rich alone, commands in whole
sentences."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

TRAINING = "Training"
ONE_METHOD = "Of some methods alone"
GOING_ON = "Stopping and going on"
MACHINE = "On this machine"


class GroupedHelp(TyperCommand):
    """Help with options grouped by `rich_help_panel`; others stand under "Options"."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = f"{parameter.param_type_name}s".capitalize()
                heading = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class WholeSentences(TyperGroup):
    """Help that shows a command's whole description; typer's own help cuts it after one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(limit=1000))
                    for name, command in commands.items()
                    if command is not None and not command.hidden
                ]
            )
