"""The benchmark itself: small runs of it are exact, and its table is whole."""
