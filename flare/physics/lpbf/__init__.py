"""Laser powder bed fusion: from a part to its distortion."""
