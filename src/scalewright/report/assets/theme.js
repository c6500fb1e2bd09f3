// The button that switches between the light and the dark palette; the choice is kept where the browser allows it.
(() => {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const name = "scalewright-theme";
  const kept = () => { try { return localStorage.getItem(name); } catch { return null; } }; // a sandboxed page has none
  const keep = (theme) => { try { localStorage.setItem(name, theme); } catch { /* shown now, forgotten later */ } };
  const before = kept();
  if (before === "light" || before === "dark") root.dataset.theme = before;
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    keep(root.dataset.theme);
    root.dispatchEvent(new Event("palette"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => root.dispatchEvent(new Event("palette")));
})();
