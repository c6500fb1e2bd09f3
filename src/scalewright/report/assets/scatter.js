// Names the dot that is nearest to the cursor, or the next one for the arrow keys.
(() => {
  for (const area of document.querySelectorAll("[data-scatter]")) {
    const dots = [...area.querySelectorAll(".dot")];
    const tip = canvas.tip(area);
    let at = -1;
    const choose = (index) => {
      if (at >= 0) dots[at].classList.remove("here");
      at = index;
      if (at < 0) return tip("");
      const dot = dots[at];
      dot.classList.add("here");
      tip(dot.dataset.name, dot.dataset.value, dot.offsetLeft + 5, dot.offsetTop + 5);
      area.setAttribute("aria-label", `${dot.dataset.name}: ${dot.dataset.value}`);
    };
    const near = (event) => {
      const box = area.getBoundingClientRect();
      const far = dots.map((dot) => Math.hypot(
        parseFloat(dot.style.left) / 100 * box.width - (event.clientX - box.left),
        parseFloat(dot.style.top) / 100 * box.height - (event.clientY - box.top)));
      let best = 0;
      far.forEach((distance, index) => { if (distance <= far[best]) best = index; }); // the best ones come last
      choose(far[best] < 40 ? best : -1);
    };
    area.addEventListener("pointermove", near);
    area.addEventListener("pointerdown", near);
    area.addEventListener("pointerleave", () => choose(-1));
    area.addEventListener("blur", () => choose(-1));
    area.tabIndex = 0;
    area.setAttribute("role", "group");
    area.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") choose(-1);
      if (!step) return;
      event.preventDefault();
      choose((at < 0 && step < 0 ? dots.length - 1 : at + step + dots.length) % dots.length);
    });
  }
})();
