"""The format of figures and tables, and tokens as text."""
