"""Tables and figures of the paper from records: jobs, ledger, sweep, pages; one file per table or figure in `items`."""
