"""Help for commands with many options: under headings, which typer has with rich alone."""

from typing import Any

from typer.core import TyperCommand

TRAINING = "Training"
ONE_METHOD = "Of some methods alone"
GOING_ON = "Stopping and going on"
MACHINE = "On this machine"


class GroupedHelp(TyperCommand):
    """Options stand under their `rich_help_panel`, those without one under "Options"."""

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
