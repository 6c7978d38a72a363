// Formatting and parsing of numbers, ranges and error norms.

export function format(value, digits = 8) {
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-4 || size >= 1e7 ? value.toExponential(digits - 1) : value.toPrecision(digits);
  return text
    .replace(/(\.\d*?)0+(?=e|$)/, "$1")
    .replace(/\.(?=e|$)/, "")
    .replace("-", "−")
    .replace("e−", "e-")
    .replace("e+", "e");
}

export const withUnit = (text, unit) => (unit ? `${text} ${unit}` : text);

export const parse = (text) => (text.trim() ? Number(text.replace("−", "-")) : NaN);

// Smallest and largest finite value, widened if they are equal.
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (let i = 0; i < values.length; i++) {
    const v = values[i];
    if (v < low && v > -Infinity) low = v;
    if (v > high && v < Infinity) high = v;
  }
  if (low > high) [low, high] = [0, 0];
  const gap = 0.05 * Math.abs(low) || 1;
  return high > low ? [low, high] : [low - gap, high + gap];
}

export function symmetricExtent(values) {
  const most = Math.max(...extent(values).map(Math.abs));
  return [-most, most];
}

// Relative L2 error ‖p − t‖ / ‖t‖ and largest error |p − t|.
export function errorNorms(truth, prediction) {
  let square = 0;
  let size = 0;
  let largest = 0;
  for (let i = 0; i < truth.length; i++) {
    const e = prediction[i] - truth[i];
    square += e * e;
    size += truth[i] * truth[i];
    largest = Math.max(largest, Math.abs(e));
  }
  return { relative: size > 0 ? Math.sqrt(square / size) : NaN, largest };
}

export function difference(a, b) {
  const found = new Float64Array(a.length);
  for (let i = 0; i < found.length; i++) found[i] = a[i] - b[i];
  return found;
}
