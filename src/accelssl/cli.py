"""The door: all commands, and bad input as two sentences and exit code 2. Heavy imports wait."""

import errno
import os
import sys
from typing import Annotated, NoReturn

import typer

from accelssl.commands import evaluate, gradients, machine, plan, runs, shards, train
from accelssl.errors import UserError
from accelssl.grouped_help import WholeSentences
from accelssl.switches import refuse_misfits

app = typer.Typer(
    cls=WholeSentences,
    help="Self-supervised pretraining of Vision Transformers at a quarter of the cost.",
    epilog="A first run on real photographs, nothing to download: accelssl demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("accelssl"))
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: bad input is one sentence on what is wrong, one on what to do, exit code 2."""
    _set_defaults_of_the_environment()
    try:
        refuse_misfits()
        app()
    except UserError as error:
        _refuse(error.what, error.remedy)
    except ModuleNotFoundError as error:
        if (error.name or "accelssl").partition(".")[0] == "accelssl":
            raise
        _refuse(
            f"The package {error.name} is missing.",
            "Install accelssl again, with what it needs: pip install accelssl.",
        )
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        _refuse(
            f"{error.filename or 'A file'} could not be written: {error.strerror}.",
            "Free space and go on: train with --resume, other commands by calling them again.",
        )
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if _is_of_an_interrupt(error):
            sys.exit(130)
        raise


def _is_of_an_interrupt(error: BaseException | None) -> bool:
    """Return True if Ctrl-C during an import caused the error; packages wrap KeyboardInterrupt."""
    while error and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _refuse(what: str, remedy: str) -> NoReturn:
    print(f"error: {what}\n{remedy}", file=sys.stderr)
    sys.exit(2)


def _set_defaults_of_the_environment() -> None:
    """Set defaults that must precede the import of torch; keep the user's own settings."""
    from accelssl.pipeline.decode.hardware_queues import set_hardware_queues

    set_hardware_queues()
    # Threads that spin while they wait take the cores from decoding, and on a machine that does
    # something else besides they slow training on the CPU twenty times and more.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


shards.add_to(app)
train.add_to(app)
evaluate.add_to(app)
gradients.add_to(app)
runs.add_to(app)
plan.add_to(app)
machine.add_to(app)
