"""Order per key, numbers within a key, versions, batches and circuits (R17 to R23)."""
