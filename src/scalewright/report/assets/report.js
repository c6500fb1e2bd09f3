// Adds to charts that are drawn already: a cursor with the values under it, on all charts at once, and a zoom.
(() => {
  const { say, sayTick, ticks } = words;
  const all = JSON.parse(document.getElementById("charts").textContent);
  const charts = all.map(setUp).filter(Boolean);
  const unzoom = document.getElementById("unzoom");
  if (!charts.length) return;
  const whole = all[0].x;
  let view = whole;
  let at = null; // the step under the cursor; null shows the newest values
  document.querySelector(".hint").hidden = !matchMedia("(pointer: fine)").matches;
  unzoom.addEventListener("click", () => zoom(whole));
  show(null);

  function setUp(data) {
    const figure = document.querySelector(`[data-chart="${data.id}"]`);
    if (!figure) return null;
    const area = figure.querySelector(".area");
    const cursor = add(area, "cursor");
    cursor.append(document.createElement("span"));
    cursor.hidden = true;
    const points = data.series.map((line) => add(area, `point ${line.style}`));
    points.forEach((point) => (point.hidden = true));
    const entries = [...figure.querySelectorAll(".legend li")];
    const chart = {
      data, area, cursor, points, entries, y: data.y,
      svg: area.querySelector("svg"), grid: area.querySelector(".grid"), marks: [...area.querySelectorAll(".marks i")],
    };
    follow(chart, figure.querySelector("h3").textContent.trim());
    return chart;
  }

  // ---- cursor -------------------------------------------------------------------------------------------
  function follow(chart, title) {
    const { area } = chart;
    let from = null; // where a drag began
    let range = null;
    const share = (event) => {
      const box = area.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    const step = (part) => view[0] + part * (view[1] - view[0]);
    area.addEventListener("pointermove", (event) => {
      const here = share(event);
      show(step(here));
      if (range) {
        range.style.left = `${100 * Math.min(from, here)}%`;
        range.style.width = `${100 * Math.abs(here - from)}%`;
      }
    });
    area.addEventListener("pointerleave", () => { if (!range) show(null); });
    area.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button) return;
      event.preventDefault();
      area.focus({ preventScroll: true });
      area.setPointerCapture(event.pointerId);
      from = share(event);
      range = add(area, "range");
      range.style.width = 0;
    });
    const drop = (event) => {
      if (!range) return;
      range.remove();
      range = null;
      const ends = [step(from), step(share(event))].sort((a, b) => a - b);
      if (event.type === "pointerup" && Math.abs(share(event) - from) > 0.01 && ends[1] - ends[0] >= 2) zoom(ends);
    };
    area.addEventListener("pointerup", drop);
    area.addEventListener("pointercancel", drop);
    area.addEventListener("dblclick", () => zoom(whole));
    area.tabIndex = 0;
    area.setAttribute("role", "slider");
    area.setAttribute("aria-label", `${title}: values at a step`);
    area.setAttribute("aria-valuemin", chart.data.x[0]);
    area.setAttribute("aria-valuemax", chart.data.x[1]);
    area.setAttribute("aria-valuenow", chart.data.x[1]);
    area.addEventListener("blur", () => show(null));
    area.addEventListener("keydown", (event) => {
      const size = (view[1] - view[0]) * (event.shiftKey ? 0.1 : 0.01);
      const moves = { ArrowLeft: -size, ArrowRight: size, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") zoom(whole);
      else if (event.key in moves) {
        event.preventDefault();
        const now = (at === null ? view[1] : at) + moves[event.key];
        show(Math.min(view[1], Math.max(view[0], now)));
      }
    });
  }

  function show(step) {
    at = step;
    for (const chart of charts) {
      const said = [];
      let where = null;
      chart.data.series.forEach((line, index) => {
        const i = step === null ? newest(line) : nearest(line, step);
        const value = i < 0 ? null : line.y[i];
        const point = chart.points[index];
        const text = value === null ? "–" : say(value, chart.data.kind);
        chart.entries[index].querySelector("b").textContent = text;
        said.push(`${line.label} ${text}`);
        point.hidden = step === null || value === null || line.style === "raw" && chart.data.series.length > 1;
        if (value === null) return;
        if (where === null || line.style !== "valid") where = line.x[i];
        point.style.left = `${100 * (line.x[i] - view[0]) / (view[1] - view[0])}%`;
        point.style.top = `${100 * (chart.y[1] - value) / (chart.y[1] - chart.y[0])}%`;
        if (outside(point)) point.hidden = true;
      });
      chart.cursor.hidden = step === null;
      chart.cursor.style.left = step === null ? 0 : `${100 * (step - view[0]) / (view[1] - view[0])}%`;
      const place = where === null ? "" : `step ${say(where, "step")}`;
      chart.cursor.firstChild.textContent = place;
      if (where !== null) chart.area.setAttribute("aria-valuenow", where);
      chart.area.setAttribute("aria-valuetext", `${place}: ${said.join(", ")}`);
    }
  }

  function outside(point) {
    return [point.style.left, point.style.top].some((share) => parseFloat(share) < 0 || parseFloat(share) > 100);
  }

  function newest(line) {
    for (let i = line.y.length - 1; i >= 0; i--) if (line.y[i] !== null) return i;
    return -1;
  }

  function nearest(line, step) {
    let low = 0, high = line.x.length - 1;
    if (high < 0) return -1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (line.x[middle] <= step) low = middle; else high = middle;
    }
    return step - line.x[low] <= line.x[high] - step ? low : high;
  }

  // ---- zoom ---------------------------------------------------------------------------------------------
  function zoom(to) {
    view = to;
    const zoomed = to !== whole;
    unzoom.hidden = !zoomed;
    for (const chart of charts) {
      const { data } = chart;
      chart.y = zoomed ? fit(data, to) : data.y;
      const x = (step) => 1000 * (step - whole[0]) / (whole[1] - whole[0]);
      const y = (value) => 1000 * (data.y[1] - value) / (data.y[1] - data.y[0]);
      const [left, right, top, bottom] = [x(to[0]), x(to[1]), y(chart.y[1]), y(chart.y[0])];
      chart.svg.setAttribute("viewBox", `${left} ${top} ${right - left} ${bottom - top}`);
      const place = (step) => 100 * (step - to[0]) / (to[1] - to[0]);
      chart.marks.forEach((mark) => (mark.style.left = `${place(+mark.dataset.step)}%`));
      chart.grid.replaceChildren(
        ...ticks(chart.y[0], chart.y[1], data.wide ? 6 : 4).map((value) =>
          tick("y", "bottom", 100 * (value - chart.y[0]) / (chart.y[1] - chart.y[0]), sayTick(value, data.kind))),
        ...ticks(to[0], to[1], 5).filter(Number.isInteger).map((step) =>
          tick("x", "left", place(step), say(step, "step"))));
    }
    show(null);
  }

  function fit(data, to) {
    let low = Infinity, high = -Infinity;
    for (const line of data.series) {
      line.x.forEach((step, i) => {
        const value = line.y[i];
        if (step < to[0] || step > to[1] || value === null) return;
        low = Math.min(low, value);
        high = Math.max(high, value);
      });
    }
    if (!(high >= low)) return data.y;
    if (data.zero) low = Math.min(low, 0);
    const margin = 0.06 * (high - low) || Math.abs(high) * 0.05 || 1;
    return [data.zero && low >= 0 ? low : low - margin, high + margin];
  }

  function tick(axis, side, share, text) {
    const line = document.createElement("i");
    line.className = axis;
    line.style[side] = `${share}%`;
    line.append(Object.assign(document.createElement("span"), { textContent: text }));
    return line;
  }

  // ---- the rest -------------------------------------------------------------------------------------------
  function add(parent, name) {
    const element = document.createElement("div");
    element.className = name;
    parent.append(element);
    return element;
  }
})();
