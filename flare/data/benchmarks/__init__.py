"""The benchmarks of the paper: cards, published files, download, export and upload."""
