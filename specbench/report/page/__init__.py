"""``report.html``: tables, plots and the token view in one file."""
