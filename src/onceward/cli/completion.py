"""`onceward completion`: the script that teaches a shell to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

HINT = {
    "bash": 'eval "$(onceward completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(onceward completion zsh)"    # in ~/.zshrc',
    "fish": "onceward completion fish > ~/.config/fish/completions/onceward.fish",
}


@click.command(
    epilog="\b\nExamples:\n" + "".join(f"  {line}\n" for line in HINT.values()),
)
@click.argument("shell", type=click.Choice(sorted(HINT)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - the choices are click's own
    group = context.find_root().command
    click.echo(kind(group, {}, "onceward", "_ONCEWARD_COMPLETE").source())
