"""VTP files written in every way that programs write them."""

import base64
import lzma
import zlib

import numpy as np

NAMES = {"f4": "Float32", "f8": "Float64", "i4": "Int32", "i8": "Int64", "u1": "UInt8"}
PACKERS = {"vtkZLibDataCompressor": zlib.compress, "vtkLZMADataCompressor": lzma.compress}


def vtp(
    points, polygons, fields, *, form="appended", raw=True, header="u8", packer=None, order="<", joined=True, block=64
):
    """The bytes of a file.

    form: ascii, binary (base64 within the XML) or appended; raw: appended as it is, else base64.
    header: type of the numbers before each array; packer: name of VTK's compressor; block: bytes packed at a time.
    joined: plain base64 codes header and data together, as VTK does, or one after the other, as others do.
    """
    appended = bytearray()

    def blocks(data):
        """Header and body of an array."""
        if packer is None:
            return np.array([len(data)], dtype=order + header).tobytes(), data
        parts = [data[i : i + block] for i in range(0, len(data), block)]
        packed = [PACKERS[packer](part) for part in parts]
        last = len(parts[-1]) % block if parts else 0
        head = np.array([len(parts), block, last, *map(len, packed)], dtype=order + header).tobytes()
        return head, b"".join(packed)

    def coded(head, body):
        if packer is None and joined:
            return base64.b64encode(head + body)
        return base64.b64encode(head) + base64.b64encode(body)

    def array(name, values):
        values = np.asarray(values)
        kind = f"{values.dtype.kind}{values.dtype.itemsize}"
        width = f' NumberOfComponents="{values.shape[1]}"' if values.ndim == 2 else ""
        start = f'<DataArray type="{NAMES[kind]}" Name="{name}"{width} format="{form}"'
        if form == "ascii":
            return f"{start}>{' '.join(map(repr, values.ravel().tolist()))}</DataArray>"
        head, body = blocks(values.astype(order + kind).tobytes())
        if form == "binary":
            return f"{start}>\n  {coded(head, body).decode()}\n</DataArray>"
        offset = len(appended)
        appended.extend(head + body if raw else coded(head, body))
        return f'{start} offset="{offset}"/>'

    ends = np.cumsum([len(polygon) for polygon in polygons])
    byte_order = "LittleEndian" if order == "<" else "BigEndian"
    compressor = f' compressor="{packer}"' if packer else ""
    text = "\n".join(
        [
            '<?xml version="1.0"?>',
            f'<VTKFile type="PolyData" version="1.0" byte_order="{byte_order}" '
            f'header_type="UInt{8 * int(header[1])}"{compressor}>',
            "<PolyData>",
            f'<Piece NumberOfPoints="{len(points)}" NumberOfVerts="0" NumberOfLines="0" NumberOfStrips="0" '
            f'NumberOfPolys="{len(polygons)}">',
            "<PointData></PointData>",
            "<CellData>",
            *(array(name, values) for name, values in fields.items()),
            "</CellData>",
            f"<Points>{array('Points', points)}</Points>",
            f"<Polys>{array('connectivity', np.concatenate(polygons))}{array('offsets', ends)}</Polys>",
            "</Piece>",
            "</PolyData>",
        ]
    ).encode()
    if form == "appended":
        encoding = b"raw" if raw else b"base64"
        text += b'\n<AppendedData encoding="' + encoding + b'">\n_' + bytes(appended) + b"\n</AppendedData>"
    return text + b"\n</VTKFile>\n"
