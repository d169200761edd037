/** The beginning of a text that is too long for its place. */
export function excerpt(text, length) {
  if (text.length <= length) return text;
  // Of a sign that counts as two characters, half may be left: that is none.
  return `${text.slice(0, length - 1).replace(/\p{Cs}$/u, "").trimEnd()}…`;
}
