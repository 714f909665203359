"""A store in memory: the reference for those who write stores, and quick where durability is not what is tested."""

from onceward.testing.memory.recorder import Recorder
from onceward.testing.memory.store import MemoryStore

__all__ = ["MemoryStore", "Recorder"]
