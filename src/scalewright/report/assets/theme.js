// The button that switches between the light and the dark palette.
(() => {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    root.dispatchEvent(new Event("palette"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => root.dispatchEvent(new Event("palette")));
})();
