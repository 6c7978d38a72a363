// One canvas behind all panels. Every panel is a window of it, drawn with the same camera and only after changes.
import { Vector3, WebGLRenderTarget, WebGLRenderer } from "three";

const MAX_MOVING_FRAME = 40; // ms; slower frames are drawn with fewer points while the camera moves
const MAX_FRAME = 1500; // ms; slower frames are drawn with fewer points at rest, too, until the user asks for all
const REST = 160; // ms without motion until all points are drawn again
const TRIAL_FRAMES = 3; // frames of a new body that measure the speed of this computer with fewer points
const TIMED_FRAMES = 12; // frames that are timed; the fastest counts because the first includes the upload
const REACH = 6; // pixels around the pointer in which points are found

export class Stage {
  constructor(canvas, view) {
    this.canvas = canvas;
    this.view = view;
    this.renderer = new WebGLRenderer({ canvas, alpha: true, antialias: true });
    this.renderer.setScissorTest(true);
    this.renderer.autoClear = false;
    this.renderer.setClearColor(0x000000, 0); // transparent: the panel behind is visible
    this.near = new WebGLRenderTarget(2 * REACH + 1, 2 * REACH + 1);
    this.windows = []; // {element, layer}
    this.frames = { whole: Infinity, few: Infinity, drawn: 0 }; // ms per frame of each kind
    new ResizeObserver(() => this.refresh()).observe(canvas.parentElement);
  }

  show(body, windows) {
    if (body !== this.body) this.all = false;
    this.body = body;
    this.windows = windows;
    Object.assign(this.frames, { whole: Infinity, few: Infinity, drawn: 0 });
    this.refresh();
  }

  // Draw in the next frame; `moving`: the camera is still in motion.
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
    const few = this.body.few && !this.all && this.expected() > (this.moving ? MAX_MOVING_FRAME : MAX_FRAME);
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
    if (this.frames.drawn++ < TIMED_FRAMES) {
      this.settle();
      const kind = few ? "few" : "whole";
      this.frames[kind] = Math.min(this.frames[kind], performance.now() - start);
    }
    this.partial = Boolean(few) && !this.moving;
    if (this.partial && (this.frames.drawn < TRIAL_FRAMES || this.expected() <= MAX_FRAME)) this.refresh();
    this.drawn?.();
  }

  // Expected time of a whole frame in ms, estimated from frames with fewer points until there was one.
  expected() {
    const { index, few, count } = this.body;
    return Math.min(this.frames.whole, this.frames.few * ((index?.count ?? count) / few.count));
  }

  resize(width, height) {
    const shape = [width, height, Math.min(devicePixelRatio, 2)];
    if (String(shape) === this.shape) return; // setting the size clears the canvas
    this.shape = String(shape);
    this.renderer.setPixelRatio(shape[2]);
    this.renderer.setSize(width, height);
  }

  // Reading a pixel waits until the frame is complete, so that its time can be measured.
  settle() {
    const gl = this.renderer.getContext();
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(4));
  }

  // Index of the point nearest to (x, y) in CSS pixels of a window; null if there is none.
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
    body.shared.height.value = side; // size of the offset view
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

  // Corner nearest to the pointer of the triangle below it; picking yields only the last corner of that triangle.
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

  // Position of a point in CSS pixels from the upper left corner of a window.
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
