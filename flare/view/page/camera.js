// The camera that all panels share, controlled by mouse, wheel and touch.
import { OrthographicCamera, PerspectiveCamera, Vector3 } from "three";

const FIELD_OF_VIEW = 24; // degrees; a small angle distorts shapes little
const MAX_PITCH = 0.4999 * Math.PI;
const MIN_SPAN = 1e-6;
const MAX_SPAN = 20; // largest span, relative to the radius of the body

export class View {
  constructor(changed) {
    this.changed = changed;
    this.target = new Vector3();
    this.pointers = new Map();
  }

  // Look at a body in a box around the origin: from a corner, or from above if it is flat.
  frame(dimension, size) {
    this.flat = dimension === 2;
    this.size = size;
    this.radius = 0.5 * Math.hypot(...size);
    this.camera = this.flat ? new OrthographicCamera() : new PerspectiveCamera(FIELD_OF_VIEW);
    this.camera.up.set(0, this.flat ? 1 : 0, this.flat ? 0 : 1);
    this.look("fit");
  }

  look(from) {
    const directions = { fit: [-0.96, 0.49], x: [0, 0], y: [0.5 * Math.PI, 0], z: [-0.5 * Math.PI, MAX_PITCH] };
    [this.yaw, this.pitch] = this.flat ? directions.z : directions[from];
    this.target.set(0, 0, 0);
    this.fitted = NaN; // aspect ratio for which the body was fitted; null after the user has zoomed
    this.changed();
  }

  // Return the camera for panels of this aspect ratio, width / height.
  at(aspect) {
    const camera = this.camera;
    const { toward } = this.axes();
    if (this.fitted !== null && this.fitted !== aspect) [this.span, this.fitted] = [this.fitSpan(aspect), aspect];
    const distance = this.span / (2 * Math.tan((0.5 * FIELD_OF_VIEW * Math.PI) / 180));
    camera.position.copy(this.target).addScaledVector(toward, this.flat ? 2 * this.radius : distance);
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

  // Height of the view that shows the whole box, with a margin.
  fitSpan(aspect) {
    const { across, upward, toward } = this.axes();
    const shadow = (direction) => this.size.reduce((sum, s, i) => sum + s * Math.abs(direction.getComponent(i)), 0);
    const depth = this.flat ? 0 : shadow(toward);
    const span = 1.08 * Math.max(shadow(upward), shadow(across) / aspect);
    return span + depth * Math.tan((0.5 * FIELD_OF_VIEW * Math.PI) / 180);
  }

  // Unit vectors to the right, upward and toward the viewer.
  axes() {
    if (this.flat) return { across: new Vector3(1, 0, 0), upward: new Vector3(0, 1, 0), toward: new Vector3(0, 0, 1) };
    const [cy, sy, cp, sp] = [Math.cos(this.yaw), Math.sin(this.yaw), Math.cos(this.pitch), Math.sin(this.pitch)];
    const toward = new Vector3(cp * cy, cp * sy, sp);
    const across = new Vector3(-sy, cy, 0);
    return { across, upward: toward.clone().cross(across), toward };
  }

  turn(dx, dy) {
    // relative to the height of the panel
    this.yaw -= 3.2 * dx;
    this.pitch = Math.min(Math.max(this.pitch + 3.2 * dy, -MAX_PITCH), MAX_PITCH);
    this.changed();
  }

  shift(dx, dy) {
    const { across, upward } = this.axes();
    this.target.addScaledVector(across, -dx * this.span).addScaledVector(upward, dy * this.span);
    this.changed();
  }

  // Zoom about the point (x, y), relative to the center of the panel in units of its height.
  zoom(factor, x, y) {
    const span = Math.min(Math.max(this.span * factor, MIN_SPAN * this.radius), MAX_SPAN * this.radius);
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
      this.pointers.set(event.pointerId, place(event));
      event.preventDefault();
    });
    stage.addEventListener("pointermove", (event) => {
      const before = this.pointers.get(event.pointerId);
      if (!before) return;
      const now = place(event);
      const dx = now.x - before.x;
      const dy = now.y - before.y;
      this.pointers.set(event.pointerId, now);
      if (this.pointers.size === 2) this.pinch(event.pointerId, before, now);
      else if (this.flat || event.shiftKey || event.buttons & 6) this.shift(dx, dy);
      else this.turn(dx, dy);
    });
    for (const end of ["pointerup", "pointercancel"])
      stage.addEventListener(end, (e) => this.pointers.delete(e.pointerId));
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
    const other = [...this.pointers].find(([id]) => id !== moved)[1];
    const distance = (a) => Math.hypot(a.x - other.x, a.y - other.y) || 1e-6;
    this.zoom(distance(before) / distance(now), (now.x + other.x) / 2, (now.y + other.y) / 2);
    this.shift((now.x - before.x) / 2, (now.y - before.y) / 2);
  }

  get dragging() {
    return this.pointers.size > 0;
  }
}
