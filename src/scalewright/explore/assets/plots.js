// The page's two plots, by uPlot: step time against memory, and the roofline. Colours are the palette's at every drawing.
const plots = (() => {
  const made = {};
  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const dots = (label, name, size, fill) => ({
    label, stroke: colour(name), paths: () => null, points: { show: true, size, width: 2, stroke: colour(name), fill: colour(fill || name) },
  });
  const axis = (label, values) => ({
    label, labelSize: 22, size: 54, stroke: colour("soft"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("line"), width: 1 },
    values: (plot, splits) => splits.map((value) => value === null ? "" : values(value)),
  });

  // Without a pointer over it a legend has no figures, and the plot's x no line.
  function idle(plot) {
    for (const value of plot.root.querySelectorAll(".u-value")) if (value.textContent === "--") value.firstChild.nodeValue = "";
    plot.root.querySelector(".u-legend").classList.toggle("idle", plot.cursor.idx == null);
  }

  // Draws columns [x, y, y, ...] into the element of this id; a plot of the same series gets new numbers only.
  function show(id, columns, options) {
    const place = document.getElementById(id);
    const size = { width: Math.max(place.clientWidth, 200), height: 320 };
    if (made[id] && made[id].key === options.key) {
      made[id].plot.setSize(size);
      return made[id].plot.setData(columns);
    }
    made[id]?.plot.destroy();
    const plot = new uPlot({ ...size, legend: { live: true }, cursor: { drag: { x: false, y: false } }, hooks: { ready: [idle], setLegend: [idle] }, ...options.uplot }, columns, place);
    made[id] = { plot, key: options.key };
  }

  addEventListener("resize", () => {
    for (const { plot } of Object.values(made)) plot.setSize({ width: Math.max(plot.root.parentElement.clientWidth, 200), height: 320 });
  });
  document.documentElement.addEventListener("palette", () => Object.values(made).forEach(({ plot }) => plot.redraw(false, true)));

  // Layouts as columns by memory: the set that none beats, the best, this one, the one kept beside.
  function pareto(search, now, other) {
    const groups = [search.pareto, search.best, [now], other ? [other] : []];
    const all = groups.flatMap((points, group) => points.map((point) => ({ ...point, group }))).sort((a, b) => a.gib - b.gib);
    const columns = [all.map((point) => point.gib), ...groups.map((_, group) => all.map((point) => point.group === group ? point.seconds : null))];
    show("pareto", columns, { key: "pareto", uplot: {
      scales: { x: { time: false, range: padded }, y: { range: padded } },
      axes: [axis("GiB on the fullest rank", String), axis("seconds a step", (value) => `${+value.toPrecision(3)}`)],
      series: [{ label: "GiB", value: (_, v) => v === null ? "" : v.toFixed(1) },
        dots("none is better in both", "accent", 9, "card"), dots("best", "second", 11), dots("this layout", "ink", 15, "card"), dots("kept beside", "good", 15, "card")],
    } });
  }

  function padded(_, low, high) {
    const room = 0.08 * (high - low) || 0.1 * high || 1;
    return [Math.max(low - room, 0), high + room];
  }

  // The roof at many intensities, the operators on it, and the step below.
  function roofline(data) {
    const points = [...data.points.map((point) => ({ at: point.intensity, operator: Math.min(data.peak, point.intensity * data.bytes_per_s) })),
      { at: data.step.intensity, step: data.step.flops_per_s }];
    const ridge = data.peak / data.bytes_per_s;
    const low = Math.min(ridge / 30, ...points.map((point) => point.at)), high = Math.max(ridge * 30, ...points.map((point) => point.at));
    for (let i = 0; i <= 24; i++) points.push({ at: low * (high / low) ** (i / 24) });
    points.push({ at: ridge });
    points.sort((a, b) => a.at - b.at);
    const tera = (value) => value === undefined ? null : value / 1e12;
    const columns = [points.map((point) => point.at), points.map((point) => tera(Math.min(data.peak, point.at * data.bytes_per_s))),
      points.map((point) => tera(point.operator)), points.map((point) => tera(point.step))];
    show("roofline", columns, { key: "roofline", uplot: {
      scales: { x: { time: false, distr: 3 }, y: { distr: 3 } },
      axes: [axis("FLOPs a byte", words.count), axis("TFLOP/s", (value) => words.count(value))],
      series: [{ label: "FLOPs a byte", value: (_, v) => v === null ? "" : words.count(v) }, { label: "roof", stroke: colour("soft"), width: 2, points: { show: false } },
        dots("operators, at most", "accent", 9, "card"), dots("the step reaches", "second", 13)],
    } });
  }

  return { pareto, roofline };
})();
