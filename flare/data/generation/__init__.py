"""Generation of datasets: parallel and resumable, on one machine or a dask cluster."""
