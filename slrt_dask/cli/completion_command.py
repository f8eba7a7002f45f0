"""The command that lets a shell complete what is typed."""

from __future__ import annotations

import click

from slrt_dask.cli.options import common_options

PROGRAM = "slrt-dask"
ASKED_BY_THE_SHELL = "_SLRT_DASK_COMPLETE"
"""The variable through which a shell asks the program, as click names it."""
SHELLS = ("bash", "zsh", "fish")
MENDED = {
    # A file in the fpath becomes a function: loaded at the first Tab, called as one at all others.
    "zsh": ("== loadautofunc ]]", "== (loadautofunc|shfunc) ]]"),
    # What is told has one comma before the word, and more of them in its description.
    "fish": ('string split ","', 'string split --max 1 ","'),
}
"""What click's script has, and what it has to have instead."""


@click.command(short_help="Print a script with which Tab completes commands.")
@click.argument("shell", type=click.Choice(SHELLS))
@common_options
def completion(shell: str) -> None:
    """Print a script with which SHELL completes commands, options and paths when Tab is pressed.

    Put it where your shell looks for such scripts, once, and start a new shell.

    \b
    Examples:
      slrt-dask completion bash > ~/.local/share/bash-completion/completions/slrt-dask
      slrt-dask completion zsh > ~/.zfunc/_slrt-dask
      slrt-dask completion fish > ~/.config/fish/completions/slrt-dask.fish

    Make the directory first where there is none. For bash the package bash-completion has to be
    installed; without it, write the script to a file and add "source THAT_FILE" to ~/.bashrc. For
    zsh, ~/.zshrc needs "fpath+=~/.zfunc" and, after that, "autoload -Uz compinit && compinit".
    """
    from click.shell_completion import get_completion_class

    program = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    script = kind(program, {}, PROGRAM, ASKED_BY_THE_SHELL).source()
    click.echo(script.replace(*MENDED[shell]) if shell in MENDED else script)
