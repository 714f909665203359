"""What is found by the scheme of a URL: entry points of a group, ours and those of other packages alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def scheme(url: str) -> str:
    """What stands before the first colon."""
    return url.partition(":")[0]


def found(group: str, noun: str, url: str, advice: str = "") -> EntryPoint:
    """The entry point for a URL; raises `ConfigurationError` where there is none, or more than one."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer than all that most programs need

    installed = entry_points(group=group)
    named = {entry.value: entry for entry in installed.select(name=scheme(url))}
    if not named:
        schemes = ", ".join(sorted(installed.names)) or "none, not even onceward's own: install it again"
        raise ConfigurationError(f"no {noun} for {scheme(url)!r} URLs; installed are: {schemes}{advice}")
    if len(named) > 1:
        packages = " and ".join(sorted(map(package, named.values())))
        raise ConfigurationError(f"{scheme(url)!r} URLs belong to {packages}; uninstall all but one of them")
    (entry,) = named.values()
    return entry


def package(entry: EntryPoint) -> str:
    """Whose an entry point is."""
    return entry.dist.name if entry.dist is not None else entry.value
