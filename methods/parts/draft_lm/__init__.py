"""A draft language model, on the host's thread or beside the target."""
