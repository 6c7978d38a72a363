// A panel: title, window into the canvas, and a color bar with editable ends.
import { SIGNED, gradient } from "flare/colors.js";
import { draw, make } from "flare/dom.js";
import { extent, format, parse, symmetricExtent, withUnit } from "flare/numbers.js";

export class Panel {
  // `limits` holds the ranges that the user has set, by key.
  constructor(layer, { view, limits, changed }) {
    this.layer = layer;
    this.limits = limits;
    this.changed = changed;
    this.title = make("h2");
    this.note = make("span", { class: "note" });
    this.marker = make("div", { class: "marker", hidden: "" });
    this.element = make("div", { class: "stage" }, this.marker);
    this.ends = [0, 1].map((end) =>
      make("input", {
        "aria-label": end ? "upper end of the range" : "lower end of the range",
        size: 8,
        onchange: () => this.applyInput(),
      }),
    );
    this.ramp = make("div", { class: "ramp" });
    this.what = make("span");
    this.auto = make("button", { class: "auto", title: "range of the data", onclick: () => this.reset() }, "auto");
    const bar = make(
      "footer",
      { class: "bar" },
      this.ends[0],
      this.ramp,
      this.ends[1],
      make("div", { class: "what" }, this.what, this.auto),
    );
    this.section = make("section", { class: "panel" }, make("header", {}, this.title, this.note), this.element, bar);
    view.listen(this.element);
    if (!view.flat) this.element.append((this.triad = draw("svg", { class: "triad", viewBox: "-28 -28 56 56" })));
  }

  // `ranged`: values that define the color range; `key`: panels with the same key share a range set by the user.
  show({ kind, title, note = "", values, ranged = values, label, unit, signed = false, key }) {
    Object.assign(this, { kind, label: title, values, unit, signed, key });
    this.section.dataset.kind = kind;
    this.title.textContent = title;
    this.note.textContent = this.note.title = note;
    this.what.textContent = unit ? `${label} [${unit}]` : label;
    this.data = signed ? symmetricExtent(ranged) : extent(ranged);
    this.reach = extent(values);
    this.layer.paint(values, this.range);
    this.updateRange();
  }

  get range() {
    return this.limits.get(this.key) ?? this.data;
  }

  setColors(name) {
    const used = this.signed ? SIGNED : name;
    this.layer.color(used);
    this.ramp.style.background = gradient(used);
  }

  updateRange() {
    const [low, high] = this.range;
    this.layer.limit(this.range);
    this.ends[0].value = format(low, 7);
    this.ends[1].value = format(high, 7);
    this.ends.forEach((end) => end.setCustomValidity(""));
    this.ramp.classList.toggle("below", this.reach[0] < low);
    this.ramp.classList.toggle("above", this.reach[1] > high);
    this.auto.hidden = !this.limits.has(this.key);
  }

  applyInput() {
    const [low, high] = this.ends.map((end) => parse(end.value));
    const valid = Number.isFinite(low) && Number.isFinite(high) && low < high;
    this.ends.forEach((end) => end.setCustomValidity(valid ? "" : "enter two numbers, the lower one first"));
    if (!valid) return;
    this.limits.set(this.key, [low, high]);
    this.changed();
  }

  reset() {
    this.limits.delete(this.key);
    this.changed();
  }

  at(i) {
    return withUnit(format(this.values[i]), this.unit);
  }

  // Draw the coordinate axes as seen by the camera.
  drawAxes({ across, upward, toward }) {
    if (!this.triad) return;
    const ends = ["x", "y", "z"].map((name, k) => {
      const [x, y] = [across, upward].map((direction) => 20 * direction.getComponent(k));
      return { name, x, y: -y, depth: toward.getComponent(k) };
    });
    ends.sort((a, b) => a.depth - b.depth);
    this.triad.replaceChildren(
      ...ends.flatMap(({ name, x, y }) => [
        draw("line", { x1: 0, y1: 0, x2: x, y2: y }),
        draw("text", { x: 1.35 * x, y: 1.35 * y }, name),
      ]),
    );
  }
}
