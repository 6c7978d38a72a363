// What the page takes of three.js. three.min.js is made of this file:
//   npm install three@0.187.0 esbuild
//   npx esbuild three.entry.js --bundle --minify --format=esm --legal-comments=inline \
//     --banner:js="/* three@0.187.0, bundled from three.entry.js */" --outfile=three.min.js
export {
  BufferAttribute, BufferGeometry, DataTexture, DoubleSide, GLSL3, LinearFilter, Mesh, OrthographicCamera,
  PerspectiveCamera, Points, Scene, ShaderMaterial, Vector2, Vector3, WebGLRenderTarget, WebGLRenderer,
} from "three";
