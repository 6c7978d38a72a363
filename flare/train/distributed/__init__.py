"""Device, ranks, shards, and what happens when a rank fails."""
