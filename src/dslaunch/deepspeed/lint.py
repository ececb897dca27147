"""Lint a DeepSpeed config: report what DeepSpeed would ignore, convert or stop at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from dslaunch.deepspeed import arguments
from dslaunch.deepspeed import config_text as reading
from dslaunch.deepspeed.linted_config import LintedConfig, Reader
from dslaunch.deepspeed.other_file import other_file
from dslaunch.deepspeed.rules import rules
from dslaunch.deepspeed.template import template, unreadable_template
from dslaunch.errors import ConfigError
from dslaunch.lint import Remark, Screened, Suppression, screened, suppressions

KEY = "_dslaunch_ignore"
"""The key of a config that lists rules to ignore, since JSON has no comments: `rule`, or
`rule:path` for one place. DeepSpeed ignores unknown keys at the top level."""


def lint(config: LintedConfig) -> tuple[Remark, ...]:
    """Return the findings of all rules, by position, without those that the config ignores."""
    return verdict(config).kept


def verdict(config: LintedConfig, ignore: Collection[str] = ()) -> Screened:
    """Return the findings of all rules, by position, and the number of ignored ones.

    Ignored are the rules that the config lists, and those of `ignore`.
    """
    document = config.document
    remarks = _remarks(config)
    inside = (*suppressions(document.text), *_listed(document))
    return screened(remarks, file=document.file, known=rules().names, ignore=ignore, inside=inside)


def _remarks(config: LintedConfig) -> Iterable[Remark]:
    """Return all findings; one for a template or a file of another program."""
    alone = template(config) or other_file(config)
    if alone:
        return (alone,)
    return dict.fromkeys(rules().remarks(config))


def _listed(document: reading.ConfigDocument) -> Iterator[Suppression]:
    """Yield the rules that the config itself lists to ignore."""
    data = document.data
    listed = data.get(KEY) if isinstance(data, dict) else None
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        line, column = document.place(document.span((KEY, index)).start)
        rule, _, path = str(entry).partition(":")
        yield Suppression(rule, line, column, path=path or None)


def read(
    text: str, file: str, reader: Reader | None = None, words: Iterable[str] = ()
) -> tuple[reading.ConfigDocument, Reader]:
    """Parse a config as its reader does; None: the reader that `guess_reader` returns.

    Raises ConfigError for invalid syntax.
    """
    document = reading.parse(text, file, by_python=reader != "native")
    found = reader or guess_reader(document, words)
    if reader is None and found == "native":
        document = reading.parse(text, file)
    return document, found


def unreadable(error: ConfigError, text: str = "") -> tuple[Remark, ...]:
    """Return the findings for a text that cannot be parsed."""
    filled_in = unreadable_template(text, error.problems[0].file)
    if filled_in:
        return (filled_in,)
    return tuple(
        Remark(
            rule="syntax",
            level="error",
            file=problem.file,
            line=problem.line,
            column=problem.column,
            path=problem.path,
            message=problem.message,
            fix="correct the syntax; nothing else was checked",
            source="DeepSpeed reads HJSON",
        )
        for problem in error.problems
    )


def guess_reader(document: reading.ConfigDocument, words: Iterable[str] = ()) -> Reader:
    """Return the program that passes a config to DeepSpeed: Hugging Face if the config has `auto`
    or the script has arguments of the Trainer; otherwise the script itself."""
    of_trainer = set(arguments.DEFAULTS) - {"gradient_accumulation_steps"}
    named = set(arguments.read(list(words)).given) & of_trainer
    return "hf" if named or _has_auto(document.data) else "native"


def _has_auto(value: object) -> bool:
    """Return whether a value is `auto`, except where DeepSpeed itself has that value."""
    if isinstance(value, dict):
        return any(_has_auto(v) for k, v in value.items() if k not in OWN_AUTO)
    return value == "auto"


OWN_AUTO = ("pipeline", "zenflow", "expert_parallel", "data_types")
"""Sections in which `auto` is a value of DeepSpeed itself."""
