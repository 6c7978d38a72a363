"""Cases are found where people keep them, and read as they are from every kind of file."""

import numpy as np
import pytest

from flare.data.importing.cases import find_cases, read_case
from flare.utils.errors import DataError
from tests.meshes import plate, pv

POINTS = np.random.default_rng(0).random((7, 3))
HEAT = np.arange(7.0)
FLOW = np.random.default_rng(1).random((7, 3))


def write_npz(path):
    np.savez(path, pos=POINTS, heat=HEAT, flow=FLOW, speed=3.5)


def write_csv(path):
    rows = np.concatenate([POINTS, HEAT[:, None], FLOW], axis=1)
    header = "x [mm],y [mm],z [mm],heat [W],flow.x,flow.y,flow.z"
    np.savetxt(path, rows, delimiter=",", header=header, comments="", fmt="%.17g")


def write_parquet(path):
    import pyarrow
    import pyarrow.parquet

    columns = dict(zip(["Points:0", "Points:1", "Points:2"], POINTS.T, strict=True)) | {"heat [W]": HEAT}
    columns |= dict(zip(["flow:0", "flow:1", "flow:2"], FLOW.T, strict=True))  # as ParaView writes them
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def write_hdf5(path):
    import h5py

    with h5py.File(path, "w") as file:
        group = file.create_group("run/fields")
        group["Coordinates"], group["heat"], group["flow"], group["speed"] = POINTS, HEAT, FLOW, [3.5]


def write_zarr(path):
    import zarr

    group = zarr.open_group(str(path), mode="w")
    for name, values in {"points": POINTS, "heat": HEAT, "flow": FLOW, "speed": np.array([3.5])}.items():
        group.create_array(name, data=values)


WRITERS = {".npz": write_npz, ".csv": write_csv, ".parquet": write_parquet, ".h5": write_hdf5, ".zarr": write_zarr}


@pytest.mark.parametrize("suffix", WRITERS)
def test_points_and_fields_come_back_from_every_kind_of_file(tmp_path, suffix):
    WRITERS[suffix](tmp_path / f"a{suffix}")
    (place,) = find_cases(tmp_path)
    case = read_case(place)
    np.testing.assert_array_equal(case.points, POINTS)
    np.testing.assert_array_equal(case.point_data["heat"], HEAT)
    np.testing.assert_array_equal(case.point_data["flow"], FLOW)
    assert set(case.point_data) == {"heat", "flow"}
    if suffix in (".csv", ".parquet"):
        assert case.units["heat"] == "W"
    else:
        np.testing.assert_array_equal(case.parameters["speed"], [3.5])


def test_a_mesh_has_fields_at_points_at_cells_and_of_the_whole(tmp_path):
    plate(2).save(tmp_path / "a.vtu")
    case = read_case(find_cases(tmp_path)[0])
    assert set(case.point_data) == {"pressure", "Wall Shear"}
    assert set(case.cell_data) == {"region"}
    np.testing.assert_array_equal(case.parameters["speed"], [22.0])


def test_all_cases_of_one_file_along_the_first_axis(tmp_path):
    np.savez(
        tmp_path / "all.npz", points=np.stack([POINTS, 2 * POINTS]), heat=np.stack([HEAT, -HEAT]), speed=[1.0, 2.0]
    )
    places = find_cases(tmp_path / "all.npz")
    assert [place.name for place in places] == [f"{tmp_path}/all.npz:{i}" for i in (0, 1)]
    case = read_case(places[1])
    np.testing.assert_array_equal(case.points, 2 * POINTS)
    np.testing.assert_array_equal(case.point_data["heat"], -HEAT)
    np.testing.assert_array_equal(case.parameters["speed"], [2.0])


def test_cells_of_stacked_cases_are_shared_by_all(tmp_path):
    cells = np.array([[0, 1, 2], [2, 3, 4]])  # as many as there are cases
    np.savez(tmp_path / "all.npz", points=np.stack([POINTS, 2 * POINTS]), heat=np.stack([HEAT, -HEAT]), triangles=cells)
    for place in find_cases(tmp_path / "all.npz"):
        np.testing.assert_array_equal(read_case(place).cells["triangle"], cells)


def test_every_group_is_a_case(tmp_path):
    import h5py

    with h5py.File(tmp_path / "all.h5", "w") as file:
        for name in ("a", "b"):
            file[f"{name}/points"], file[f"{name}/heat"] = POINTS, HEAT + len(name)
    assert [place.group for place in find_cases(tmp_path)] == ["a", "b"]


def written(path, arrays, units=(), numbers=()):
    """Arrays in HDF5 or Zarr with attributes: array -> unit, and name -> value of the file."""
    if path.suffix == ".zarr":
        file = pytest.importorskip("zarr").open_group(str(path), mode="w")
        for name, values in arrays.items():
            file.create_array(name, data=np.asarray(values))
    else:
        file = pytest.importorskip("h5py").File(path, "w")
        for name, values in arrays.items():
            file[name] = values
    for name, printed in dict(units).items():
        file[name].attrs.update(printed)
    file.attrs.update(dict(numbers))
    if path.suffix != ".zarr":
        file.close()
    return path


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
def test_attributes_are_units_and_parameters(tmp_path, suffix):
    units = {"pos": {"units": "mm"}, "heat": {"unit": " W "}, "flow": {"units": 3.0, "long_name": "flow"}}
    numbers = {"speed": 3.5, "count": 7, "title": "a run", "range": [1.0, 2.0], "_version": 4}
    path = written(tmp_path / f"a{suffix}", {"pos": POINTS, "heat": HEAT, "flow": FLOW}, units, numbers)
    case = read_case(find_cases(path)[0])
    assert case.units == {"points": "mm", "heat": "W"}
    assert {name: values.tolist() for name, values in case.parameters.items()} == {"speed": [3.5], "count": [7]}
    np.testing.assert_array_equal(case.point_data["heat"], HEAT)


def test_attributes_as_the_c_library_writes_them(tmp_path):
    """Text of fixed length, text in an array, numbers in an array, and what is empty or no type of NumPy's."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("runs/1")
        group["points"], group["heat"], group["flow"], group["speed"] = POINTS, HEAT, FLOW, 2.0
        group["points"].attrs["units"] = np.bytes_(b"mm")
        group["heat"].attrs["units"] = np.array([b"W"])
        group["flow"].attrs["units"] = h5py.Empty("f")
        file.attrs["angle"], file.attrs["load"], file.attrs["nothing"] = 1.0, np.array([9.0]), h5py.Empty("f")
        group.attrs["angle"], group.attrs["speed"], group.attrs["heat"] = 2.0, 2.0, 7.0  # the group knows better
        h5py.h5a.create(group.id, b"when", h5py.h5t.UNIX_D32LE, h5py.h5s.create(h5py.h5s.SCALAR))
    case = read_case(find_cases(tmp_path)[0])
    assert case.units == {"points": "mm", "heat": "W"}
    printed = {name: values.tolist() for name, values in case.parameters.items()}
    assert printed == {"angle": [2.0], "load": [9.0], "speed": [2.0]}
    np.testing.assert_array_equal(case.point_data["heat"], HEAT)  # an attribute of its name is not it


def test_an_array_and_an_attribute_that_differ_are_rejected(tmp_path):
    path = written(tmp_path / "a.h5", {"pos": POINTS, "heat": HEAT, "speed": 3.0}, numbers={"speed": 4.0})
    with pytest.raises(DataError, match=r"a\.h5: 'speed' is 3 .* 4"):
        read_case(find_cases(path)[0])


def test_names_are_in_natural_order(tmp_path):
    for i in (10, 2, 1):
        plate(i).save(tmp_path / f"case_{i}.vtu")
    (tmp_path / "runs.csv").write_text("file,speed\n")  # about the meshes, not one of them
    assert [p.path.name for p in find_cases(tmp_path)] == ["case_1.vtu", "case_2.vtu", "case_10.vtu"]
    assert len(find_cases(f"{tmp_path}/case_1*.vtu")) == 2
    assert len(find_cases([tmp_path / "case_1.vtu", tmp_path / "case_2.vtu"])) == 2


def test_blocks_of_a_multiblock_file_are_no_cases_of_their_own(tmp_path):
    (tmp_path / "a").mkdir()
    pv.MultiBlock([plate(0), plate(1)]).save(tmp_path / "a" / "x.vtm")
    assert [p.path.name for p in find_cases(tmp_path)] == ["x.vtm"]


def test_several_kinds_in_one_folder_are_refused(tmp_path):
    plate(0).save(tmp_path / "a.vtu")
    pv.Sphere().save(tmp_path / "a.stl")
    with pytest.raises(DataError, match=r"\.stl, \.vtu"):
        find_cases(tmp_path)


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("it went off",))

    np.savez(tmp_path / "a.npz", points=POINTS, heat=HEAT, about=np.array([Bomb()], dtype=object))
    case = read_case(find_cases(tmp_path)[0])
    assert set(case.point_data) == {"heat"}


def test_coordinates_of_an_unusual_name(tmp_path):
    np.savez(tmp_path / "a.npz", lieu=POINTS, heat=HEAT)
    with pytest.raises(DataError, match=r"a\.npz .*lieu, heat"):
        find_cases(tmp_path)
    with pytest.raises(DataError, match=r"'leiu'.*lieu, heat"):
        find_cases(tmp_path, points="leiu")
    (place,) = find_cases(tmp_path, points="lieu")
    np.testing.assert_array_equal(read_case(place, points="lieu").points, POINTS)


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_damaged_file_of_arrays_is_named(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"PK\x03\x04 and no more" if suffix != ".csv" else b"x,y\n1,two\n")
    with pytest.raises(DataError, match=rf"a\{suffix}"):
        [read_case(place) for place in find_cases(path)]
