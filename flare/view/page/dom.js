// Create elements:  make("button", { title: "fit", onclick: fit }, "Fit"). Text is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);
export const make = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
export const draw = (tag, attributes = {}, ...children) =>
  build(document.createElementNS(SVG, tag), attributes, children);

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}
