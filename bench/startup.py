"""Start-up: `import onceward` and `onceward --help`, from bytecode, as `pip install` leaves it.

An environment that forbids Python to write bytecode makes every start compile a checkout anew, and an installed package
never: here it is written all the same, to a folder of its own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from bench.figures import Figures
from bench.race import run
from bench.scale import Scale

_IMPORT = "import time; t = time.perf_counter(); import onceward; print(time.perf_counter() - t)"


def measure(scale: Scale, figures: Figures) -> None:
    """As often as the scale says, in each repetition; the first of each is not counted, for it compiles."""
    program = str(Path(sys.executable).with_name("onceward"))
    with tempfile.TemporaryDirectory() as folder:
        compiled = ["env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPYCACHEPREFIX={folder}"]
        for number in range(scale.starts + 1):
            imported = float(run([*compiled, sys.executable, "-c", _IMPORT]))
            began = time.perf_counter()
            run([*compiled, program, "--help"])
            helped = time.perf_counter() - began
            if number:
                figures.add("start-up: import onceward (ms)", 1000 * imported)
                figures.add("start-up: onceward --help (ms)", 1000 * helped)
