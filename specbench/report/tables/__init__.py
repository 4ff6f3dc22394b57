"""The printed tables, as Markdown, LaTeX, csv and on the terminal."""
