"""The words of the inbox: pure values and decisions, no I/O."""

import os

if os.name != "posix":  # here, for everything imports this room first
    raise ImportError("onceward needs a POSIX system, such as Linux. On Windows, use it in WSL or a container.")
