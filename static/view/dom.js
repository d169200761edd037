/** Small helpers to make elements. Text is always set as text; nothing here parses HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes (`on…` properties are listeners, `false` and null leave an attribute out). */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A drawing from the sprite in index.html, hidden from screen readers: its button carries the name. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows an icon only; `label` is its name and its tooltip. */
export function iconButton(name, label, attributes = {}) {
  const named = { type: "button", class: "icon-button", "aria-label": label, title: label };
  return h("button", { ...named, ...attributes }, icon(name));
}

/** Says these words in an element. What is selected or read aloud there is left in peace if it says them already. */
export function setText(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

/** Loads a style sheet that most visits do not need. Rejects where it does not come. */
export function loadStyles(href) {
  const link = h("link", { rel: "stylesheet", href });
  return new Promise((resolve, reject) => {
    link.addEventListener("load", resolve);
    link.addEventListener("error", () => {
      link.remove();
      reject(new Error(`not loaded: ${href}`));
    });
    document.head.append(link);
  });
}
