"""Device, ranks, shards and rank failure."""
