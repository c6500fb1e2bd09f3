// What the drawings on canvases share: their data, sharp pixels, the palette's colours, and a tip at the cursor.
const canvas = (() => {
  const all = JSON.parse(document.getElementById("drawings")?.textContent || "[]");

  function find(type) {
    const data = all.find((one) => one.type === type);
    const place = document.querySelector(`[data-drawing="${type}"]`);
    return data && place ? [data, place] : [null, null];
  }

  // A context in CSS pixels, cleared; the canvas is as wide as its place and `height` pixels high.
  function context(element, height) {
    const scale = window.devicePixelRatio || 1;
    const width = element.parentElement.clientWidth;
    element.parentElement.style.height = `${height}px`;
    element.width = Math.round(width * scale);
    element.height = Math.round(height * scale);
    const pen = element.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    return [pen, width];
  }

  function colour(element, name) {
    return getComputedStyle(element).getPropertyValue(`--${name}`).trim();
  }

  // Calls `draw` once a frame at most: now, and whenever the width or the palette changes.
  function keep(element, draw) {
    let waiting = false;
    const soon = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; draw(); });
    };
    let width = 0;
    new ResizeObserver(() => {
      if (element.clientWidth !== width) { width = element.clientWidth; soon(); }
    }).observe(element);
    document.documentElement.addEventListener("palette", function again() {
      if (element.isConnected) soon();
      else document.documentElement.removeEventListener("palette", again); // another drawing took its place
    });
    return soon;
  }

  // A box of words near a point of `place`; no words hide it.
  function tip(place) {
    const box = document.createElement("div");
    box.className = "tip";
    box.hidden = true;
    place.append(box);
    return (title, text, x, y) => {
      box.hidden = !title;
      if (!title) return;
      box.replaceChildren(Object.assign(document.createElement("b"), { textContent: title }), text);
      const left = Math.min(Math.max(x + 14, 0), place.clientWidth - box.offsetWidth);
      const below = y + 16 + box.offsetHeight <= place.clientHeight;
      box.style.left = `${Math.max(left, 0)}px`;
      box.style.top = `${below ? y + 16 : Math.max(y - box.offsetHeight - 10, 0)}px`;
    };
  }

  return { find, context, colour, keep, tip };
})();
