"""Errors of the option parser in the style of all errors: what is wrong, then a hint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dslaunch.cli import foreign_options
from dslaunch.errors import UsageError
from dslaunch.terminal import visible
from dslaunch.texts import closest

ALIKE = 0.75
"""How alike a misspelled option and ours must be: a wrong suggestion is worse than none."""
_PYDANTIC = (
    (r"Input should be a valid integer.*", "not an integer"),
    (r"Input should be a valid number.*", "not a number"),
    (r"Input should be greater than or equal to (.+)", r"expected at least \1"),
    (r"Input should be less than or equal to (.+)", r"expected at most \1"),
    (r"Input should be (.+)", r"expected \1"),
)
"""Messages of pydantic, which checks the values, and how dslaunch says the same."""


def is_usage_error(error: BaseException) -> bool:
    """Return whether an exception is one of typer's own for a wrong command line."""
    return hasattr(error, "format_message") and hasattr(error, "ctx")


def usage_error(error: Any, args: Sequence[str]) -> UsageError:
    """Return typer's exception for a command line as an error of ours."""
    context = error.ctx
    help_hint = f"see `{context.command_path} -h`" if context else "see `dslaunch -h`"
    name = type(error).__name__
    if name == "NoSuchOption":
        return _unknown_option(error, args, help_hint)
    if name == "MissingParameter":
        return UsageError(f"missing {_parameter(error)}", hint=help_hint)
    if name == "BadParameter":
        return UsageError(f"{_given(error, args)}: {_reason(error.message)}", hint=help_hint)
    if "unexpected extra argument" in error.message:
        return _extra_words(error, help_hint)
    return UsageError(_lower(error.format_message()), hint=help_hint)


def empty_value(*names: str) -> UsageError:
    """Return the error for options or arguments with an empty value: an unset variable of the
    shell must not mean the default, or the current directory."""
    return UsageError(
        f"{', '.join(names)}: the value is empty",
        hint="check the shell variable in it, or omit the option",
    )


def _extra_words(error: Any, help_hint: str) -> UsageError:
    """Return the error for words that a command does not take; they may be nodes."""
    options = {name for each in error.ctx.command.params for name in each.opts}
    hint = help_hint
    if _path(error) == "dslaunch init":
        hint = f"name the source: --hosts NODES or --hostfile FILE\n{help_hint}"
    elif "--include" in options:
        hint = f"select nodes with --include NODES\n{help_hint}"
    words = error.message.rpartition("(")[2].removesuffix(")")
    return UsageError(f"unexpected arguments of `{_path(error)}`: {words}", hint=hint)


def _given(error: Any, args: Sequence[str]) -> str:
    """Return the option that an error is about as the user wrote it, with its value."""
    names = error.param.opts if error.param is not None else ()
    for word, following in zip(args, (*args[1:], ""), strict=True):
        option, equals, value = word.partition("=")
        own = f"--{foreign_options.own_name(option[2:])}" if option[:2] == "--" else option
        if own in names:
            return visible(f"{option} {value if equals else following}")
    return _parameter(error)


def _unknown_option(error: Any, args: Sequence[str], help_hint: str) -> UsageError:
    option = error.option_name
    written = _written(option, args)
    hint = foreign_options.instead(option, _path(error).rpartition(" ")[2])
    if hint is None:
        near = _nearest(option, error)
        hint = f"did you mean {near}?\n{help_hint}" if near else help_hint
        if not near and _takes_script(error):
            hint = f"an option of the script follows its name: SCRIPT {written}\n{help_hint}"
    return UsageError(f"unknown option {written} of `{_path(error)}`", hint=hint)


def _takes_script(error: Any) -> bool:
    """Return whether a script and its options are among the arguments of the command."""
    if error.ctx is None:
        return False
    return any(
        "SCRIPT" in (each.metavar or "")
        for each in error.ctx.command.params
        if each.param_type_name == "argument"
    )


def _nearest(option: str, error: Any) -> str:
    """Return the option of the command that is most like an unknown one; empty if none is."""
    if error.ctx is None or not option.startswith("--"):
        return ""
    names = (name for each in error.ctx.command.params for name in each.opts)
    known = [name[2:] for name in names if name.startswith("--")]
    found = closest(option[2:], known, ratio=ALIKE)
    return f"--{found}" if found else ""


def _written(option: str, args: Sequence[str]) -> str:
    """Return an option as the user wrote it; the parser reports dslaunch's spelling."""
    for word in args:
        name = word.partition("=")[0]
        if name.startswith("--") and f"--{foreign_options.own_name(name[2:])}" == option:
            return visible(name)
    return str(option)


def _path(error: Any) -> str:
    return error.ctx.command_path if error.ctx is not None else "dslaunch"


def _parameter(error: Any) -> str:
    """Return the option or argument that an error is about."""
    parameter = error.param
    if parameter is None:
        return str(error.param_hint or "argument")
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name)
    longest = max(parameter.opts, key=len)
    return " ".join(filter(None, (longest, parameter.metavar)))


def _reason(message: str) -> str:
    for pattern, text in _PYDANTIC:
        found = re.fullmatch(pattern, message)
        if found is not None:
            return found.expand(text)
    return _lower(message)


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:].removesuffix(".")
