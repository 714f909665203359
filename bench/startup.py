"""Start-up: `import onceward` beside a Python that imports nothing, and `onceward --help`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.figures import Figures
from bench.race import run
from bench.scale import Scale

_IMPORT = "import time; t = time.perf_counter(); import onceward; print(time.perf_counter() - t)"


def measure(scale: Scale, figures: Figures) -> None:
    """As often as the scale says; the first of each is not counted, for it may compile."""
    program = str(Path(sys.executable).with_name("onceward"))
    for number in range(scale.starts + 1):
        imported = float(run([sys.executable, "-c", _IMPORT]))
        began = time.perf_counter()
        run([program, "--help"])
        helped = time.perf_counter() - began
        if number:
            figures.add("start-up: import onceward (ms)", 1000 * imported)
            figures.add("start-up: onceward --help (ms)", 1000 * helped)
