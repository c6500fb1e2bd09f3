// From a control to the picture: the state is a query, the answer comes from the server or from inside the file.
(() => {
  const $ = (id) => document.getElementById(id);
  const frozenText = $("frozen")?.textContent;
  let frozen = null; // {pictures, reasons, search} by state
  let state = new URLSearchParams(document.body.dataset.start);
  let now = null, other = null, search = null, searchedFor = "";
  const forgets = JSON.parse(document.body.dataset.forgets); // keys that follow from others once one was moved
  let busy = false, next = 0, later = 0; // next: when the control moved that is asked about next
  const seen = []; // milliseconds from control to picture, for who measures
  window.explore = { seen, get state() { return state.toString(); } };

  // ---- asking ---------------------------------------------------------------------------------------------
  async function ask(what, query) {
    if (frozen) {
      const answer = what === "search" ? frozen.search : frozen[what][name(query)];
      if (answer) return answer;
      return { error: { what: "this layout isn't in the file", how: `start \`${command(new URLSearchParams(query), "explore")}\` for a live page, or \`${command(new URLSearchParams(query), "predict")}\`` } };
    }
    try {
      const got = await fetch(`/${what}?${query}`);
      return await got.json();
    } catch {
      return { error: { what: "the server has stopped", how: `start it again with \`${command(new URLSearchParams(query), "explore")}\`` } };
    }
  }

  // The name in the file of what a slider asks for: every key stated, where the state leaves some out.
  function name(query) {
    const given = [...new URLSearchParams(query)];
    return frozen.links[query] || frozen.states.find((full) => given.every(([key, value]) => full.get(key) === value))?.toString();
  }

  // The command line of a state, for a page that can't ask; the server writes the same (state.py).
  function command(from, verb) {
    const flags = ["tokens", "price", "framework"], run = ["model", "cluster", "seq_len", ...flags];
    const more = flags.filter((key) => from.get(key)).map((key) => ` --${key} ${from.get(key)}`).join("");
    const pairs = [...from].filter(([key]) => !run.includes(key)).map(([key, value]) => `${key}=${paired(key, value)}`).join(",");
    const quoted = /^[\w@%+=:,./-]*$/.test(pairs) ? pairs : `'${pairs}'`;
    return `scalewright ${verb} ${from.get("model")} --cluster ${from.get("cluster")} --seq-len ${from.get("seq_len")} --layout ${quoted}${more}`;
  }

  function paired(key, value) {
    if (key === "stage_layers") return `[${value}]`;
    return key === "recompute" && value.includes("=") ? `{${value.replace("=", ": ")}}` : value;
  }

  // Prices the state and shows it; a mistake is a sentence, and the picture before it stays, pale. One request is on
  // its way at a time: a slider that moves on meanwhile has its last place asked about next.
  async function update(moved = performance.now()) {
    if (busy) { next = moved; return; }
    busy = true;
    const answer = await ask("picture", state.toString());
    busy = false;
    clearTimeout(later);
    const mistake = answer.error;
    $("mistake").hidden = !mistake;
    $("now").classList.toggle("stale", Boolean(mistake));
    if (mistake) {
      $("mistake").textContent = `${mistake.what}${mistake.how ? `: ${mistake.how}` : ""}`;
      if (!next) keep(state.toString());
    } else {
      now = answer;
      if (!next) state = new URLSearchParams(answer.state);
      show();
      requestAnimationFrame(() => setTimeout(() => seen.push(performance.now() - moved)));
      if (!next) later = setTimeout(explain, frozen ? 0 : 250);
    }
    if (next) { const from = next; next = 0; return update(from); }
  }

  async function explain() {
    const query = state.toString();
    const why = await ask("reasons", query);
    if (query === state.toString() && !why.error) for (const id of ["what_if", "evidence"]) $(id).innerHTML = why[id] || "<p class='card note'>Nothing that helps.</p>";
    if (query === state.toString() && !why.error) $("run_file").textContent = why.run_file;
    const run = ["model", "cluster", "seq_len", "devices", "global_batch", "precision", "framework"].map((key) => state.get(key)).join();
    if (run === searchedFor) return;
    searchedFor = run;
    $("searching").textContent = "Searching…";
    const answer = await ask("search", query);
    if (searchedFor !== run) return;
    search = answer.error ? null : answer;
    $("searching").textContent = answer.error ? `No search: ${answer.error.what}${answer.error.how ? `: ${answer.error.how}` : ""}`
      : `${answer.evaluated.toLocaleString("en-US")} layouts of these devices and this batch; choose one of the best:`;
    picks();
    plot();
  }

  // ---- showing --------------------------------------------------------------------------------------------
  function show() {
    $("title").textContent = now.title;
    $("said").textContent = now.said;
    $("fits").textContent = now.fits.words;
    $("fits").className = `status ${now.fits.tone}`;
    side($("now"), now);
    if (!next) sliders();
    plots.roofline(now.roofline);
    const heavy = [...now.roofline.points].sort((a, b) => b.share - a.share).slice(0, 6);
    $("operators").textContent = `Most of the FLOPs: ${heavy.map((point) => `${point.name} ${(100 * point.share).toFixed(0)}% at ${words.count(point.intensity)} FLOPs a byte`).join(", ")}.`;
    plot();
    $("command").textContent = now.command;
    $("run_file").textContent = "";
    if (!next) keep(now.state);
  }

  function side(place, answer) {
    const tiles = answer.tiles.map((tile) => `<div class="${tile.tone}"><dt>${tile.name}</dt><dd><strong>${tile.value}</strong><span>${tile.note}</span></dd></div>`).join("");
    const pipeline_ = answer.pipeline && `<h2>Pipeline</h2>${answer.pipeline}`;
    const name = other ? `<p class="note">${escaped(answer.title)}</p>` : "";
    place.innerHTML = `${name}<dl class="tiles">${tiles}</dl><h2>Memory</h2>${answer.memory}<h2>Time</h2>${answer.time}${pipeline_}`;
    if (answer.drawing) pipeline(answer.drawing, place.querySelector("[data-drawing=pipeline]"));
  }

  function escaped(text) { return Object.assign(document.createElement("p"), { textContent: text }).innerHTML; }

  function point(answer) { return answer && { gib: answer.numbers.memory_gib.peak, seconds: answer.numbers.step_time_s.p50 }; }

  function plot() { if (search && now) plots.pareto(search, point(now), point(other)); }

  function picks() {
    $("best").replaceChildren(...(search?.best || []).map((layout) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `${layout.name}: ${layout.said}` });
      button.addEventListener("click", () => { state = new URLSearchParams(layout.state); update(); });
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
  }

  // ---- controls -------------------------------------------------------------------------------------------
  function sliders() {
    for (const key of ["model", "cluster"]) if ($(key)) $(key).value = state.get(key);
    const rows = now.controls.map((row) => frozen ? held(row) : row);
    const box = $("sliders");
    const keys = rows.map((row) => row.key).join();
    if (box.dataset.keys !== keys) {
      box.dataset.keys = keys;
      box.replaceChildren(...rows.map(control));
    }
    for (const row of rows) {
      const input = $(`axis-${row.key}`), at = row.values.indexOf(row.value);
      input.stops = row.values;
      input.disabled = row.values.length < 2; // what a file has one value of is told, and stays
      if (input.type === "range") { input.max = row.values.length - 1; input.value = at; }
      else input.replaceChildren(...row.values.map((value) => new Option(value, value, false, value === row.value)));
      told(input, row.value);
    }
  }

  // In a file: the values that some layout of it has.
  function held(row) {
    const values = new Set(frozen.states.map((each) => each.get(row.key)));
    return { ...row, values: row.values.filter((value) => value === row.value || values.has(String(value))) };
  }

  function control(row) {
    const place = document.createElement("p"), ranged = row.values.every((value) => typeof value === "number");
    place.className = "control";
    const input = Object.assign(document.createElement(ranged ? "input" : "select"), { id: `axis-${row.key}` });
    if (ranged) Object.assign(input, { type: "range", min: 0, step: 1 });
    const label = Object.assign(document.createElement("label"), { htmlFor: input.id, textContent: row.title });
    const output = Object.assign(document.createElement("output"), { htmlFor: input.id });
    place.append(label, output, input);
    input.addEventListener("input", () => {
      const value = ranged ? input.stops[Number(input.value)] : input.value;
      told(input, value);
      change(row.key, value);
    });
    return place;
  }

  function told(input, value) {
    if (input.type !== "range") return;
    input.previousElementSibling.textContent = value >= 1e9 ? words.count(value) : value.toLocaleString("en-US");
    input.setAttribute("aria-valuetext", value);
  }

  function change(key, value) {
    state.set(key, value);
    if (typeof value === "string" && /^of /.test(value)) state.delete(key); // what it is without being stated
    for (const name of [...forgets[key] || [], ...forgets[`${key}=${value}`] || []]) state.delete(name);
    if (key === "model") state = new URLSearchParams(["model", "cluster", "seq_len", "devices", "global_batch", "tokens", "price", "framework"]
      .filter((name) => state.has(name)).map((name) => [name, state.get(name)]));
    update();
  }

  for (const key of ["model", "cluster"]) $(key)?.addEventListener("change", (event) => change(key, event.target.value));
  $("beside").addEventListener("click", () => beside(now));
  $("apart").addEventListener("click", () => beside(null));

  function beside(answer) {
    other = answer;
    $("other").hidden = $("apart").hidden = !answer;
    if (answer) side($("other"), answer);
    if (now) show();
  }

  // ---- the link -------------------------------------------------------------------------------------------
  // #model=...&tp=8 and, where a layout is kept beside, &beside=<its own query>.
  let kept = "";
  function keep(query) {
    kept = `#${query}${other ? `&beside=${encodeURIComponent(other.state)}` : ""}`;
    history.replaceState(null, "", kept);
    $("link").textContent = location.href;
  }

  async function restore() {
    const from = new URLSearchParams(location.hash.slice(1)), second = from.get("beside");
    from.delete("beside");
    if (from.has("model")) state = from;
    if (second) {
      const answer = await ask("picture", second);
      if (!answer.error) other = answer;
    }
    await update();
    if (other) beside(other);
  }

  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
    const data = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
    data.states = Object.keys(data.picture).map((query) => new URLSearchParams(query));
    return data;
  }

  addEventListener("hashchange", () => { if (location.hash !== kept) restore(); });
  (async () => {
    if (frozenText) frozen = await unpack(frozenText);
    await restore();
  })();
})();
