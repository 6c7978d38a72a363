// Color maps with 33 stops each and linear interpolation; within 2 % of matplotlib's.

const STOPS = {
  viridis:
    "440154470d6048186a482374472d7b4537814240863e49893b528b375b8d33638d2f6b8e2c728e297a8e26828e23898e21918c1f988b1fa08822a78528ae8032b67a3fbc734ec36b5ec96270cf5784d44b98d83eaddc30c2df23d8e219ece51bfde725",
  magma:
    "0000040303120a0822130d341d114729115a36106b440f7651127c5d177f6a1c81762181832681902a819c2e7faa337db73779c43c75d0416fdc4869e75263ef5d5ef56b5cf9795dfc8961fd9869fea772feb67cfec488fed395fde2a3fcf0b2fcfdbf",
  cividis:
    "00224e00285b002e6a0533711a386f273e6e32436d3b496c434e6c4b546c535a6d5a5f6e61656f686a716f70737676767d7c788482798c8878938e789b9476a39a74aba072b4a76fbcae6cc4b468cdbb63d5c25edec958e7d150f0d846f9e03afee838",
  turbo:
    "30123b392a734040a24456c7466be34680f64294ff37a8fa28bceb1ccdd818ddc21fe9af32f2984ef97d6dfe628bff4ba4fc3cb9f635cdec34dfdf37eecf3af8be39fdac34fe962bfb7e21f46617eb500edf3f08d02f05be2102a91601920b017a0403",
  coolwarm:
    "3b4cc0445acc4e68d85875e16282ea6c8ff1779af782a6fb8db0fe98b9ffa3c2feaec9fcb9d0f9c3d5f4ccd9edd5dbe5dddcdce5d8d1ecd3c5f1ccb8f5c4acf7ba9ff7b093f6a586f4987af08b6eeb7d62e46e56dd5f4bd44e41ca3b37be242eb40426",
  RdBu_r:
    "0530610e41791752901f63a82a71b23480b93f8ec0529dc86bacd184bcd99bc9e0aed3e6c2ddecd4e6f1e0ecf3ecf2f5f7f6f6f9eee7fbe5d8fddcc9fbccb4f8bb9ef5aa89ee9677e48066db6b55d05548c53e3dba2832ab162a930e267c072267001f",
};

export const NAMES = Object.keys(STOPS);
export const SIGNED = "RdBu_r"; // for errors and eigenvectors: white is zero

const stops = (name) =>
  STOPS[name].match(/.{6}/g).map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));

// 256 RGBA colors for a texture.
export function table(name) {
  const known = stops(name);
  const found = new Uint8Array(4 * 256);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (known.length - 1);
    const k = Math.min(Math.floor(place), known.length - 2);
    for (let c = 0; c < 3; c++)
      found[4 * i + c] = Math.round(known[k][c] + (place - k) * (known[k + 1][c] - known[k][c]));
    found[4 * i + 3] = 255;
  }
  return found;
}

export const gradient = (name) =>
  `linear-gradient(90deg, ${stops(name)
    .map((rgb) => `rgb(${rgb})`)
    .join(", ")})`;

// The color at t in [0, 1], and whether it is dark enough for white text.
export function shade(name, t) {
  const known = stops(name);
  const rgb = known[Math.round(Math.min(Math.max(t, 0), 1) * (known.length - 1))];
  return { background: `rgb(${rgb})`, dark: 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 140 };
}
