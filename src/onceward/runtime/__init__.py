"""What runs: workers, inline calls, heartbeats, the relay, the spool, processes."""
