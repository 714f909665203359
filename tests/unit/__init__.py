"""Tests without a database: values and decisions by example and property, steps by hand-fed answers."""
