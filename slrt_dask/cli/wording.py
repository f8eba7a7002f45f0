"""The library's sentences in the words of the command line: `center='modes'` is `--center modes`.

Errors name arguments as Python has them, with a value or in backquotes. Those that the command has
an option for are named by it. This changes when errors name arguments in another way.
"""

from __future__ import annotations

import re
import shlex

import click

HANKEL = re.compile(r"\bconstraint=(?:slrt\.)?Hankel\(([\d, ]+)\)")


def in_options(sentence: str, command: click.Command | None) -> str:
    """The sentence with the options of a command in the place of arguments."""
    flags = {
        str(option.name): max(option.opts, key=len)
        for option in (command.params if command is not None else ())
        if isinstance(option, click.Option) and not option.opts[0].startswith("--no-")
    }
    if not flags:
        return sentence
    if "tau" in flags or "hankel" in flags:
        sentence = HANKEL.sub(lambda found: f"--hankel {found[1].replace(' ', '')}", sentence)
    names = "|".join(sorted(flags, key=len, reverse=True))

    def with_value(found: re.Match[str]) -> str:
        value = found["quoted"] or found["plain"]
        return flags[found["name"]] + ("" if value == "True" else f" {shlex.quote(value)}")

    valued = rf"(?<![\w/.-])(?P<name>{names})=(?:'(?P<quoted>[^']+)'|(?P<plain>[\w.]+))"
    sentence = re.sub(valued, with_value, sentence)
    return re.sub(rf"`({names})`", lambda found: flags[found[1]], sentence)
