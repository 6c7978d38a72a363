"""The benchmarks of the paper: cards, readers of published files, download, export and upload."""
