"""What keeps the tables small and clean for years."""
