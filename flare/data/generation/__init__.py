"""Datasets from generators: in parallel, resumable, on one machine or a dask cluster."""
