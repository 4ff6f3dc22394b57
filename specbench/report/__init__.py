"""Tables, plots and a page from the records of a run. Needs neither torch nor a GPU: a report is
made anywhere.

What draws needs matplotlib and is imported by its module in ``plots``.
"""

from specbench.records.answers import Answer, AnswerTurn, read_answers
from specbench.report.build import Report, build_report, read_findings
from specbench.report.frames.findings import Findings, explain, gather
from specbench.report.frames.sweep import default_grids, rank
from specbench.report.locate import chosen_profile, chosen_runs
from specbench.report.published import compare, published_frame, published_tables, read_published
from specbench.report.tables.terminal import print_findings
