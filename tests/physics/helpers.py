"""Bodies for tests of the panel method, and norms."""

import numpy as np

from flare.mesh.surface import Surface
from flare.physics.cars.exact import ellipsoid


def icosphere(subdivisions):
    return ellipsoid((1.0, 1.0, 1.0), subdivisions)


def moved(surface, by):
    return Surface(surface.vertices + np.asarray(by), surface.faces)


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


def relative_l2(value, truth):
    return np.linalg.norm(value - truth) / np.linalg.norm(truth)
