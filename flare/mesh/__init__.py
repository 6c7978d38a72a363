"""Everything that knows cells: reading and writing meshes, voxels, octrees."""
