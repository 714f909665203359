"""The address of a broker: a URL whose query holds the options.

Each broker states its address as a form, such as `redis://host:6379/0?stream=NAME&group=onceward`: what is in capitals
must be given, everything else is a default. Nothing outside of the form is accepted, so that a misspelt option is not
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from onceward.errors import ConfigurationError

DAY_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, read against its form."""

    server: str = field(repr=False)
    """The URL without the options; credentials and all, for the client."""
    shown: str
    """The same for logs and errors, without credentials."""
    options: Mapping[str, str]
    host: str
    """With its port, without credentials."""
    path: str
    """Without the slashes around it."""

    @classmethod
    def of(cls, url: str, form: str) -> Address:
        """Read a URL; raises `ConfigurationError` with the form where it does not follow it."""
        parts, wanted = urlsplit(url), urlsplit(form)
        given, known = _options(parts.query), _options(wanted.query)
        host, path = parts.netloc.rpartition("@")[2], parts.path.strip("/")
        places = {wanted.netloc: host, wanted.path.strip("/"): path}
        missing = [name for name, value in places.items() if name.isupper() and not value]
        missing += [name for name, value in known.items() if value.isupper() and not given.get(name)]
        unknown = sorted(set(given) - set(known))
        problem = ""
        if "#" in url:
            problem = "a # in it is written %23"
        elif not _has_good_port(parts):
            problem = "its port cannot be read"
        elif unknown:
            problem = f"{', '.join(unknown)} is not known"
        elif missing:
            problem = f"{', '.join(missing)} is missing"
        if problem:
            raise ConfigurationError(f"this address should be like {form}, but {problem}")
        return cls(
            server=urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
            shown=f"{parts.scheme}://{host}{parts.path}",
            options={**known, **given},
            host=host,
            path=path,
        )

    def __getitem__(self, name: str) -> str:
        return self.options[name]

    def seconds(self, name: str, *, highest: float = DAY_SECONDS) -> float:
        """An option that is a number of seconds, at least one."""
        return self._number(name, highest, "seconds")

    def count(self, name: str, *, highest: int) -> int:
        """An option that is a whole number, at least one."""
        number = self._number(name, highest, "")
        if number != int(number):
            raise ConfigurationError(f"{name}={self[name]} must be a whole number")
        return int(number)

    def _number(self, name: str, highest: float, unit: str) -> float:
        try:
            number = float(self[name])
        except ValueError:
            number = 0.0
        if not 1 <= number <= highest:
            raise ConfigurationError(f"{name}={self[name]} must be 1 to {highest:g} {unit}".rstrip())
        return number


def _has_good_port(parts: SplitResult) -> bool:
    try:
        return "," in parts.netloc or parts.port != 0  # a list of hosts is its client's to read
    except ValueError:
        return False


def _options(query: str) -> dict[str, str]:
    # A plus is a plus, as in a filter of topics: only forms of web pages mean a space.
    pairs = parse_qs(query.replace("+", "%2B"), keep_blank_values=True)
    return {name: values[-1] for name, values in pairs.items()}
