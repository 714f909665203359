"""The chaos runs in short, and the verdict on the long ones."""
