"""Small files of fields in the layouts that solvers write, made without those solvers: CGNS and Exodus.

Two tetrahedra on five points; a field at the points and one at the cells, at as many times as are asked for.
"""

import numpy as np

POINTS = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])
CELLS = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
AT_POINTS = np.array([3.0, 1, 4, 1.5, 9])
AT_CELLS = np.array([2.5, -7.0])


def write_cgns(path, times=(0.0,)):
    """As the CGNS library maps its tree of nodes to HDF5: groups with name, label and type, numbers in ` data`."""
    import h5py

    def node(parent, name, label, kind="MT", data=None):
        group = parent.create_group(name, track_order=True)
        for key, text, width in (("name", name, 33), ("label", label, 33), ("type", kind, 3)):
            group.attrs.create(key, np.bytes_(text), dtype=f"S{width}")
        group.attrs.create("flags", np.array([1], np.int32))
        if data is not None:
            group.create_dataset(" data", data=letters(data) if isinstance(data, str) else data)
        return group

    def letters(text):
        return np.frombuffer(text.encode(), np.int8)

    with h5py.File(path, "w", libver=("earliest", "v110"), track_order=True) as file:
        for key, text, width in (("name", "HDF5 MotherNode", 33), ("label", "Root Node of HDF5 File", 33)):
            file.attrs.create(key, np.bytes_(text), dtype=f"S{width}")
        file.attrs.create("type", np.bytes_("MT"), dtype="S3")
        file.create_dataset(" format", data=letters("IEEE_LITTLE_32\0"))
        file.create_dataset(" hdf5version", data=letters("HDF5 Version 1.10.0".ljust(33, "\0")))
        node(file, "CGNSLibraryVersion", "CGNSLibraryVersion_t", "R4", np.array([3.3], np.float32))
        base = node(file, "Base", "CGNSBase_t", "I4", np.array([3, 3], np.int32))
        zone = node(base, "Zone", "Zone_t", "I4", np.array([[5], [2], [0]], np.int32))
        node(zone, "ZoneType", "ZoneType_t", "C1", "Unstructured")
        grid = node(zone, "GridCoordinates", "GridCoordinates_t")
        for axis, values in zip("XYZ", POINTS.T, strict=True):
            node(grid, f"Coordinate{axis}", "DataArray_t", "R8", values.copy())
        elements = node(zone, "Elements", "Elements_t", "I4", np.array([10, 0], np.int32))  # TETRA_4
        node(elements, "ElementRange", "IndexRange_t", "I4", np.array([1, 2], np.int32))
        node(elements, "ElementConnectivity", "DataArray_t", "I4", (CELLS + 1).ravel().astype(np.int32))
        for step in range(len(times)):
            for place, name, values in (("Vertex", "p", AT_POINTS), ("CellCenter", "q", AT_CELLS)):
                solution = node(zone, f"{place}{step}", "FlowSolution_t")
                node(solution, "GridLocation", "GridLocation_t", "C1", place)
                node(solution, name, "DataArray_t", "R8", values + len(times) - 1 - step)  # the last has these values
        if len(times) > 1:
            steps = node(base, "Times", "BaseIterativeData_t", "I4", np.array([len(times)], np.int32))
            node(steps, "TimeValues", "DataArray_t", "R8", np.array(times, float))
            of_zone = node(zone, "ZoneTimes", "ZoneIterativeData_t")
            names = "".join(f"Vertex{step}".ljust(32) for step in range(len(times)))
            node(of_zone, "FlowSolutionPointers", "DataArray_t", "C1", letters(names).reshape(len(times), 32))


def write_exodus(path, times=(0.0,)):
    """As the Exodus library lays out a NetCDF file."""
    from scipy.io import netcdf_file

    sizes = {"time_step": None, "len_string": 33, "num_dim": 3, "num_nodes": 5, "num_elem": 2, "num_el_blk": 1}
    sizes |= {"num_el_in_blk1": 2, "num_nod_per_el1": 4, "num_nod_var": 1, "num_elem_var": 1}
    with netcdf_file(path, "w", version=2) as file:
        file.api_version = file.version = np.float32(4.98)
        file.floating_point_word_size, file.file_size, file.title = np.int32(8), np.int32(1), "two tetrahedra"
        for name, size in sizes.items():
            file.createDimension(name, size)

        def names(name, dimension, words):
            variable = file.createVariable(name, "c", (dimension, "len_string"))
            for i, word in enumerate(words):
                variable[i] = list(word.ljust(33, "\0"))

        for axis, values in zip("xyz", POINTS.T, strict=True):
            file.createVariable(f"coord{axis}", "d", ("num_nodes",))[:] = values
        names("coor_names", "num_dim", "xyz")
        names("name_nod_var", "num_nod_var", ["p"])
        names("name_elem_var", "num_elem_var", ["q"])
        names("eb_names", "num_el_blk", ["solid"])
        file.createVariable("eb_status", "i", ("num_el_blk",))[:] = [1]
        numbers = file.createVariable("eb_prop1", "i", ("num_el_blk",))
        numbers[:], numbers.name = [1], "ID"
        corners = file.createVariable("connect1", "i", ("num_el_in_blk1", "num_nod_per_el1"))
        corners[:], corners.elem_type = CELLS + 1, "TETRA"
        time = file.createVariable("time_whole", "d", ("time_step",))
        at_points = file.createVariable("vals_nod_var1", "d", ("time_step", "num_nodes"))
        at_cells = file.createVariable("vals_elem_var1eb1", "d", ("time_step", "num_el_in_blk1"))
        for step, value in enumerate(times):
            before = len(times) - 1 - step  # the last has these values
            time[step], at_points[step], at_cells[step] = value, AT_POINTS + before, AT_CELLS + before
