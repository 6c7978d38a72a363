"""Meshes with data, and the geometry that works on them."""

from flare.mesh.io import read_mesh
from flare.mesh.mesh import Mesh

__all__ = ["Mesh", "read_mesh"]
