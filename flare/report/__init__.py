"""Pictures and self-contained HTML pages. Each module imports matplotlib; this one imports nothing."""
