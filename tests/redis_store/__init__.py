"""What only the store in Redis and Valkey has; what it shares with all is in tests/contract/test_store_suite.py."""
