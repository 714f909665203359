"""SQLite through the standard library; async work needs `onceward[sqlite]`."""
