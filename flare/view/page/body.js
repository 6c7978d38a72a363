// The drawn body: triangles or points, colored by a value per point. All panels share its positions.
import {
  BufferAttribute,
  BufferGeometry,
  DataTexture,
  DoubleSide,
  GLSL3,
  LinearFilter,
  Mesh,
  Points,
  Scene,
  ShaderMaterial,
  Vector2,
} from "three";
import { coarse, spacing } from "flare/coarse.js";
import { table } from "flare/colors.js";

const SHARED = /* glsl */ `
  uniform float diameter;   // of a point, in the length unit of the body
  uniform float height;     // of the panel in pixels
  uniform float scale;      // of points, set by the user

  void place(vec4 view) {
    gl_Position = projectionMatrix * view;
    gl_PointSize = clamp(scale * diameter * height * 0.5 * projectionMatrix[1][1] / gl_Position.w, 1.5, 200.0);
  }
`;

const COLORED = {
  vertexShader: /* glsl */ `
    ${SHARED}
    in float value;
    out float v;
    out vec3 seen;
    void main() {
      vec4 view = modelViewMatrix * vec4(position, 1.0);
      place(view);
      v = value;
      seen = view.xyz;
    }`,
  fragmentShader: /* glsl */ `
    uniform sampler2D colors;
    uniform vec2 range;
    uniform bool round;   // draw points as small spheres
    uniform bool lit;     // 3-D only; flat pictures have no shading
    in float v;
    in vec3 seen;
    out vec4 fragment_color;
    const vec3 LIGHT = normalize(vec3(-0.25, 0.55, 0.8));   // from above and to the left of the viewer
    void main() {
      vec3 normal;
      if (round) {
        vec2 p = 2.0 * gl_PointCoord - 1.0;
        float r = dot(p, p);
        if (r > 1.0) discard;
        normal = vec3(p.x, -p.y, sqrt(1.0 - r));
      } else {
        normal = normalize(cross(dFdx(seen), dFdy(seen)));
        if (normal.z < 0.0) normal = -normal;
      }
      float place = clamp((v - range.x) / (range.y - range.x), 0.0, 1.0);
      // The center of the first texel is 0, that of the last is 1.
      vec3 rgb = isnan(v) ? vec3(0.55) : texture(colors, vec2((place * 255.0 + 0.5) / 256.0, 0.5)).rgb;
      fragment_color = vec4(lit ? rgb * (0.5 + 0.55 * max(dot(normal, LIGHT), 0.0)) : rgb, 1.0);
    }`,
};

// Encodes the index of a point plus one as four bytes; a triangle gets the index of its last corner.
const NUMBERED = {
  vertexShader: /* glsl */ `
    ${SHARED}
    flat out uint number;
    void main() {
      place(modelViewMatrix * vec4(position, 1.0));
      number = uint(gl_VertexID) + 1u;
    }`,
  fragmentShader: /* glsl */ `
    uniform bool round;
    flat in uint number;
    out vec4 fragment_color;
    void main() {
      if (round && length(2.0 * gl_PointCoord - 1.0) > 1.0) discard;
      fragment_color = vec4((uvec4(number) >> uvec4(0u, 8u, 16u, 24u)) & 255u) / 255.0;
    }`,
};

export class Body {
  // `points` {shape: [N, 2 or 3], data}; `triangles` {shape: [T, 3], data} or undefined.
  constructor(points, triangles) {
    const [count, dimension] = points.shape;
    this.count = count;
    this.dimension = dimension;
    this.exact = points.data; // unchanged; drawn positions are centered, where float32 is most precise
    this.triangles = triangles?.data;
    this.center = [0, 0, 0];
    this.size = [0, 0, 0];
    for (let k = 0; k < dimension; k++) {
      let low = Infinity;
      let high = -Infinity;
      for (let i = k; i < points.data.length; i += dimension) {
        low = Math.min(low, points.data[i]);
        high = Math.max(high, points.data[i]);
      }
      this.center[k] = (low + high) / 2;
      this.size[k] = high - low;
    }
    if (!(Math.max(...this.size) > 0)) this.size.fill(1);
    this.positions = new Float32Array(3 * count);
    for (let i = 0; i < count; i++) {
      for (let k = 0; k < dimension; k++) this.positions[3 * i + k] = points.data[dimension * i + k] - this.center[k];
    }
    this.position = new BufferAttribute(this.positions, 3);
    this.index = triangles && new BufferAttribute(triangles.data, 1);
    const few = coarse(this.positions, triangles?.data);
    this.few = few && new BufferAttribute(few, 1);
    this.shared = {
      diameter: { value: triangles ? 0 : this.diameter() },
      height: { value: 1 },
      scale: { value: 1 },
      round: { value: !triangles },
    };
    this.layers = [];
    this.numbered = new Scene();
    this.numbered.add(
      this.drawing(
        this.index,
        new ShaderMaterial({ ...NUMBERED, glslVersion: GLSL3, side: DoubleSide, uniforms: this.shared }),
      ),
    );
  }

  // Diameter at which neighboring points touch: from the area per point in 2-D, from sampled distances in 3-D.
  diameter() {
    const [width, height] = this.size;
    return this.dimension === 2 && width * height > 0
      ? 0.9 * Math.sqrt((width * height) / this.count)
      : 1.3 * spacing(this.positions);
  }

  at(i) {
    return Array.from(this.exact.subarray(this.dimension * i, this.dimension * (i + 1)));
  }

  // Indices of the triangles whose last corner is this point. All triangles are sorted by that corner once.
  endingAt(point) {
    const { triangles, count } = this;
    if (!this.sorted) {
      this.begins = new Uint32Array(count + 1);
      for (let t = 2; t < triangles.length; t += 3) this.begins[triangles[t] + 1] += 1;
      for (let i = 0; i < count; i++) this.begins[i + 1] += this.begins[i];
      const next = this.begins.slice();
      this.sorted = new Uint32Array(triangles.length / 3);
      for (let t = 0; t < this.sorted.length; t++) this.sorted[next[triangles[3 * t + 2]]++] = t;
    }
    return this.sorted.subarray(this.begins[point], this.begins[point + 1]);
  }

  drawing(index, material, value) {
    const geometry = new BufferGeometry();
    geometry.setAttribute("position", this.position);
    if (value) geometry.setAttribute("value", value);
    if (index) geometry.setIndex(index);
    const drawing = this.triangles ? new Mesh(geometry, material) : new Points(geometry, material);
    drawing.frustumCulled = false;
    return drawing;
  }

  // The colored copy of the body for panel k.
  layer(k) {
    return (this.layers[k] ??= new Layer(this));
  }

  dispose() {
    for (const scene of [this.numbered, ...this.layers.map((layer) => layer.scene)]) {
      scene.traverse((drawn) => {
        drawn.geometry?.dispose();
        drawn.material?.dispose();
      });
    }
    for (const layer of this.layers) layer.colors.dispose();
  }
}

class Layer {
  constructor(body) {
    this.value = new BufferAttribute(new Float32Array(body.count), 1);
    this.colors = new DataTexture(table("viridis"), 256, 1);
    this.colors.magFilter = this.colors.minFilter = LinearFilter;
    this.uniforms = {
      ...body.shared,
      range: { value: new Vector2(0, 1) },
      colors: { value: this.colors },
      lit: { value: body.dimension === 3 },
    };
    const material = new ShaderMaterial({ ...COLORED, glslVersion: GLSL3, side: DoubleSide, uniforms: this.uniforms });
    this.whole = body.drawing(body.index, material, this.value);
    this.few = body.few && body.drawing(body.few, material, this.value);
    this.scene = new Scene();
    this.scene.add(this.whole);
    if (this.few) this.scene.add(this.few);
  }

  // Store values relative to the center of the range: small differences of large numbers stay visible.
  paint(values, [low, high]) {
    this.zero = (low + high) / 2;
    for (let i = 0; i < values.length; i++) this.value.array[i] = values[i] - this.zero;
    this.value.needsUpdate = true;
    this.limit([low, high]);
  }

  limit([low, high]) {
    this.uniforms.range.value.set(low - this.zero, high - this.zero);
  }

  color(name) {
    this.colors.image.data.set(table(name));
    this.colors.needsUpdate = true;
  }

  show(few) {
    this.whole.visible = !(few && this.few);
    if (this.few) this.few.visible = !this.whole.visible;
  }
}
