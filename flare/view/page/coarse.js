// A coarse index for fast drawing: of all points in a grid cell, only the first is drawn.
// Values, colors and indices of the points do not change.

const MAX_POINTS = 40000;

// Indices of the points to draw, three per triangle; null if the body is small.
export function coarse(points, triangles) {
  const count = points.length / 3;
  if (count <= MAX_POINTS) return null;
  for (let cells = 128; cells >= 16; cells /= 2) {
    const { first, kept } = cluster(points, cells);
    if (kept.length > MAX_POINTS && cells > 16) continue;
    return triangles ? remapTriangles(triangles, first) : kept;
  }
}

function cluster(points, cells) {
  const count = points.length / 3;
  const low = [Infinity, Infinity, Infinity];
  const high = [-Infinity, -Infinity, -Infinity];
  for (let i = 0; i < points.length; i++) {
    low[i % 3] = Math.min(low[i % 3], points[i]);
    high[i % 3] = Math.max(high[i % 3], points[i]);
  }
  const scale = (0.999 * cells) / Math.max(high[0] - low[0], high[1] - low[1], high[2] - low[2]);
  const owner = new Int32Array(cells ** 3).fill(-1);
  const first = new Uint32Array(count);
  const kept = [];
  for (let i = 0; i < count; i++) {
    const x = Math.floor((points[3 * i] - low[0]) * scale);
    const y = Math.floor((points[3 * i + 1] - low[1]) * scale);
    const z = Math.floor((points[3 * i + 2] - low[2]) * scale);
    const cell = (x * cells + y) * cells + z;
    if (owner[cell] < 0) {
      owner[cell] = i;
      kept.push(i);
    }
    first[i] = owner[cell];
  }
  return { first, kept: Uint32Array.from(kept) };
}

function remapTriangles(triangles, first) {
  const found = new Uint32Array(triangles.length);
  let used = 0;
  for (let i = 0; i < triangles.length; i += 3) {
    const a = first[triangles[i]];
    const b = first[triangles[i + 1]];
    const c = first[triangles[i + 2]];
    if (a === b || b === c || c === a) continue;
    found[used++] = a;
    found[used++] = b;
    found[used++] = c;
  }
  return found.slice(0, used);
}

// Typical distance between neighbors: the median over a sample of points.
export function spacing(points, some = 48) {
  const count = points.length / 3;
  const found = [];
  for (let s = 0; s < Math.min(some, count); s++) {
    const i = Math.floor((s * count) / Math.min(some, count));
    let best = Infinity;
    for (let j = 0; j < count; j++) {
      const d =
        (points[3 * j] - points[3 * i]) ** 2 +
        (points[3 * j + 1] - points[3 * i + 1]) ** 2 +
        (points[3 * j + 2] - points[3 * i + 2]) ** 2;
      if (d < best && d > 0) best = d;
    }
    found.push(Math.sqrt(best));
  }
  found.sort((a, b) => a - b);
  const middle = found[found.length >> 1];
  return Number.isFinite(middle) ? middle : 1;
}
