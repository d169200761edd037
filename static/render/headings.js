/** The headings of a text that stands below others. Knows levels, not what is written. */

const HEADINGS = "h1, h2, h3, h4, h5, h6";

/** Whether one of these nodes is a heading, or holds one. */
export function holdHeadings(nodes) {
  return nodes.some((node) => node instanceof Element && (node.matches(HEADINGS) || node.querySelector(HEADINGS)));
}

/**
 * Puts each heading one level below the one that it belongs to, whatever size its writer chose.
 * @param {number} above the level of the heading that the text itself stands under
 */
export function nestHeadings(root, above) {
  const open = [];
  for (const heading of root.querySelectorAll(HEADINGS)) {
    const size = Number(heading.localName[1]);
    while (open.length && open.at(-1) >= size) open.pop();
    open.push(size);
    const level = String(above + open.length);
    if (heading.ariaLevel !== level) heading.ariaLevel = level;
  }
}
