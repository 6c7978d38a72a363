"""One file per table or figure: the grid of runs, the numbers of the paper, the report."""
