// The map of ranks: a square for every device, coloured by its group along the axis that was picked.
(() => {
  const [data, place] = canvas.find("ranks");
  if (!data) return;
  const map = place.querySelector(".map");
  const element = map.querySelector("canvas");
  const rows = [...place.querySelectorAll("[data-axis]")];
  const ranks = data.shown.flatMap(([first, end]) => Array.from({ length: end - first }, (_, i) => first + i));
  const starts = new Set(data.shown.map(([first]) => first));
  const gutter = 56;
  let axis = 0, over = -1, chosen = 0;
  let spots = new Map(), size = 0; // rank -> [x, y] of its square
  const draw = canvas.keep(map, paint);
  rows.forEach((row, index) => {
    const button = row.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => pick(index));
  });
  follow();
  pick(0);
  paint();

  // ---- the grid: a rank's index along an axis is the number that its digits make --------------------------
  function index(one, rank) { return one.digits.reduce((sum, [length, stride]) => sum * length + Math.floor(rank / stride) % length, 0); }

  function base(one, rank) { return one.digits.reduce((left, [length, stride]) => left - Math.floor(rank / stride) % length * stride, rank); }

  function group(one, rank) {
    return one.digits.reduce((found, [length, stride]) => found.flatMap((from) => Array.from({ length }, (_, i) => from + i * stride)), [base(one, rank)]);
  }

  // Those that a rank exchanges with: its whole group, or its neighbours in it.
  function peers(one, rank) {
    const all = group(one, rank);
    if (one.talk === "all") return all;
    const at = index(one, rank), ring = one.talk === "ring" && all.length > 2;
    return [...new Set([at - 1, at + 1].map((i) => ring ? (i + all.length) % all.length : i))].filter((i) => i in all).map((i) => all[i]).sort((a, b) => a - b);
  }

  function links(rank, others) {
    const found = new Set(others.filter((other) => other !== rank).map((other) =>
      data.levels.find((level) => level.size === null || Math.floor(rank / level.size) === Math.floor(other / level.size)) || data.levels.at(-1)));
    return data.levels.filter((level) => found.has(level)).map((level) => level.name).join(", ") || "–";
  }

  // ---- drawing --------------------------------------------------------------------------------------------
  function place_squares(width) {
    const across = data.node <= 4 ? data.node : data.node <= 8 ? Math.ceil(data.node / 2) : Math.min(16, Math.ceil(data.node / 4));
    const down = Math.ceil(data.node / across);
    const nodes = Math.ceil(ranks.length / data.node);
    for (size of [22, 18, 15, 12, 10, 8, 6, 5]) {
      const fit = perRow(width, across, size);
      if (fit >= Math.min(8, nodes, width < 500 ? 4 : 8) && Math.ceil(nodes / fit) * (down * size + gap(size)) <= 540) break;
    }
    const fit = Math.max(1, perRow(width, across, size));
    spots = new Map();
    const labels = [];
    let column = 0, y = 2;
    for (let i = 0; i < ranks.length; i += data.node) {
      const first = ranks[i];
      if (i && (column === fit || data.shown.length > 1 && starts.has(first))) { column = 0; y += down * size + gap(size); }
      if (column === 0) labels.push([Math.floor(first / data.node), y + down * size / 2]);
      const x = gutter + column * (across * size + gap(size));
      for (let j = 0; j < data.node && i + j < ranks.length; j++) spots.set(ranks[i + j], [x + j % across * size, y + Math.floor(j / across) * size]);
      column++;
    }
    return [labels, y + down * size + 4, across * size, down * size];
  }

  function gap(square) { return Math.max(4, square * 0.6); }

  // Nodes in a row: 8 where they fit, more where the map would be too high, always a power of two.
  function perRow(width, across, square) {
    const most = Math.floor((width - gutter + gap(square)) / (across * square + gap(square)));
    const many = Math.ceil(ranks.length / data.node) > 128 ? 64 : 8;
    return most < 1 ? 0 : Math.min(many, 2 ** Math.floor(Math.log2(most)));
  }

  function paint() {
    const [labels, height, wide, high] = place_squares(map.clientWidth);
    const [pen] = canvas.context(element, height);
    const [soft, line, ink] = ["soft", "line", "ink"].map((name) => canvas.colour(map, name));
    const dark = canvas.colour(map, "paper") < "#8";
    const one = data.axes[axis];
    const members = over < 0 ? null : new Set(group(one, over));
    const talks = over < 0 ? null : new Set(peers(one, over));
    const edge = size > 8 ? 2 : 1;
    const hues = new Map();
    for (const [rank, [x, y]] of spots) {
      const name = base(one, rank);
      if (!hues.has(name)) hues.set(name, (214 + hues.size * 137.508) % 360);
      pen.globalAlpha = !members || members.has(rank) ? 1 : 0.16;
      pen.fillStyle = `hsl(${hues.get(name)} ${dark ? "40% 58%" : "46% 58%"})`;
      pen.fillRect(x, y, size - edge, size - edge);
      if (talks && (talks.has(rank) || rank === over)) {
        pen.strokeStyle = ink;
        pen.lineWidth = rank === over ? 3 : 1.5;
        pen.strokeRect(x, y, size - edge, size - edge);
      }
    }
    pen.globalAlpha = 1;
    paintLinks(pen, one, over < 0 ? chosen : over, ink, canvas.colour(map, "second"));
    pen.lineWidth = 1;
    pen.strokeStyle = line;
    for (const [rank, [x, y]] of spots) if (rank % data.node === 0) pen.strokeRect(x - 2.5, y - 2.5, wide + 5 - edge, high + 5 - edge);
    pen.fillStyle = soft;
    pen.font = `11.5px ${getComputedStyle(map).fontFamily}`;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const number = labels.length > 1 || data.world > data.node;
    if (number) labels.forEach(([node, y], i) => pen.fillText(i ? node : `node ${node}`, gutter - 9, y));
  }

  // The links of one group: from each rank to the next, back to the first where it is a ring; thin inside a
  // node, dashed between nodes.
  function paintLinks(pen, one, rank, ink, second) {
    const members = group(one, rank).filter((other) => spots.has(other)).slice(0, 257);
    if (members.length < 2) return;
    const pairs = members.slice(1).map((other, i) => [members[i], other]);
    if (one.talk !== "chain" && members.length > 2) pairs.push([members.at(-1), members[0]]);
    const middle = (other) => spots.get(other).map((edge) => edge + size / 2 - 1);
    for (const [from, to] of pairs) {
      const inside = Math.floor(from / data.node) === Math.floor(to / data.node);
      const [[a, b], [c, d]] = [middle(from), middle(to)];
      pen.strokeStyle = inside ? ink : second;
      pen.lineWidth = inside ? 1.2 : 1.6;
      pen.setLineDash(inside ? [] : [4, 3]);
      pen.beginPath();
      pen.moveTo(a, b);
      const bend = inside ? 0 : Math.min(26, Math.hypot(c - a, d - b) / 5);
      pen.quadraticCurveTo((a + c) / 2 + (a === c ? bend : 0), (b + d) / 2 - (a === c ? 0 : bend), c, d);
      pen.stroke();
    }
    pen.setLineDash([]);
    for (const other of members) {
      const [a, b] = middle(other);
      pen.fillStyle = other === rank ? ink : "#ffffff";
      pen.strokeStyle = ink;
      pen.beginPath();
      pen.arc(a, b, Math.max(1.5, size / (other === rank ? 5 : 8)), 0, 7);
      pen.fill();
      pen.stroke();
    }
  }

  // ---- words ----------------------------------------------------------------------------------------------
  function tell(rank) {
    const node = Math.floor(rank / data.node);
    place.querySelector(".place strong").textContent = `Rank ${rank.toLocaleString("en-US")}`;
    place.querySelector(".place span").textContent = data.world > data.node ? `node ${node}, device ${rank % data.node} of it` : "";
    data.axes.forEach((one, i) => {
      const found = peers(one, rank);
      rows[i].querySelector(".index span").textContent = index(one, rank) + 1;
      rows[i].querySelector(".group").textContent = one.talk === "all" ? list(found) : `${list(found)} next to it in ${list(group(one, rank))}`;
      rows[i].querySelector(".link").textContent = links(rank, found);
    });
  }

  function list(found) {
    const said = found.map((rank) => rank.toLocaleString("en-US"));
    if (found.length > 2 && found.at(-1) - found[0] === found.length - 1) return `${said[0]}–${said.at(-1)}`;
    return found.length <= 4 ? said.join(", ") : `${said.slice(0, 3).join(", ")}, … ${said.at(-1)}`;
  }

  // ---- choosing -------------------------------------------------------------------------------------------
  function pick(which) {
    axis = which;
    rows.forEach((row, i) => row.querySelector("button").setAttribute("aria-pressed", i === which));
    draw();
    tell(chosen);
  }

  function show(rank) {
    if (rank === over) return;
    over = rank;
    if (rank >= 0) { chosen = rank; tell(rank); }
    draw();
  }

  function follow() {
    const find = (event) => {
      const box = map.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      for (const [rank, [left, top]] of spots) if (x >= left && x < left + size && y >= top && y < top + size) return show(rank);
      show(-1);
    };
    map.addEventListener("pointermove", find);
    map.addEventListener("pointerdown", find);
    map.addEventListener("pointerleave", () => show(-1));
    map.addEventListener("blur", () => show(-1));
    map.tabIndex = 0;
    map.setAttribute("role", "group");
    map.setAttribute("aria-label", "Map of ranks: arrow keys go from device to device; the table below tells whom each talks to");
    map.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: data.node, ArrowUp: -data.node }[event.key];
      if (event.key === "Escape") show(-1);
      if (!step) return;
      event.preventDefault();
      const at = ranks.indexOf(chosen) + (over < 0 ? 0 : step);
      show(ranks[Math.min(ranks.length - 1, Math.max(0, at))]);
    });
  }
})();
