// A plan's pipeline, a lane for every rank and a box for every computation; or lanes of bare boxes, of a trace.
const pipeline = (data, place) => {
  if (!data || !place) return;
  const element = place.querySelector("canvas");
  const kinds = data.colours || ["forward", "backward", "input", "weight"];
  const lanes = data.ranks.map(decode);
  const row = Math.max(8, Math.min(26, Math.floor(640 / lanes.length) - 3));
  const pitch = row + (row > 12 ? 5 : 2);
  const bottom = lanes.length * pitch;
  const height = bottom + 34;
  const tip = canvas.tip(place);
  const shortest = 6 / 1e6; // of the whole: nothing is to be seen below
  let left = 56, width = 1;
  let view = [0, 1];
  let folded = Boolean(data.fold); // the ends of the step beside each other, what lies between left out
  const torn = 28; // pixels of the break
  const draw = canvas.keep(place, paint);
  const zoomTools = place.closest(".pipeline").querySelector(".zoom");
  zoomTools.hidden = false;
  zoomTools.addEventListener("click", (event) => {
    const what = event.target.dataset.zoom;
    if (what === "fold") { folded = true; draw(); }
    else if (what === "all") look(0, 1);
    else if (what === "start") look(0, beginning());
    else if (what) zoom(what === "in" ? 0.5 : 2, 0.5);
  });
  zoomTools.querySelector("[data-zoom=fold]").hidden = !data.fold;
  if (!data.bare && Math.max(...lanes.map((lane) => lane.start.length)) > 260) view = [0, beginning()];
  follow();
  paint();

  // Ticks since the box before, and its length, become shares of the whole.
  function decode(numbers) {
    const many = numbers.length / 5;
    const lane = { kind: new Uint8Array(many), chunk: new Uint8Array(many), micro: new Int32Array(many), start: new Float64Array(many), end: new Float64Array(many) };
    let at = 0;
    for (let i = 0; i < many; i++) {
      const [kind, chunk, micro, wait, length] = numbers.slice(5 * i, 5 * i + 5);
      lane.kind[i] = kind; lane.chunk[i] = chunk; lane.micro[i] = micro;
      lane.start[i] = (at + wait) / data.ticks;
      at += wait + length;
      lane.end[i] = at / data.ticks;
    }
    return lane;
  }

  // A window from the start in which a box is some 14 pixels wide on a desk.
  function beginning() {
    const lane = lanes[0];
    const sizes = Array.from(lane.end, (end, i) => end - lane.start[i]).sort((a, b) => a - b);
    return Math.min(1, 60 * (sizes[sizes.length >> 1] || 1));
  }

  // ---- drawing --------------------------------------------------------------------------------------------
  function paint() {
    const [pen, whole] = canvas.context(element, height);
    left = whole < 500 ? 30 : 60;
    width = whole - left - 1;
    const fills = kinds.map((kind) => shades(canvas.colour(place, kind)));
    const [soft, grid, line] = ["soft", "grid", "line"].map((name) => canvas.colour(place, name));
    pen.font = `12px ${getComputedStyle(place).fontFamily}`;
    pen.textBaseline = "middle";
    lanes.forEach((lane, rank) => {
      const y = rank * pitch;
      for (const part of windows()) {
        pen.fillStyle = grid;
        pen.fillRect(part.left, y, part.width, row);
      }
      if (data.lanes ? data.lanes[rank] : row >= 10 || rank % 4 === 0) {
        pen.fillStyle = soft;
        pen.textAlign = "right";
        pen.fillText(whole < 500 ? data.lanes ? rank / 2 : rank : name(rank), left - 8, y + row / 2);
      }
    });
    for (const part of windows()) {
      pen.save();
      pen.beginPath();
      pen.rect(part.left, 0, part.width, bottom);
      pen.clip();
      lanes.forEach((lane, rank) => paintLane(pen, lane, rank * pitch, fills, part));
      if (data.gap && !folded) paintGap(pen, line);
      pen.restore();
      paintAxis(pen, soft, line, part);
    }
    if (folded) paintBreak(pen, soft);
  }

  // What is drawn where: shares of the step from `from` to `to`, at `left`, `width` pixels wide.
  function windows() {
    if (!folded) return [{ from: view[0], to: view[1], left, width }];
    const [head, tail] = data.fold, both = head + 1 - tail, room = width - torn;
    const one = room * head / both;
    return [{ from: 0, to: head, left, width: one }, { from: tail, to: 1, left: left + one + torn, width: room - one }];
  }

  function paintBreak(pen, soft) {
    const at = windows()[1].left - torn / 2;
    pen.strokeStyle = soft;
    pen.lineWidth = 1.5;
    for (const side of [-4, 4]) {
      pen.beginPath();
      for (let y = 0; y <= bottom; y += 8) pen.lineTo(at + side + (y / 8 % 2 ? 3 : -3), y);
      pen.stroke();
    }
    pen.lineWidth = 1;
  }

  function paintLane(pen, lane, y, fills, part) {
    const size = Math.min(row - 8, 12);
    pen.font = `600 ${size}px ${getComputedStyle(place).fontFamily}`;
    pen.textAlign = "center";
    for (let i = first(lane.end, part.from); i < lane.start.length && lane.start[i] < part.to; i++) {
      const a = x(lane.start[i], part), b = x(lane.end[i], part);
      pen.fillStyle = fills[lane.kind[i]][lane.chunk[i]];
      pen.fillRect(a, y, b - a, row);
      if (b - a < 4 || data.bare) continue;
      pen.fillStyle = "rgb(0 0 0 / 40%)";
      pen.fillRect(b - 1, y, 1, row);
      const label = lane.micro[i] + (data.chunks > 1 ? letter(lane.chunk[i]) : "");
      if (size < 8 || b - a < 0.62 * size * label.length + 4) continue;
      pen.fillStyle = "#101418";
      pen.fillText(label, (a + b) / 2, y + row / 2 + 0.5);
    }
  }

  function paintGap(pen, line) {
    const a = Math.max(x(data.gap[0]), left), b = Math.min(x(data.gap[1]), left + width);
    if (b <= a) return;
    pen.strokeStyle = line;
    pen.save();
    pen.beginPath(); pen.rect(a, 0, b - a, bottom); pen.clip();
    pen.beginPath();
    for (let at = a - bottom; at < b; at += 10) { pen.moveTo(at, bottom); pen.lineTo(at + bottom, 0); }
    pen.stroke();
    pen.restore();
  }

  function paintAxis(pen, soft, line, part) {
    pen.font = `11.5px ${getComputedStyle(place).fontFamily}`;
    const span = data.seconds * (part.to - part.from);
    const found = words.ticks(data.seconds * part.from, data.seconds * part.to, Math.max(2, Math.floor(part.width / 130)));
    const gap = found.length > 1 ? found[1] - found[0] : span;
    const [unit, name] = gap >= 0.1 ? [1, "s"] : gap >= 1e-4 ? [1e-3, "ms"] : [1e-6, "µs"];
    const digits = Math.max(0, Math.ceil(-Math.log10(gap / unit) - 1e-9));
    pen.fillStyle = soft;
    for (const value of found) {
      const at = x(value / data.seconds, part);
      pen.fillRect(at, bottom - 1, 1, 5);
      const text = `${(value / unit).toFixed(digits)} ${name}`;
      const half = pen.measureText(text).width / 2;
      pen.textAlign = "center";
      if (at + half <= part.left + part.width + 4 && at - half >= part.left - 24) pen.fillText(text, at, bottom + 13);
    }
    pen.fillStyle = line;
    pen.fillRect(part.left, height - 6, part.width, 4);
    pen.fillStyle = canvas.colour(place, "accent");
    if (folded) pen.fillRect(part.left, height - 6, part.width, 4);
    else pen.fillRect(left + width * view[0], height - 6, Math.max(3, width * (view[1] - view[0])), 4);
  }

  function x(share, part = windows()[0]) { return part.left + part.width * (share - part.from) / (part.to - part.from); }

  // The first index whose value is above `limit`, in ascending numbers.
  function first(values, limit) {
    let low = 0, high = values.length;
    while (low < high) { const middle = (low + high) >> 1; if (values[middle] > limit) high = middle; else low = middle + 1; }
    return low;
  }

  function name(rank) { return data.lanes ? data.lanes[rank] : `rank ${rank}`; }

  function letter(chunk) { return String.fromCharCode(97 + chunk % 26); }

  // A colour and lighter ones, for the chunks of a rank: the stage nearest to the model's start is darkest.
  function shades(hex) {
    const parts = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const many = Math.max(data.chunks - 1, 1);
    return Array.from({ length: data.chunks }, (_, chunk) => 0.62 * chunk / many).map((fade) => `rgb(${parts.map((v) => Math.round(v + (255 - v) * fade)).join(" ")})`);
  }

  // ---- moving about ---------------------------------------------------------------------------------------
  function look(from, to) {
    folded = false;
    const size = Math.min(1, Math.max(shortest, to - from));
    const start = Math.min(1 - size, Math.max(0, from));
    view = [start, start + size];
    draw();
  }

  function zoom(times, at) {
    if (folded) view = [0, data.fold[0]]; // from the broken picture into its first part
    const size = view[1] - view[0], fixed = view[0] + at * size;
    const next = Math.min(1, Math.max(shortest, size * times));
    look(fixed - at * next, fixed - at * next + next);
  }

  function move(share) {
    if (folded) view = [0, data.fold[0]];
    const by = share * (view[1] - view[0]);
    look(view[0] + by, view[1] + by);
  }

  function follow() {
    const pointers = new Map();
    const share = (event) => (event.clientX - place.getBoundingClientRect().left - left) / width;
    place.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      pointers.set(event.pointerId, share(event));
      place.setPointerCapture(event.pointerId);
      place.classList.add("moving");
    });
    place.addEventListener("pointermove", (event) => {
      const here = share(event), before = pointers.get(event.pointerId);
      if (before === undefined) return point(event, here);
      tip("");
      if (pointers.size === 1) move(before - here);
      else {
        const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
        const [was, is] = [Math.abs(before - other), Math.abs(here - other)];
        if (is > 0.01 && was > 0.01) zoom(was / is, other);
      }
      pointers.set(event.pointerId, here);
    });
    const lift = (event) => {
      pointers.delete(event.pointerId);
      place.classList.toggle("moving", pointers.size > 0);
    };
    for (const name of ["pointerup", "pointercancel"]) place.addEventListener(name, lift);
    place.addEventListener("pointerleave", () => tip(""));
    place.addEventListener("dblclick", (event) => zoom(0.4, share(event)));
    place.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), share(event));
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / width);
      else return;
      event.preventDefault();
    }, { passive: false });
    place.tabIndex = 0;
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", "Timeline: arrow keys move, plus and minus zoom, 0 shows the whole step");
    place.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {
        ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), "+": () => zoom(0.6, 0.5), "=": () => zoom(0.6, 0.5),
        "-": () => zoom(1 / 0.6, 0.5), 0: () => look(0, 1), Home: () => look(0, view[1] - view[0]), End: () => look(1, 2),
      };
      if (!(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  function point(event, part) {
    const box = place.getBoundingClientRect();
    const y = event.clientY - box.top;
    const rank = Math.floor(y / pitch);
    if (part < 0 || part > 1 || y >= bottom || rank >= lanes.length) return tip("");
    const pixel = left + part * width;
    const shown = windows().find((one) => pixel >= one.left && pixel <= one.left + one.width);
    const at = shown && shown.from + (pixel - shown.left) / shown.width * (shown.to - shown.from);
    tip(...(shown ? say(lanes[rank], rank, at) : ["Left out", "the steady state repeats"]), event.clientX - box.left, y);
  }

  function say(lane, rank, at) {
    if (data.gap && at > data.gap[0] && at < data.gap[1]) return ["Left out", "the steady state repeats"];
    const i = first(lane.end, at);
    const time = (share) => words.seconds(share * data.seconds);
    if (data.bare) {
      const inside = i < lane.start.length && lane.start[i] <= at;
      return inside ? [data.names[lane.kind[i]], `${name(rank) || `${name(rank - 1)}, communication`}: ${time(lane.end[i] - lane.start[i])} from ${time(lane.start[i])}`] : [""];
    }
    if (i < lane.start.length && lane.start[i] <= at) {
      const title = `${data.names[lane.kind[i]]}, micro-batch ${lane.micro[i]}`;
      return [title, `rank ${rank}, stage ${data.stages[rank][lane.chunk[i]]}: ${time(lane.end[i] - lane.start[i])} from ${time(lane.start[i])}`];
    }
    const from = i ? lane.end[i - 1] : 0, to = i < lane.start.length ? lane.start[i] : 1;
    return ["idle", `rank ${rank}: ${time(to - from)} from ${time(from)}`];
  }
};
pipeline(...canvas.find("pipeline"));
