// Requests data from elements of this file or from a server; docs/reference/viewer.md describes the requests.
// Another server is chosen by its address:  index.html?source=/v1/runs/wing/view/#token=…

const embedded = new Map(
  [...document.querySelectorAll("script[data-path]")].map((e) => [e.dataset.path, e.textContent]),
);
const base = new URL(new URLSearchParams(location.search).get("source") ?? "api/", document.baseURI);
const token = new URLSearchParams(location.hash.slice(1)).get("token");

export const catalogue = async () => JSON.parse(new TextDecoder().decode(await bytes("catalogue")));
export const geometry = (sample) => arrays("samples", sample);
export const field = (sample, name) => arrays("samples", sample, "fields", name);
export const spectra = (sample) => arrays("samples", sample, "spectra");
export const modes = (sample, block, head) => arrays("samples", sample, "modes", block, head);

async function bytes(...path) {
  if (embedded.size) return unpack(embedded.get(path.join("/")), path);
  const ours = token && base.origin === location.origin;
  const answer = await fetch(new URL(path.map(encodeURIComponent).join("/"), base), {
    headers: ours ? { Authorization: `Bearer ${token}` } : {},
  });
  if (answer.ok) return answer.arrayBuffer();
  const why = await answer.json().catch(() => ({}));
  throw new Error(why.error?.message ?? why.error ?? why.detail ?? `the server returned ${answer.status} ${answer.statusText}`);
}

async function unpack(text, path) {
  if (text === undefined) throw new Error(`this file does not contain ${path.join("/")}`);
  const packed = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(packed).arrayBuffer();
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const found = new Uint8Array(characters.length);
  for (let i = 0; i < found.length; i++) found[i] = characters.charCodeAt(i);
  return found;
}

// Parse safetensors (length of the header in eight bytes, JSON header, arrays) into {name: {shape, data}}.
const KINDS = { F32: Float32Array, F64: Float64Array, U32: Uint32Array };

async function arrays(...path) {
  const buffer = await bytes(...path);
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [start, stop],
    },
  ] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const kind = KINDS[dtype];
    if (!kind) throw new Error(`${name} has type ${dtype}; supported: ${Object.keys(KINDS).join(", ")}`);
    const data = new kind(buffer.slice(8 + length + start, 8 + length + stop));
    found[name] = { shape, data };
  }
  return found;
}
