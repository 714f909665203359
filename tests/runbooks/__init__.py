"""Each page of docs/runbooks, followed step by step."""
