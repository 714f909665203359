"""Where a contender works: given to each of its processes in the environment, which any way of starting one keeps."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "FAULTS_PLACE"


@dataclass(frozen=True, slots=True)
class Place:
    """The servers of one trial, its folder, and the settings of its contender."""

    database: str
    """The URL of the database that the effects are in."""
    folder: str
    rabbitmq: str = ""
    redis: str = ""
    lease_seconds: float = 4.0
    """For how long a silent worker keeps its messages, wherever a contender can be told."""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def attempts(self) -> Path:
        """A folder with a file for each message, as long as it had attempts."""
        return Path(self.folder) / "attempts"

    def environment(self) -> dict[str, str]:
        """For a process of this trial."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}


def here() -> Place:
    """The place of this process."""
    return Place(**json.loads(os.environ[VARIABLE]))
