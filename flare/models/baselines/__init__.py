"""Models that FLARE is compared with, one file each."""
