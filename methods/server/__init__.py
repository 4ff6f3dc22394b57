"""A serving engine as a peer: its connection, its dialect, and its reports on drafts."""
