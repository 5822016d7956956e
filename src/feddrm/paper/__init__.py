"""The paper, reproduced: its grid as data, the runner, its tables and figures beside the published ones."""

from feddrm.paper.cell_records import Record, read_records
from feddrm.paper.figures import FIGURES, figure
from feddrm.paper.grid import Cell, Grid
from feddrm.paper.render import render
from feddrm.paper.results_page import read_notes, results_page
from feddrm.paper.runner import Outcome, Runner, Standing, default_device, read_budget
from feddrm.paper.tables import table_names, tables

__all__ = [
    "FIGURES",
    "Cell",
    "Grid",
    "Outcome",
    "Record",
    "Runner",
    "Standing",
    "default_device",
    "figure",
    "read_budget",
    "read_notes",
    "read_records",
    "render",
    "results_page",
    "table_names",
    "tables",
]
