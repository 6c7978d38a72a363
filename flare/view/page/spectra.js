// The side panel of spectra: effective rank of every head, and eigenvalues of the chosen head.
import { shade } from "flare/colors.js";
import { draw, make } from "flare/dom.js";

const WIDTH = 288;
const HEIGHT = 190;
const LEFT = 34;
const BELOW = 24;
const FLOOR = 1e-9;

export class Spectra {
  constructor(element, choose) {
    this.element = element;
    this.choose = choose;
  }

  // `eigenvalues` [blocks, heads, latents], `effective_rank` [blocks, heads]; `note`: text below the chart.
  show({ eigenvalues, effective_rank: ranks }, note) {
    const [blocks, heads, latents] = eigenvalues.shape;
    Object.assign(this, { values: eigenvalues.data, ranks: ranks.data, blocks, heads, latents });
    if (!(this.block < blocks && this.head < heads)) {
      this.block = blocks >> 1;
      const row = Array.from(this.ranks.subarray(this.block * heads, (this.block + 1) * heads));
      this.head = row.indexOf(Math.max(...row));
    }
    this.chart = make("div");
    this.heading = make("h2");
    this.element.replaceChildren(
      make("h2", {}, "Effective rank"),
      make("p", {}, `of each head on this sample; at most ${latents}, the number of latents`),
      this.table(),
      this.heading,
      this.chart,
      make("p", {}, note),
    );
    this.mark();
  }

  table() {
    const most = Math.max(...this.ranks);
    this.buttons = [];
    const rows = Array.from({ length: this.blocks }, (_, b) =>
      make(
        "tr",
        {},
        make("th", {}, String(b + 1)),
        ...Array.from({ length: this.heads }, (_, h) => {
          const rank = this.ranks[b * this.heads + h];
          const { background, dark } = shade("cividis", rank / most);
          const style = `background: ${background}; color: ${dark ? "#fff" : "#111"}`;
          const title = `block ${b + 1}, head ${h + 1}: effective rank ${rank.toFixed(2)}`;
          const button = make(
            "button",
            { style, title, "data-block": b, "data-head": h, onclick: () => this.pick(b, h) },
            rank.toFixed(rank < 9.95 ? 1 : 0),
          );
          this.buttons.push(button);
          return make("td", {}, button);
        }),
      ),
    );
    const names = Array.from({ length: this.heads }, (_, h) => make("th", {}, String(h + 1)));
    return make(
      "table",
      { class: "heads", "aria-label": "blocks down, heads across" },
      make("tr", {}, make("th", { title: "blocks down, heads across" }, "↓ →"), ...names),
      ...rows,
    );
  }

  pick(block, head) {
    Object.assign(this, { block, head });
    this.mark();
    this.choose();
  }

  mark() {
    this.buttons.forEach((b) =>
      b.setAttribute("aria-pressed", +b.dataset.block === this.block && +b.dataset.head === this.head),
    );
    this.heading.textContent = `Eigenvalues, block ${this.block + 1}, head ${this.head + 1}`;
    this.chart.replaceChildren(this.curves());
  }

  curves() {
    const decades = Math.log10(FLOOR);
    const x = (i) => LEFT + ((WIDTH - LEFT - 6) * i) / Math.max(this.latents - 1, 1);
    const y = (value) => 8 + ((HEIGHT - BELOW - 8) * Math.log10(Math.max(value, FLOOR))) / decades;
    const ticks = [0, -3, -6, -9].flatMap((power) => [
      draw("line", { x1: LEFT, x2: WIDTH - 6, y1: y(10 ** power), y2: y(10 ** power) }),
      draw("text", { x: LEFT - 5, y: y(10 ** power) + 3.5, "text-anchor": "end" }, power ? `1e${power}` : "1"),
    ]);
    const curve = (head, name) => {
      const start = (this.block * this.heads + head) * this.latents;
      const places = Array.from(
        { length: this.latents },
        (_, i) => `${x(i).toFixed(1)} ${y(this.values[start + i]).toFixed(1)}`,
      );
      return draw("path", { d: `M${places.join("L")}`, class: name });
    };
    const others = Array.from({ length: this.heads }, (_, h) => curve(h, ""));
    const ends = [0, this.latents - 1].map((i) =>
      draw("text", { x: x(i), y: HEIGHT - 8, "text-anchor": i ? "end" : "start" }, String(i + 1)),
    );
    const label = "eigenvalues of this head, largest first, and of the other heads of the block";
    return draw(
      "svg",
      { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
      ...ticks,
      ...others,
      curve(this.head, "chosen"),
      ...ends,
    );
  }
}
