"""Reports of runs: one self-contained HTML page, tables, and figures of a run or a federation."""
