"""The recipes beside other frameworks: their pages, run with real brokers and kill -9."""
