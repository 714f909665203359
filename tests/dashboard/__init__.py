"""The dashboard: through an HTTP client for what it says and refuses, in a real browser for what people see."""
