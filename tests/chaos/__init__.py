"""The chaos runs in short, and the judge of the long ones."""
