"""The program, and the only place where an error becomes an exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import sys
from typing import Annotated, NoReturn

import typer

from dslaunch import __version__
from dslaunch.cli import ui
from dslaunch.cli.commands import ROOT_SETTINGS, Commands
from dslaunch.cli.log_options import LogFile, Verbose
from dslaunch.cli.positional import MoreOptions
from dslaunch.errors import DslaunchError, UsageError
from dslaunch.terminal import shortened

app = typer.Typer(
    name="dslaunch",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    add_completion=True,
    context_settings=ROOT_SETTINGS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        ui.result(f"dslaunch {__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: Verbose = 0,
    log_file: LogFile = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Launch multi-node DeepSpeed and PyTorch training from one cluster file.

    --verbose and --log-file may also follow the command.

    Example: dslaunch run cluster.yaml train.py
    """


def main() -> None:
    """Run the program."""
    sys.excepthook = ui.show_traceback
    # at its end Python looks for garbage among all that is there, several times
    atexit.register(gc.freeze)
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            # the locale may be C or Latin-1, but files and nodes have UTF-8. On standard output,
            # arguments and variables that are not UTF-8 are printed as their original bytes
            stream.reconfigure(encoding="utf-8", errors=errors)
    try:
        _invoke(sys.argv[1:])
    except DslaunchError as error:
        ui.error(error)
        sys.exit(error.exit_code)
    except OSError as error:
        shown = _of_any_command(error)
        if shown is None:
            raise
        ui.error(shown)
        sys.exit(shown.exit_code)
    except Exception as error:
        from dslaunch.registry import raised_in_plugin

        broken = raised_in_plugin(error)
        if broken is None:
            raise
        ui.error(broken)
        sys.exit(broken.exit_code)


def _of_any_command(error: OSError) -> DslaunchError | None:
    """Return the error for users if any command may cause it; None: it is a defect of ours."""
    if error.errno == errno.ENOSPC:
        return DslaunchError(f"{error.filename or 'standard output'}: {error.strerror}")
    if error.errno == errno.ENOENT and error.filename is None:  # os.getcwd
        return UsageError("the current directory no longer exists", hint="run: cd")
    if error.errno == errno.ENAMETOOLONG:
        return UsageError(f"{shortened(str(error.filename))}: {error.strerror}")
    return None


def _invoke(args: list[str]) -> NoReturn:
    """Parse, call and exit; parse again for options after the first words."""
    own: list[str] = []
    while True:
        try:
            sys.exit(app(args, prog_name="dslaunch", obj=own, standalone_mode=False))
        except MoreOptions as more:
            args = args[: len(args) - more.unread] + more.rest
            own = more.own
        except Exception as error:
            from dslaunch.cli.usage_errors import is_usage_error

            if not is_usage_error(error):
                raise
            _show_usage_error(error, args)


def _show_usage_error(error: Exception, args: list[str]) -> NoReturn:
    """Print what is wrong with the command line, or the help where there is none, and exit."""
    if type(error).__name__ == "NoArgsIsHelpError":
        ui.say(str(error).rstrip("\n"))
    else:
        from dslaunch.cli.usage_errors import usage_error

        ui.error(usage_error(error, args))
    sys.exit(UsageError.exit_code)
