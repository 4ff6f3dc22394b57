"""Tables, plots and a page from the records of a run. Needs neither torch nor a GPU: a report is made anywhere."""

from specbench.answers import Answer, AnswerTurn, read_answers
from specbench.report.build import Report, build_report, read_findings
from specbench.report.findings import Findings, gather
from specbench.report.summary import summarise
from specbench.report.terminal import print_findings

__all__ = [
    "Answer",
    "AnswerTurn",
    "Findings",
    "Report",
    "build_report",
    "gather",
    "print_findings",
    "read_answers",
    "read_findings",
    "summarise",
]
