"""One file per comparison, table or figure: the grid of runs, what others found, the table, the picture."""
