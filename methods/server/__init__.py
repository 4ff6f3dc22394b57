"""A serving engine as a peer: its connection, its dialect, and what it says of its drafts."""
