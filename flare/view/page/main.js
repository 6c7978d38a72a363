// The page: choice of sample, field and panels.
import { Body } from "flare/body.js";
import { View } from "flare/camera.js";
import { NAMES } from "flare/colors.js";
import { find, make } from "flare/dom.js";
import { difference, errorNorms, format, withUnit } from "flare/numbers.js";
import { Panel } from "flare/panel.js";
import * as source from "flare/source.js";
import { Spectra } from "flare/spectra.js";
import { Stage } from "flare/stage.js";

const view = new View(() => stage.refresh(true));
const stage = new Stage(find("canvas"), view);
const spectra = new Spectra(find("spectra"), () => work(showPanels));
const limits = new Map(); // ranges that the user has set, by key
const state = { sample: null, body: null, panels: [], hovered: null }; // what is shown
let catalogue;
let turn = 0;

// Run one task at a time; a newer task supersedes an older one.
async function work(task) {
  const mine = ++turn;
  document.body.setAttribute("aria-busy", "true");
  try {
    await task(() => mine === turn);
    if (mine === turn) find("message").hidden = true;
  } catch (error) {
    if (mine !== turn) return;
    find("message").textContent = error.message;
    find("message").hidden = false;
    console.error(error);
    if (state.body) restore();
  } finally {
    if (mine === turn) document.body.setAttribute("aria-busy", "false");
  }
}

// After an error, set the controls back to what is shown.
function restore() {
  find("sample").value = state.sample;
  find("field").value = state.field;
  find("spectra-button").setAttribute("aria-pressed", state.spectra);
}

async function begin() {
  catalogue = await source.catalogue();
  if (catalogue.version !== 1) throw new Error(`this page reads catalogues of version 1, not ${catalogue.version}`);
  document.title = catalogue.title;
  document.querySelector("h1").textContent = catalogue.title;
  const hasErrors = catalogue.samples.some((sample) => "error" in sample);
  find("order-control").hidden = !hasErrors;
  find("field").append(
    ...catalogue.fields.map(({ name, unit }) => make("option", { value: name }, unit ? `${name} [${unit}]` : name)),
  );
  find("field-control").hidden = catalogue.fields.length < 2;
  find("colors").append(...NAMES.map((name) => make("option", {}, name)));
  find("spectra-button").hidden = !catalogue.spectra;
  listSamples();
  const start = catalogue.samples.find((sample) => sample.split === catalogue.start) ?? catalogue.samples[0];
  find("sample").value = start.id;
  await showSample();
}

function listSamples() {
  const chosen = find("sample").value;
  const byError = find("order").value === "error";
  const splits = new Map(); // browsers before 2024 have no Map.groupBy
  for (const { split } of catalogue.samples) splits.set(split, []);
  for (const sample of catalogue.samples) splits.get(sample.split).push(sample);
  const groups = [...splits].map(([split, samples]) => {
    const sorted = byError ? [...samples].sort((a, b) => (b.error ?? -1) - (a.error ?? -1)) : samples;
    const text = ({ id, name, points, error }) =>
      [name ?? id, points && `${points.toLocaleString("en")} points`, error !== undefined && format(error, 3)]
        .filter((part) => part !== false && part !== undefined)
        .join(" · ");
    return make(
      "optgroup",
      { label: split },
      ...sorted.map((sample) => make("option", { value: sample.id }, text(sample))),
    );
  });
  find("sample").replaceChildren(...groups);
  if (chosen) find("sample").value = chosen;
}

function step(by) {
  const menu = find("sample");
  const place = menu.selectedIndex + by;
  if (place < 0 || place >= menu.options.length) return;
  menu.selectedIndex = place;
  work(showSample);
}

async function showSample(wanted = () => true) {
  const menu = find("sample");
  const id = Number(menu.value);
  const found = await source.geometry(id);
  const shown = await contents(id, found.points.shape[0], wanted);
  if (!wanted()) return;
  const body = new Body(found.points, found.triangles);
  const old = state.body;
  if (!old || old.dimension !== body.dimension || !alike(old.size, body.size)) view.frame(body.dimension, body.size);
  Object.assign(state, { sample: id, body, panels: [] });
  body.shared.scale.value = 2 ** find("size").value;
  find("size-control").hidden = Boolean(found.triangles);
  for (const button of find("views").children) button.hidden = body.dimension === 2 && button.dataset.view !== "fit";
  find("views").classList.toggle("alone", body.dimension === 2);
  find("previous").disabled = menu.selectedIndex === 0;
  find("next").disabled = menu.selectedIndex === menu.options.length - 1;
  showFacts(found);
  showWarning(found["parameter/familiarity_score"]?.data[0]);
  arrange(shown);
  old?.dispose();
}

// The camera keeps its position if the next body has about the same size.
const alike = (a, b) => a.every((size, k) => Math.abs(size - b[k]) <= 0.2 * Math.max(...a));

function showFacts(found) {
  const numbers = (name) => Array.from(found[`parameter/${name}`].data, (v) => format(v, 5)).join(", ");
  const there = catalogue.parameters.filter(({ name }) => found[`parameter/${name}`]); // files may lack some
  const parameters = there.map(({ name, unit }) => [name, withUnit(numbers(name), unit)]);
  const facts = [...catalogue.facts, ["points", state.body.count.toLocaleString("en")], ...parameters];
  find("facts").replaceChildren(
    ...facts.flatMap(([name, value], i) => [`${i ? "  ·  " : ""}${name} `, make("b", {}, value)]),
  );
}

// Above 1, the OOD score of a prediction exceeds those of all held-out samples.
function showWarning(score) {
  find("warning").hidden = !(score > 1);
  find("warning").textContent =
    score > 1 ? `Out of distribution (OOD score ${score.toFixed(2)}): error bars are not valid.` : "";
}

async function showPanels(wanted = () => true) {
  const shown = await contents(state.sample, state.body.count, wanted);
  if (wanted()) arrange(shown);
}

// Content of the panels: eigenvectors if spectra are shown, else a field, else the shape alone.
async function contents(sample, count, wanted) {
  const shown = pressed() ? await spectraOf(sample, wanted) : null;
  if (shown) return shown;
  if (catalogue.fields.length) return fieldsOf(sample);
  return [
    { kind: "shape", title: "Shape", values: new Float32Array(count), label: "no field", unit: "", key: "shape" },
  ];
}

const pressed = () => find("spectra-button").getAttribute("aria-pressed") === "true";

async function spectraOf(sample, wanted) {
  const painted = catalogue.spectra.painted !== false;
  const found = await source.spectra(sample);
  if (!wanted()) return null;
  const note = painted
    ? "The panels show the leading eigenvectors of this head, scaled to mean square 1."
    : "This file does not contain eigenvectors.";
  spectra.show(found, note);
  return painted ? eigenvectors(sample) : null;
}

// Truth and prediction share the range of the truth; the error has its own, symmetric about zero.
async function fieldsOf(sample) {
  const name = find("field").value;
  const { unit } = catalogue.fields.find((field) => field.name === name);
  const found = await source.field(sample, name);
  const truth = found.truth?.data;
  const prediction = found.prediction?.data;
  const common = { label: name, unit, ranged: truth ?? prediction, key: name };
  const shown = [];
  if (truth) shown.push({ ...common, kind: "truth", title: prediction ? "Truth" : name, values: truth });
  if (prediction) shown.push({ ...common, kind: "prediction", title: "Prediction", values: prediction });
  if (truth && prediction) {
    const values = difference(prediction, truth);
    const { relative, largest } = errorNorms(truth, prediction);
    const note = `relative L2 ${format(relative, 3)} · largest error ${withUnit(format(largest, 3), unit)}`;
    shown.push({
      kind: "error",
      title: "Prediction − truth",
      note,
      values,
      label: `error of ${name}`,
      unit,
      signed: true,
      key: `error of ${name}`,
    });
  }
  return shown;
}

async function eigenvectors(sample) {
  const { block, head } = spectra;
  const found = await source.modes(sample, block, head);
  const [count, points] = found.eigenvectors.shape;
  return Array.from({ length: count }, (_, r) => ({
    kind: `mode-${r + 1}`,
    title: `Mode ${r + 1}`,
    note: `λ = ${format(found.eigenvalues.data[r], 4)}`,
    values: found.eigenvectors.data.subarray(r * points, (r + 1) * points),
    label: "eigenvector",
    unit: "",
    signed: true,
    key: `mode ${r}`,
  }));
}

function arrange(shown) {
  const area = find("panels");
  Object.assign(state, { field: find("field").value, spectra: pressed() });
  find("spectra").hidden = !state.spectra;
  while (state.panels.length > shown.length) state.panels.pop().section.remove();
  while (state.panels.length < shown.length) {
    const panel = new Panel(state.body.layer(state.panels.length), {
      view,
      limits,
      changed: () => (state.panels.forEach((p) => p.updateRange()), stage.refresh()),
    });
    listen(panel);
    state.panels.push(panel);
  }
  area.style.setProperty("--columns", shown.length > 4 ? 3 : shown.length > 3 ? 2 : shown.length);
  area.replaceChildren(find("canvas"), ...state.panels.map((panel) => panel.section));
  state.panels.forEach((panel, i) => panel.show(shown[i]));
  paint();
  clearHover();
  find("partial").firstElementChild.textContent =
    `Only some of the ${state.body.count.toLocaleString("en")} points are drawn: drawing all is slow here.`;
  stage.show(state.body, state.panels);
}

function paint() {
  state.panels.forEach((panel) => panel.setColors(find("colors").value));
}

// Hovering shows the point below the pointer, its coordinates and its value in every panel.
function listen(panel) {
  let waiting;
  panel.element.addEventListener("pointermove", (event) => {
    clearTimeout(waiting);
    if (view.dragging) return clearHover();
    waiting = setTimeout(() => hover(panel, event), 15);
  });
  panel.element.addEventListener("pointerleave", () => (clearTimeout(waiting), clearHover()));
}

function hover(panel, event) {
  if (view.dragging || !state.panels.includes(panel)) return;
  const box = panel.element.getBoundingClientRect();
  state.hovered = stage.pick(panel.element, event.clientX - box.left, event.clientY - box.top);
  if (state.hovered === null) return clearHover();
  const readout = find("readout");
  const i = state.hovered;
  const where = withUnit(
    `(${state.body
      .at(i)
      .map((x) => format(x))
      .join(", ")})`,
    catalogue.length_unit,
  );
  readout.replaceChildren(
    make("dt", { class: "where" }, `point ${i} at ${where}`),
    ...(catalogue.fields.length || state.panels.length > 1 ? state.panels : []).flatMap((p) => [
      make("dt", {}, p.label),
      make("dd", { "data-kind": p.kind }, p.at(i)),
    ]),
  );
  readout.hidden = false;
  const { width, height } = readout.getBoundingClientRect();
  readout.style.left = `${beside(event.clientX, width, innerWidth)}px`;
  readout.style.top = `${beside(event.clientY, height, innerHeight)}px`;
  mark();
}

// To the right of or below the pointer, or on the other side if there is no room.
const beside = (at, size, room) => Math.max(4, at + 18 + size > room ? at - 18 - size : at + 18);

function mark() {
  for (const { marker, element } of state.panels) {
    marker.hidden = state.hovered === null;
    if (marker.hidden) continue;
    const { x, y } = stage.placeOf(state.hovered, element);
    marker.hidden = x < 0 || y < 0 || x > element.clientWidth || y > element.clientHeight;
    Object.assign(marker.style, { left: `${x}px`, top: `${y}px` });
  }
}

function clearHover() {
  state.hovered = null;
  find("readout").hidden = true;
  mark();
}

stage.drawn = () => {
  find("partial").hidden = !stage.partial;
  const axes = view.axes();
  state.panels.forEach((panel) => panel.drawAxes(axes));
  mark();
};

find("partial").addEventListener("click", () => ((stage.all = true), stage.refresh()));
find("sample").addEventListener("change", () => work(showSample));
find("order").addEventListener("change", listSamples);
find("field").addEventListener("change", () => work(showPanels));
find("colors").addEventListener("change", () => (paint(), stage.refresh()));
find("size").addEventListener(
  "input",
  (event) => ((state.body.shared.scale.value = 2 ** event.target.value), stage.refresh()),
);
find("previous").addEventListener("click", () => step(-1));
find("next").addEventListener("click", () => step(1));
find("views").addEventListener("click", (event) => event.target.dataset.view && view.look(event.target.dataset.view));
find("spectra-button").addEventListener("click", (event) => {
  event.currentTarget.setAttribute("aria-pressed", !pressed());
  work(showPanels);
});
addEventListener("keydown", (event) => {
  if (event.target.closest("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "ArrowRight") step(1);
  else if (event.key === "f") view.look("fit");
});

// For benchmarks and tests.
globalThis.flare = { stage, view, state };
work(begin);
