"""The clients of a run in a report: a bar and a row for each; of many, spread, best and worst, and groups."""
