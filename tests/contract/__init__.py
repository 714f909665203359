"""What onceward promises, each promise written once and kept on every store by `def` and `async def` handlers alike."""
