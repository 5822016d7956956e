"""The paper's experiments: the grid as data, the runner, and its tables and figures beside the published ones."""

from feddrm.paper.cell_records import CellRecord, read_records
from feddrm.paper.cell_search import read_searches, with_choices
from feddrm.paper.grid import Cell, Grid
from feddrm.paper.paper_figures import FIGURES, figure
from feddrm.paper.paper_tables import render, table_names, tables
from feddrm.paper.results_page import read_notes, results_page
from feddrm.paper.runner import CellOutcome, Runner, Standing, default_device, read_budget
from feddrm.paper.tuned_section import tuned_section

__all__ = [
    "FIGURES",
    "Cell",
    "CellOutcome",
    "CellRecord",
    "Grid",
    "Runner",
    "Standing",
    "default_device",
    "figure",
    "read_budget",
    "read_notes",
    "read_records",
    "read_searches",
    "render",
    "results_page",
    "table_names",
    "tables",
    "tuned_section",
    "with_choices",
]
