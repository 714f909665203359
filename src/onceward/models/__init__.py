"""Models: the data of a message as an object of a class, and back. Loaded when a handler asks for one, not before."""
