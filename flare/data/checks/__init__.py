"""Data checks, and fixes of what can be fixed without inventing values."""
