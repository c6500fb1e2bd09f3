// The button that switches between the light and the dark palette; the choice is kept where the browser allows it.
// And the edges of boxes that scroll sideways: they fade where something lies beyond them.
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
(() => {
  const boxes = [...document.querySelectorAll(".scrolls, .scrolled, pre")];
  const mark = (box) => {
    box.classList.toggle("cut-left", box.scrollLeft > 1);
    box.classList.toggle("cut-right", box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
  };
  const all = () => boxes.forEach(mark);
  boxes.forEach((box) => box.addEventListener("scroll", () => mark(box), { passive: true }));
  addEventListener("resize", all);
  addEventListener("toggle", all, true);
  all();
})();
