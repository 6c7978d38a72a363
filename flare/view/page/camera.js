// One view for all panels: what is looked at, from where, how closely. Drag, wheel and fingers change it.
import { OrthographicCamera, PerspectiveCamera, Vector3 } from "three";

const FIELD_OF_VIEW = 24; // degrees; long lenses keep shapes true
const STEEPEST = 0.4999 * Math.PI;
const NEAR_ENOUGH = 1e-6;
const FAR_ENOUGH = 20; // spans, in sizes of the body

export class View {
  constructor(changed) {
    this.changed = changed;
    this.target = new Vector3();
    this.fingers = new Map();
  }

  // A body of so many dimensions in a box around the origin, seen from a corner, or from above if it is flat.
  frame(dimension, size) {
    this.flat = dimension === 2;
    this.size = size;
    this.radius = 0.5 * Math.hypot(...size);
    this.camera = this.flat ? new OrthographicCamera() : new PerspectiveCamera(FIELD_OF_VIEW);
    this.camera.up.set(0, this.flat ? 1 : 0, this.flat ? 0 : 1);
    this.look("fit");
  }

  look(from) {
    const directions = { fit: [-0.96, 0.49], x: [0, 0], y: [0.5 * Math.PI, 0], z: [-0.5 * Math.PI, STEEPEST] };
    [this.yaw, this.pitch] = this.flat ? directions.z : directions[from];
    this.target.set(0, 0, 0);
    this.fitted = NaN; // the shape of the panels that the picture is made to fit, until the user zooms
    this.changed();
  }

  // The camera for panels of this shape, width / height.
  at(aspect) {
    const camera = this.camera;
    const { towards } = this.axes();
    if (this.fitted !== null && this.fitted !== aspect) [this.span, this.fitted] = [this.fitting(aspect), aspect];
    const distance = this.span / (2 * Math.tan((0.5 * FIELD_OF_VIEW * Math.PI) / 180));
    camera.position.copy(this.target).addScaledVector(towards, this.flat ? 2 * this.radius : distance);
    camera.lookAt(this.target);
    if (this.flat) {
      Object.assign(camera, {
        top: this.span / 2,
        bottom: -this.span / 2,
        left: (-aspect * this.span) / 2,
        right: (aspect * this.span) / 2,
      });
      Object.assign(camera, { near: 0.01 * this.radius, far: 4 * this.radius });
    } else {
      const away = camera.position.length();
      Object.assign(camera, {
        aspect,
        near: Math.max(away - 1.05 * this.radius, distance / 500),
        far: away + 1.05 * this.radius,
      });
    }
    camera.updateProjectionMatrix();
    camera.updateMatrixWorld();
    return camera;
  }

  // Height of the picture that holds the whole box, with a margin.
  fitting(aspect) {
    const { across, upward, towards } = this.axes();
    const shadow = (direction) => this.size.reduce((sum, s, i) => sum + s * Math.abs(direction.getComponent(i)), 0);
    const depth = this.flat ? 0 : shadow(towards);
    const span = 1.08 * Math.max(shadow(upward), shadow(across) / aspect);
    return span + depth * Math.tan((0.5 * FIELD_OF_VIEW * Math.PI) / 180);
  }

  // To the right and upwards in the picture, and towards the viewer.
  axes() {
    if (this.flat) return { across: new Vector3(1, 0, 0), upward: new Vector3(0, 1, 0), towards: new Vector3(0, 0, 1) };
    const [cy, sy, cp, sp] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const towards = new Vector3(cp * cy, cp * sy, sp);
    const across = new Vector3(-sy, cy, 0);
    return { across, upward: towards.clone().cross(across), towards };
  }

  turn(dx, dy) {
    // in heights of the panel
    this.yaw -= 3.2 * dx;
    this.pitch = Math.min(Math.max(this.pitch + 3.2 * dy, -STEEPEST), STEEPEST);
    this.changed();
  }

  shift(dx, dy) {
    const { across, upward } = this.axes();
    this.target.addScaledVector(across, -dx * this.span).addScaledVector(upward, dy * this.span);
    this.changed();
  }

  // What is below (x, y), in heights from the middle of the panel, stays there.
  zoom(factor, x, y) {
    const span = Math.min(Math.max(this.span * factor, NEAR_ENOUGH * this.radius), FAR_ENOUGH * this.radius);
    const { across, upward } = this.axes();
    this.target.addScaledVector(across, x * (this.span - span)).addScaledVector(upward, -y * (this.span - span));
    this.span = span;
    this.fitted = null;
    this.changed();
  }

  listen(stage) {
    const place = (event) => {
      const box = stage.getBoundingClientRect();
      return {
        x: (event.clientX - box.left - box.width / 2) / box.height,
        y: (event.clientY - box.top - box.height / 2) / box.height,
      };
    };
    stage.addEventListener("pointerdown", (event) => {
      stage.setPointerCapture(event.pointerId);
      this.fingers.set(event.pointerId, place(event));
      event.preventDefault();
    });
    stage.addEventListener("pointermove", (event) => {
      const before = this.fingers.get(event.pointerId);
      if (!before) return;
      const now = place(event);
      const dx = now.x - before.x;
      const dy = now.y - before.y;
      this.fingers.set(event.pointerId, now);
      if (this.fingers.size === 2) this.pinch(event.pointerId, before, now);
      else if (this.flat || event.shiftKey || event.buttons & 6) this.shift(dx, dy);
      else this.turn(dx, dy);
    });
    for (const end of ["pointerup", "pointercancel"])
      stage.addEventListener(end, (e) => this.fingers.delete(e.pointerId));
    stage.addEventListener(
      "wheel",
      (event) => {
        const { x, y } = place(event);
        this.zoom(Math.exp(0.0015 * Math.min(Math.max(event.deltaY * (event.deltaMode ? 30 : 1), -240), 240)), x, y);
        event.preventDefault();
      },
      { passive: false },
    );
    stage.addEventListener("dblclick", () => this.look("fit"));
    stage.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  pinch(moved, before, now) {
    const other = [...this.fingers].find(([id]) => id !== moved)[1];
    const apart = (a) => Math.hypot(a.x - other.x, a.y - other.y) || 1e-6;
    this.zoom(apart(before) / apart(now), (now.x + other.x) / 2, (now.y + other.y) / 2);
    this.shift((now.x - before.x) / 2, (now.y - before.y) / 2);
  }

  get dragging() {
    return this.fingers.size > 0;
  }
}
