"""Programs whose names the code of pages uses."""
