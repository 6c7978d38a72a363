// One canvas behind all panels: every panel is a window of it, drawn with the same camera, only when something changed.
import { Vector3, WebGLRenderTarget, WebGLRenderer } from "three";

const SMOOTH = 40; // ms: a frame that takes longer is drawn with fewer points while the view moves
const PATIENCE = 1500; // ms: a frame that takes longer is drawn with fewer points at rest, too, until all are asked for
const REST = 160; // ms without motion, after which everything is drawn again
const TRIED = 3; // frames of a new body drawn with fewer points, to learn how fast this computer is
const MEASURED = 12; // frames of it that are timed; the first has the upload in it, so the best one counts
const REACH = 6; // pixels around the pointer in which a point is found

export class Stage {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    this.renderer = new WebGLRenderer({ canvas, alpha: true, antialias: true });
    this.renderer.setScissorTest(true);
    this.renderer.autoClear = false;
    this.renderer.setClearColor(0x000000, 0); // the card behind shows through
    this.near = new WebGLRenderTarget(2 * REACH + 1, 2 * REACH + 1);
    this.windows = []; // {element, layer}
    this.frames = { whole: Infinity, few: Infinity, drawn: 0 }; // ms that a frame of each kind takes
    new ResizeObserver(() => this.refresh()).observe(canvas.parentElement);
  }

  show(body, windows) {
    if (body !== this.body) this.all = false;
    this.body = body;
    this.windows = windows;
    Object.assign(this.frames, { whole: Infinity, few: Infinity, drawn: 0 });
    this.refresh();
  }

  // Draw soon; `moving`: more is to come.
  refresh(moving = false) {
    this.moving = moving;
    clearTimeout(this.resting);
    if (moving) this.resting = setTimeout(() => this.refresh(), REST);
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
    });
  }

  draw() {
    if (!this.body || !this.windows.length) return;
    const { renderer } = this;
    const few = this.body.few && !this.all && this.expected() > (this.moving ? SMOOTH : PATIENCE);
    const start = performance.now();
    const area = this.canvas.parentElement.getBoundingClientRect();
    this.resize(area.width, area.height);
    this.body.shared.height.value = this.windows[0].element.clientHeight * renderer.getPixelRatio();
    for (const { element, layer } of this.windows) {
      const box = element.getBoundingClientRect();
      const window = [box.left - area.left, area.bottom - box.bottom, box.width, box.height];
      renderer.setViewport(...window);
      renderer.setScissor(...window);
      layer.show(few);
      renderer.clear();
      renderer.render(layer.scene, this.view.at(box.width / box.height));
    }
    if (this.frames.drawn++ < MEASURED) {
      this.settle();
      const kind = few ? "few" : "whole";
      this.frames[kind] = Math.min(this.frames[kind], performance.now() - start);
    }
    this.partial = Boolean(few) && !this.moving;
    if (this.partial && (this.frames.drawn < TRIED || this.expected() <= PATIENCE)) this.refresh();
    this.drawn?.();
  }

  // ms that a whole frame takes or, before there was one, would take by the time of those with fewer points.
  expected() {
    const { index, few, count } = this.body;
    return Math.min(this.frames.whole, this.frames.few * ((index?.count ?? count) / few.count));
  }

  resize(width, height) {
    const shape = [width, height, Math.min(devicePixelRatio, 2)];
    if (String(shape) === this.shape) return; // setting a size again would clear the canvas
    this.shape = String(shape);
    this.renderer.setPixelRatio(shape[2]);
    this.renderer.setSize(width, height);
  }

  // A pixel can be read only when everything is drawn: the time until then is the time of the frame.
  settle() {
    const gl = this.renderer.getContext();
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(4));
  }

  // The point nearest to a place of a window, both in pixels of the page; null where there is none.
  pick(element, x, y) {
    const { renderer, body } = this;
    const ratio = renderer.getPixelRatio();
    const side = 2 * REACH + 1;
    const { clientWidth: width, clientHeight: height } = element;
    const camera = this.view.at(width / height);
    camera.setViewOffset(
      width * ratio,
      height * ratio,
      Math.floor(x * ratio) - REACH,
      Math.floor(y * ratio) - REACH,
      side,
      side,
    );
    body.shared.height.value = side; // what the camera sees now
    renderer.setRenderTarget(this.near);
    renderer.clear();
    renderer.render(body.numbered, camera);
    const bytes = new Uint8Array(4 * side * side);
    renderer.readRenderTargetPixels(this.near, 0, 0, side, side, bytes);
    renderer.setRenderTarget(null);
    camera.clearViewOffset();
    const found = nearest(new Uint32Array(bytes.buffer), side);
    return found === null || !body.triangles ? found : this.corner(found, camera, x, y, width, height);
  }

  // The corner nearest to the pointer of the triangle below it, of which only the last corner is known.
  corner(last, camera, x, y, width, height) {
    const { triangles } = this.body;
    let best = last;
    let least = Infinity;
    for (const t of this.body.endingAt(last)) {
      const corners = [0, 1, 2].map((k) => triangles[3 * t + k]);
      const places = corners.map((i) => this.project(i, camera, width, height));
      const apart = places.map((p) => Math.hypot(p.x - x, p.y - y));
      const away = outside(places, x, y) ? 1e9 : 0;
      const k = apart.indexOf(Math.min(...apart));
      if (apart[k] + away < least) [best, least] = [corners[k], apart[k] + away];
    }
    return best;
  }

  // Where a point is in a window, in pixels of the page from its upper left corner.
  project(i, camera, width, height) {
    const p = new Vector3().fromArray(this.body.positions, 3 * i).project(camera);
    return { x: (0.5 + 0.5 * p.x) * width, y: (0.5 - 0.5 * p.y) * height };
  }

  placeOf(i, element) {
    const { clientWidth: width, clientHeight: height } = element;
    return this.project(i, this.view.at(width / height), width, height);
  }
}

function nearest(numbers, side) {
  let found = null;
  let least = Infinity;
  for (let i = 0; i < numbers.length; i++) {
    const d = Math.hypot((i % side) - REACH, Math.floor(i / side) - REACH);
    if (numbers[i] && d < least) [found, least] = [numbers[i] - 1, d];
  }
  return found;
}

function outside([a, b, c], x, y) {
  const side = (p, q) => (q.x - p.x) * (y - p.y) - (q.y - p.y) * (x - p.x);
  const sides = [side(a, b), side(b, c), side(c, a)];
  return sides.some((s) => s < 0) && sides.some((s) => s > 0);
}
