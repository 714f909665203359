"""What a message suffers from others: slow, failing, held and crashed ones, and bursts. Uses the public interface alone.

So the same scenarios measure older code too (`bench/before.py`): each runs in a process of its own.
"""
