"""The paper's experiments: the grid as data, the runner, and its tables and figures beside the published ones."""
