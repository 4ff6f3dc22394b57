"""Other runtimes as peers: the model in their format, and what their methods share."""
