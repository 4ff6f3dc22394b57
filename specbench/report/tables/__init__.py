"""The printed tables, as Markdown, LaTeX, csv, HTML and on the terminal."""
