/**
 * Colours for code whose text is complete.
 *
 * Knows which languages there are, by all their names, and loads each when code in it is there. Code of other
 * languages, and very long code, stays as it is.
 */

import { once } from "./once.js";
import { soon } from "./slices.js";

/** File in vendor/highlightjs -> other names that models give the language. */
const LANGUAGES = {
  bash: "sh zsh",
  c: "h",
  cpp: "c++ cc cxx hpp hh",
  csharp: "cs c#",
  css: "",
  diff: "patch",
  dockerfile: "docker",
  go: "golang",
  ini: "toml",
  java: "",
  javascript: "js jsx mjs cjs node",
  json: "json5 jsonc jsonl",
  kotlin: "kt kts",
  markdown: "md",
  php: "",
  python: "py python3 gyp",
  ruby: "rb",
  rust: "rs",
  shell: "console shellsession",
  sql: "postgres postgresql mysql sqlite",
  swift: "",
  typescript: "ts tsx mts cts",
  xml: "html xhtml svg rss vue svelte",
  yaml: "yml",
};
/** What stands inside of what. */
const WITHIN = { markdown: ["xml"], php: ["xml"], shell: ["bash"], xml: ["css", "javascript"] };

const FILES = new Map(
  Object.entries(LANGUAGES).flatMap(([file, others]) => {
    const names = `${file} ${others}`.trim().split(" ");
    return names.map((name) => [name, file]);
  }),
);

const LONGEST = 12_000;

/** colours.js, once it is there. */
let colours = null;
/** File -> what loads its language. */
const loads = new Map();

/** Colours the text of `code`, at once if what it takes is there; a selection in it stays. */
export function highlight(code, language) {
  const file = FILES.get(language.toLowerCase());
  if (!file || code.textContent.length > LONGEST) return;
  if (colours?.knows(file)) colours.colour(code, file);
  else void load(file).then((found) => found && soon(colourLater(code, file)));
}

function* colourLater(code, file) {
  if (code.isConnected && !code.querySelector(".hl")) colours.colour(code, file);
}

/** @returns {Promise<boolean>} whether the language is there; without it, code is shown in one colour */
function load(file) {
  if (!loads.has(file)) loads.set(file, once(() => learn(file)));
  return loads.get(file)();
}

async function learn(file) {
  const files = [file, ...(WITHIN[file] ?? [])];
  const [module, ...grammars] = await Promise.all([import("./colours.js"), ...files.map(loadGrammar)]);
  colours = module;
  files.forEach((name, i) => colours.learn(name, grammars[i]));
}

async function loadGrammar(name) {
  const module = await import(`../vendor/highlightjs/${name}.min.js`);
  return module.default;
}
