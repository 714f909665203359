"""An inbox inside web applications: real servers, real signals, real kills."""
