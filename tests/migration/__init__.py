"""The tables: made once, by whoever comes first, the same by program and by hand (R35, HZ-67)."""
