"""Valid uploads of every format for the fields of `ragged_schema`, and a random stream of malformed ones."""

import base64
import io
import json
import struct
import zipfile
import zlib
from functools import cache

import numpy as np

from flare.mesh import Mesh

POINTS = np.array([[0, 0], [2, 0], [2, 1], [0, 1], [1, 0.5]], dtype=np.float32)
FACES = np.array([[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]])
THICKNESS = np.array([1.0, 1.5, 0.5, 1.25, 1.0], dtype=np.float32)
SPEED = 2.0
KINDS = ("npz", "csv", "json", "vtu", "stl")
MISSING = {"vtu": ["speed=2"], "stl": ["speed=2", "thickness=1"]}
"""Inputs that these formats do not contain."""
HUGE = (1e25, -1e25, 1e30, -3e38)
"""Finite coordinates for which the model output is not finite."""


def npz(**changes):
    arrays = {"position": POINTS, "thickness": THICKNESS, "speed": np.array([SPEED])} | changes
    file = io.BytesIO()
    np.savez_compressed(file, **{name: array for name, array in arrays.items() if array is not None})
    return file.getvalue()


def csv(points=POINTS, thickness=THICKNESS):
    rows = [f"{x!r},{y!r},{t!r},{SPEED}" for (x, y), t in zip(points.tolist(), thickness.tolist(), strict=False)]
    return "\n".join(["position.x,position.y,thickness,speed", *rows, ""]).encode()


def json_(**changes):
    record = {"position": POINTS.tolist(), "thickness": THICKNESS.tolist(), "speed": SPEED} | changes
    return json.dumps({name: value for name, value in record.items() if value is not ...}).encode()


def flat(points=POINTS):
    return np.concatenate([points, np.zeros((len(points), 1), np.float32)], axis=1)


def vtu(folder, points=None, fields=None):
    path = folder / "made.vtu"
    data = {"thickness": THICKNESS} if fields is None else fields
    Mesh.from_cells(flat() if points is None else points, {"triangle": FACES}, point_data=data).save(path)
    return path.read_bytes()


def stl(points=None, count=None):
    corners = (flat() if points is None else points)[FACES].astype("<f4")
    body = b"".join(bytes(12) + triangle.tobytes() + bytes(2) for triangle in corners)
    return bytes(80) + struct.pack("<I", len(FACES) if count is None else count) + body


def good(kind, folder):
    if kind == "vtu":
        return vtu(folder)
    return {"npz": npz, "csv": csv, "json": json_, "stl": stl}[kind]()


def archive(*members):
    """Return a zip file of (name, bytes)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members:
            made.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def npy(descr="<f4", shape="(5, 2)", body=bytes(40), padding=0, version=1):
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}{' ' * padding}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + body


@cache
def bomb():
    """Return twenty megabytes of zeros in a file of twenty kilobytes."""
    return archive(("position.npy", npy(shape="(2621440, 2)", body=bytes(20 * 2**20))))


@cache
def many_entries():
    return archive(*[(f"a{i}.npy", b"") for i in range(3000)])


def vtu_text(
    head="", points=5, cells=1, numbers="0 0 0 1 0 0 0 1 0 1 1 0 2 1 0", corners="0 1 2", more="", attributes=""
):
    return (
        f'<?xml version="1.0"?>{head}<VTKFile type="UnstructuredGrid" header_type="UInt64" {attributes}>'
        f'<UnstructuredGrid><Piece NumberOfPoints="{points}" NumberOfCells="{cells}"><Points>'
        f'<DataArray type="Float32" NumberOfComponents="3" format="ascii">{numbers}</DataArray></Points><Cells>'
        f'<DataArray type="Int64" Name="connectivity" format="ascii">{corners}</DataArray>'
        '<DataArray type="Int64" Name="offsets" format="ascii">3</DataArray>'
        f'<DataArray type="UInt8" Name="types" format="ascii">5</DataArray></Cells><PointData>{more}</PointData>'
        "</Piece></UnstructuredGrid></VTKFile>"
    ).encode()


def packed(declared, content):
    block = zlib.compress(content)
    header = np.array([1, declared, 0, len(block)], dtype="<u8").tobytes()
    return (base64.b64encode(header) + base64.b64encode(block)).decode()


def thickness(rng, content, form="ascii"):
    return f'<DataArray type="Float32" Name="thickness" format="{form}">{content}</DataArray>'


def wrong_number(rng):
    values = POINTS.copy()
    values[rng.integers(5), rng.integers(2)] = rng.choice([np.nan, np.inf, -np.inf, *HUGE])
    return values


def bad_npz(rng, folder):
    number = int(rng.integers(10**6, 10**15))
    return [
        lambda: npz(position=wrong_number(rng)),
        lambda: npz(position=None),
        lambda: npz(position=rng.random((5, int(rng.integers(3, 9))))),  # a flat third axis would be left out
        lambda: npz(thickness=np.zeros(int(rng.integers(6, 99)))),
        lambda: npz(position=np.array([["a", "b"]] * 5)),
        lambda: npz(position=POINTS + 1j),
        lambda: npz(speed=np.array([1.0, 2.0])),
        lambda: npz(position=np.zeros((20001, 2), np.float32)),
        lambda: archive(("position.npy", npy("|O"))),
        lambda: archive(("position.npy", npy(shape=f"({number}, 2)"))),
        lambda: archive(("position.npy", npy(shape=f"(-{number}, 2)"))),
        lambda: archive(("position.npy", npy(shape="__import__('os')"))),
        lambda: archive(("position.npy", npy(padding=int(rng.integers(20_000, 60_000))))),
        lambda: archive(("position.npy", npy(version=int(rng.integers(4, 255))))),
        lambda: archive(("position.npy", rng.bytes(int(rng.integers(0, 200))))),
        lambda: archive(("../" * int(rng.integers(1, 9)) + "etc/position.npy", npy())),
        lambda: archive(("evil.py", b"import os")),
        lambda: archive(("position.npy", npy()), ("positiox.npy", npy())).replace(b"positiox", b"position"),
        lambda: archive(*[(f"a{i}.npy", npy()) for i in range(70)]),
        lambda: archive(("position.npy", npy())).replace(struct.pack("<I", len(npy())), b"\xff" * 4),
        many_entries,
        bomb,
    ]


def bad_csv(rng, folder):
    return [
        lambda: csv(points=wrong_number(rng)),
        lambda: csv(points=POINTS[:0]),
        lambda: csv().replace(b"position.y", b"positions.y"),
        lambda: csv().replace(b",2.0\n", b",two\n", 1),
        lambda: csv().replace(b",2.0\n", b",2.0,7\n", 1),
        lambda: csv()[: csv().rfind(b",") + 1],
        lambda: b"position.x,position.y," + b"x" * int(rng.integers(70_000, 200_000)),
        lambda: csv() + b",".join([b"1"] * 50_000) + b"\n",
        lambda: csv() + b"1,2,3,2.0\n" * 20_001,
        lambda: csv() + b"1,2,3,\xff\xfe\n",
        lambda: csv().decode().encode("utf-16"),
        lambda: b"\x00" * int(rng.integers(1, 3000)),
    ]


def bad_json(rng, folder):
    deep = int(rng.integers(2_000, 200_000))
    return [
        lambda: json_(position=wrong_number(rng).tolist()),
        lambda: json_(position=[]),
        lambda: json_(position=...),
        lambda: json_(position=[[1, 2], [3]]),
        lambda: json_(position=[["a", "b"]] * 5),
        lambda: json_(position=[[True, False]] * 5),
        lambda: json_(position=7),
        lambda: json_(position=[[10**400, 1]] * 5),
        lambda: json_(thickness=THICKNESS.tolist() * 2),
        lambda: json_(speed="fast"),
        lambda: json_(speed=[1, 2]),
        lambda: json_().replace(b"2.0}", b"9" * 6000 + b"}"),
        lambda: b"[" * deep,
        lambda: b'{"position": ' + b"[" * deep + b"]" * deep + b"}",
        lambda: b'"position"',
        lambda: json_() + b"}",
        lambda: json_().decode().encode("utf-16")[:-1],
    ]


def bad_vtu(rng, folder):
    number = int(rng.integers(10**6, 10**15))
    entity = "<!DOCTYPE a [<!ENTITY b 'bomb'><!ENTITY c '&b;&b;&b;&b;&b;&b;&b;&b;'>]>"
    outside = "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>"
    good_field = thickness(rng, "1 1 1 1 1")
    return [
        lambda: vtu(folder, points=flat(wrong_number(rng))),
        lambda: vtu(folder, points=flat() + np.arange(5)[:, None]),
        lambda: vtu(folder, fields={}),
        lambda: vtu(folder, fields={"thickness": np.stack([THICKNESS] * 2, 1)}),
        lambda: vtu(folder, fields={"thickness": THICKNESS * np.nan}),
        lambda: vtu_text(head=entity, numbers="&c;"),
        lambda: vtu_text(head=outside, numbers="&b;"),
        lambda: vtu_text(points=number, more=good_field),
        lambda: vtu_text(cells=number, more=good_field),
        lambda: vtu_text(corners=f"0 1 {number}", more=good_field),
        lambda: vtu_text(numbers="1 " * int(rng.integers(1, 14)), more=good_field),
        lambda: vtu_text(more=thickness(rng, "1 1 1 1")),
        lambda: vtu_text(more=thickness(rng, "1 1 1 1 one")),
        lambda: vtu_text(more=thickness(rng, "!" * 30, "binary")),
        lambda: vtu_text(
            more=thickness(rng, packed(20, bytes(10**6)), "binary"), attributes='compressor="vtkZLibDataCompressor"'
        ),
        lambda: vtu_text(
            more=thickness(rng, packed(number, b"1"), "binary"), attributes='compressor="vtkZLibDataCompressor"'
        ),
        lambda: vtu_text(more=good_field, attributes='compressor="vtkLZ4DataCompressor"'),
        lambda: vtu_text(more=good_field).replace(b"UInt64", b"Float64"),
        lambda: vtu_text(more="<a/>" * 20_100),
        lambda: vtu_text(more="<a>" * 20_100),
        lambda: vtu_text(more=good_field).replace(b"UnstructuredGrid", b"PolyData"),
        lambda: vtu_text(more=good_field).replace(b"ascii", b"appended"),
        lambda: vtu_text(more=good_field).decode().encode("utf-16")[:-2],
    ]


def bad_stl(rng, folder):
    return [
        lambda: stl(points=flat(wrong_number(rng))),
        lambda: stl(points=flat() + np.arange(5, dtype=np.float32)[:, None]),
        lambda: stl(count=int(rng.integers(5, 2**32))),
        lambda: bytes(84),
        lambda: b"solid\nfacet normal 0 0 0\n" + b"vertex 0 0\n" * 3,
        lambda: b"solid\nfacet normal 0 0 0\nouter loop\n" + b"vertex 0 zero 0\n" * 3 + b"endsolid",
        lambda: b"solid\nfacet\n" + b"x" * int(rng.integers(2000, 90_000)) + b" endsolid",
    ]


BAD = {"npz": bad_npz, "csv": bad_csv, "json": bad_json, "vtu": bad_vtu, "stl": bad_stl}


def malformed(index, folder):
    """Return malformed upload number `index`: format, bytes, settings."""
    rng = np.random.default_rng([2026, index])
    kind = KINDS[index % len(KINDS)]
    settings = MISSING.get(kind, [])
    fate = rng.random()
    if fate < 0.15:  # cut short; of CSV, within the last row
        whole = good(kind, folder)
        lowest = whole.rfind(b"\n", 0, -1) + 2 if kind == "csv" else 1
        highest = whole.rfind(b",") + 1 if kind == "csv" else len(whole) - 1 - 12 * (kind == "vtu")
        return kind, whole[: rng.integers(lowest, highest + 1)], settings
    if fate < 0.25:  # of another kind
        other = str(rng.choice([k for k in KINDS if k != kind]))
        return kind, good(other, folder), settings
    if fate < 0.35:
        return kind, rng.bytes(int(rng.integers(1, 4000))), settings
    if fate < 0.38:
        return kind, b"", settings
    if fate < 0.42:
        word = str(rng.choice(["speed=fast", "speed", "speed=1,2,3", "nothing=1", "position=1", "speed=nan", "=1"]))
        return kind, good(kind, folder), [*[s for s in settings if not s.startswith("speed")], word]
    choices = BAD[kind](rng, folder)
    return kind, choices[rng.integers(len(choices))](), settings


def flipped(index, folder):
    """Return a valid upload with some bytes changed; it may still be valid."""
    rng = np.random.default_rng([2027, index])
    kind = KINDS[index % len(KINDS)]
    content = bytearray(good(kind, folder))
    for place in rng.integers(0, len(content), rng.integers(1, 6)):
        content[place] = rng.integers(0, 256)
    return kind, bytes(content), MISSING.get(kind, [])
