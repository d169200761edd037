/**
 * The gate: everything that a model wrote passes here on its way from HTML to the page.
 *
 * Knows DOMPurify and what may be shown. It does not know Markdown: it must hold whatever stands before it.
 */

import "../vendor/dompurify/purify.min.js";

const TAGS =
  "a b blockquote br code del details em h1 h2 h3 h4 h5 h6 hr i ins kbd li mark ol p pre s small strong sub summary " +
  "sup table tbody td th thead tr u ul";
const CLASSES = /^(?:language-[\w+#.-]{1,40}|image-chip|math(?: display)?)$/;

const purify = globalThis.DOMPurify(window);

purify.addHook("uponSanitizeAttribute", (node, data) => {
  if (data.attrName === "class" && !CLASSES.test(data.attrValue)) data.keepAttr = false;
});

purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A" || !node.hasAttribute("href")) return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
  // Where a link leads must not depend on what its text claims.
  node.setAttribute("title", node.getAttribute("href"));
});

/** HTML to a fragment that may be shown: no script, no style, no form, no frame, no image, no foreign scheme. */
export function sanitise(html) {
  return purify.sanitize(html, {
    ALLOWED_TAGS: TAGS.split(" "),
    ALLOWED_ATTR: ["align", "class", "href", "start"],
    // These carry no address, so the rule for addresses must not judge them.
    ADD_URI_SAFE_ATTR: ["align", "start"],
    ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
    ALLOW_ARIA_ATTR: false,
    ALLOW_DATA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
}
