"""The test kit itself is tested: it catches careless handlers, says why, and lets correct ones pass."""
