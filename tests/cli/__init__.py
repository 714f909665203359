"""The command line, the supervisor and the demo, as a user meets them: real processes, real terminals."""
