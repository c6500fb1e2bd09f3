// Adds to charts that are drawn already: a cursor with the values under it, on all charts at once, and a zoom.
(() => {
  const { clock, count, say, sayTick, ticks } = words;
  const all = JSON.parse(document.getElementById("charts").textContent);
  const charts = all.map(setUp).filter(Boolean);
  const unzoom = document.getElementById("unzoom");
  if (!charts.length) return;
  const axes = all[0].axes || { step: all[0].x };
  let axis = "step", log = false; // what runs along the bottom; whether the loss's own axis is logarithmic
  let whole = all[0].x;
  let view = whole;
  let at = null; // the place under the cursor, in the axis's unit; null shows the newest values
  document.querySelector(".hint").hidden = !matchMedia("(pointer: fine)").matches;
  unzoom.addEventListener("click", () => zoom(whole));
  for (const group of document.querySelectorAll(".choice")) {
    group.hidden = false;
    group.addEventListener("click", (event) => choose(event.target.closest("button")));
  }
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
      data, area, cursor, points, y: data.y, full: data.y, entries: [...figure.querySelectorAll(".legend li")],
      svg: area.querySelector("svg"), grid: area.querySelector(".grid"), marks: [...area.querySelectorAll(".marks i")],
      paths: [...area.querySelectorAll("path")],
    };
    data.series.forEach((line) => (line.at = line.x));
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
        const old = step === null && i >= 0 && i < line.y.length - 1; // the newest value isn't a number
        const text = value === null ? "–" : say(value, chart.data.kind) + (old ? ` at step ${say(line.x[i], "step")}` : "");
        chart.entries[index].querySelector("b").textContent = text;
        said.push(`${line.label} ${text}`);
        point.hidden = step === null || value === null || line.style === "raw" && chart.data.series.length > 1;
        if (value === null) return;
        if (where === null || line.style !== "valid") where = line.x[i];
        point.style.left = `${100 * (line.at[i] - view[0]) / (view[1] - view[0])}%`;
        point.style.top = `${100 * (chart.y[1] - scaled(chart, value)) / (chart.y[1] - chart.y[0])}%`;
        if (outside(point)) point.hidden = true;
      });
      chart.cursor.hidden = step === null;
      chart.cursor.style.left = step === null ? 0 : `${100 * (step - view[0]) / (view[1] - view[0])}%`;
      const place = where === null ? "" : `step ${say(where, "step")}${beside(where)}`;
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
    let low = 0, high = line.at.length - 1;
    if (high < 0) return -1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (line.at[middle] <= step) low = middle; else high = middle;
    }
    return step - line.at[low] <= line.at[high] - step ? low : high;
  }

  // ---- axes ---------------------------------------------------------------------------------------------
  // Tokens or seconds at a step, between the samples that the page holds.
  function along(step) {
    if (axis === "step") return step;
    const from = axes.step, to = axes[axis];
    let high = from.findIndex((one) => one >= step);
    if (high <= 0) return high ? to.at(-1) : to[0];
    const part = (step - from[high - 1]) / (from[high] - from[high - 1]);
    return to[high - 1] + part * (to[high] - to[high - 1]);
  }

  function beside(step) {
    if (axis === "tokens") return ` · ${count(along(step))} tokens`;
    return axis === "seconds" ? ` · ${clock(along(step))}` : "";
  }

  function scaled(chart, value) { return log && chart.data.wide ? Math.log10(value) : value; }

  function choose(button) {
    if (!button) return;
    if (button.dataset.axis) axis = button.dataset.axis; else log = !log;
    for (const one of document.querySelectorAll("[data-axis]")) one.setAttribute("aria-pressed", one.dataset.axis === axis);
    for (const one of document.querySelectorAll("[data-log]")) one.setAttribute("aria-pressed", log);
    whole = [along(all[0].x[0]), along(all[0].x[1])];
    for (const chart of charts) {
      chart.data.series.forEach((line) => (line.at = line.x.map(along)));
      chart.full = log && chart.data.wide ? fit(chart, whole) : chart.data.y;
      for (const path of chart.paths) path.setAttribute("d", drawn(chart, chart.data.series[path.dataset.line], path.classList.contains("dots")));
    }
    zoom(whole);
  }

  function drawn(chart, line, dots) {
    let down = false;
    return line.at.map((place, i) => {
      const y = line.y[i] === null ? NaN : scaled(chart, line.y[i]);
      if (!Number.isFinite(y)) { down = false; return ""; }
      const text = `${down ? "L" : "M"}${across(place).toFixed(2)} ${Math.max(-9000, Math.min(9000, up(chart, y))).toFixed(2)}`;
      const alone = dots || line.y[i + 1] === null || i + 1 === line.y.length;
      const dot = alone && !down ? "h0" : "";
      down = !dots;
      return text + dot;
    }).join("");
  }

  function across(place) { return 1000 * (place - whole[0]) / (whole[1] - whole[0]); }

  function up(chart, y) { return 1000 * (chart.full[1] - y) / (chart.full[1] - chart.full[0]); }

  function xTicks(from, to) {
    if (axis === "step") return ticks(from, to, 5).filter(Number.isInteger).map((value) => [value, say(value, "step")]);
    if (axis === "tokens") return ticks(from, to, 5).map((value) => [value, count(value)]);
    const [size, unit] = to - from > 7200 ? [3600, "h"] : to - from > 240 ? [60, "min"] : [1, "s"];
    return ticks(from / size, to / size, 5).map((value) => [value * size, `${value} ${unit}`]);
  }

  function yTicks(chart) {
    const [low, high] = chart.y;
    if (!log || !chart.data.wide) return ticks(low, high, chart.data.wide ? 6 : 4).map((value) => [value, value]);
    const found = [];
    for (let power = Math.floor(low); power <= high; power++) for (const digit of [1, 2, 5]) found.push(digit * 10 ** power);
    const inside = found.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high);
    return (inside.length > 2 ? inside : ticks(10 ** low, 10 ** high, 6)).map((value) => [Math.log10(value), value]);
  }

  // ---- zoom ---------------------------------------------------------------------------------------------
  function zoom(to) {
    view = to;
    const zoomed = to !== whole;
    unzoom.hidden = !zoomed;
    for (const chart of charts) {
      chart.y = zoomed ? fit(chart, to) : chart.full;
      const [left, right, top, bottom] = [across(to[0]), across(to[1]), up(chart, chart.y[1]), up(chart, chart.y[0])];
      chart.svg.setAttribute("viewBox", `${left} ${top} ${right - left} ${bottom - top}`);
      const place = (where) => 100 * (where - to[0]) / (to[1] - to[0]);
      chart.marks.forEach((mark) => (mark.style.left = `${place(along(+mark.dataset.step))}%`));
      chart.grid.replaceChildren(
        ...yTicks(chart).map(([y, value]) =>
          tick("y", "bottom", 100 * (y - chart.y[0]) / (chart.y[1] - chart.y[0]), sayTick(value, chart.data.kind))),
        ...xTicks(...to).map(([where, text]) => tick("x", "left", place(where), text)));
    }
    show(null);
  }

  function fit(chart, to) {
    const { data } = chart;
    let low = Infinity, high = -Infinity;
    for (const line of data.series) {
      line.at.forEach((place, i) => {
        const value = line.y[i] === null ? NaN : scaled(chart, line.y[i]);
        if (place < to[0] || place > to[1] || !Number.isFinite(value)) return;
        low = Math.min(low, value);
        high = Math.max(high, value);
      });
    }
    if (!(high >= low)) return chart.full;
    const zero = data.zero && !(log && data.wide);
    if (zero) low = Math.min(low, 0);
    const margin = 0.06 * (high - low) || Math.abs(high) * 0.05 || 1;
    return [zero && low >= 0 ? low : low - margin, high + margin];
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
