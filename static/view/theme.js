/**
 * Light, dark, or as the system says. A plain script in the head, not a module: it must run before the first paint.
 * Remembers the choice in localStorage; the style sheet follows `data-theme` on the root element.
 */
(() => {
  const KEY = "tickwire.theme";
  const root = document.documentElement;

  function apply(theme) {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  }

  function stored() {
    try {
      return localStorage.getItem(KEY) ?? "system";
    } catch {
      return "system"; // Storage is blocked: every visit begins as the system says.
    }
  }

  apply(stored());

  addEventListener("storage", (event) => event.key === KEY && apply(event.newValue));
  addEventListener("DOMContentLoaded", () => {
    for (const radio of document.querySelectorAll('input[name="theme"]')) {
      radio.checked = radio.value === stored();
      radio.addEventListener("change", () => {
        apply(radio.value);
        try {
          localStorage.setItem(KEY, radio.value);
        } catch {
          // Storage is blocked: the choice holds until the page goes.
        }
      });
    }
  });
})();
