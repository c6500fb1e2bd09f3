"use strict";
const $ = (id) => document.getElementById(id);
const model = document.body.dataset.model;
const root = document.documentElement;

// ---- light and dark
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
const paint = () => { root.dataset.theme = chosen ?? (dark.matches ? "dark" : "light"); };
dark.addEventListener("change", paint);
$("theme").addEventListener("click", () => { chosen = root.dataset.theme === "dark" ? "light" : "dark"; paint(); draw(); });
paint();

// ---- asking
const headers = () => ({ "Content-Type": "application/json", ...($("key")?.value ? { Authorization: `Bearer ${$("key").value}` } : {}) });
const locked = () => $("key") && !$("key").value && "Type the API key into the field at the top.";
async function* events(path, body, signal) {
  if (locked()) throw new Error(locked());
  const answer = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
const settings = () => ({
  model, temperature: +$("temperature").value, top_p: +$("top_p").value, max_tokens: +$("max_tokens").value, stream: true,
  stream_options: { include_usage: true }, ...($("seed").value ? { seed: +$("seed").value } : {}),
});
// Both APIs' chunks as { text, tokens: [{ token, p, top: [[token, p], ...] }], reason }
function pieces(choice) {
  const logprobs = choice.logprobs, tokens = [];
  for (const each of logprobs?.content ?? []) {
    tokens.push({ token: each.token, p: Math.exp(each.logprob), top: each.top_logprobs.map((t) => [t.token, Math.exp(t.logprob)]) });
  }
  (logprobs?.tokens ?? []).forEach((token, n) => {
    const top = Object.entries(logprobs.top_logprobs?.[n] ?? {}).map(([t, value]) => [t, Math.exp(value)]);
    tokens.push({ token, p: Math.exp(logprobs.token_logprobs[n]), top: top.sort((a, b) => b[1] - a[1]).slice(0, 5) });
  });
  return { text: choice.delta ? choice.delta.content ?? "" : choice.text, tokens, reason: choice.finish_reason };
}

// ---- the conversation
let chatting = !!document.body.dataset.chats, messages = [], running = null;
function turn(title, given = "") {
  const box = document.createElement("div"), head = document.createElement("h4"), text = document.createElement("div");
  box.className = "turn"; text.className = "text"; head.textContent = title;
  box.append(head, text);
  if (given) { const span = document.createElement("span"); span.className = "given"; span.textContent = given; text.append(span); }
  $("log").append(box);
  return { head, text };
}
function write(place, text, tokens) {
  const span = document.createElement("b"), last = tokens.at(-1);
  span.textContent = text; span.tokens = tokens;
  if (last) span.style.setProperty("--u", Math.min(1, -Math.log2(Math.min(...tokens.map((t) => t.p))) / 10).toFixed(3));  // bits
  place.append(span);
  return span;
}
async function send(given) {
  $("mistake").hidden = true;
  const stop = (running = new AbortController()), began = performance.now();
  $("send").hidden = true; $("stop").hidden = false;
  if (chatting) { messages.push({ role: "user", content: given }); turn("You").text.textContent = given; }
  const { head, text } = turn(chatting ? model : "Text", chatting ? "" : given);
  text.tabIndex = 0; text.setAttribute("role", "group"); text.setAttribute("aria-label", "Tokens: the arrow keys move between them");
  let written = "", held = [], first = null, count = 0;
  const body = chatting
    ? { ...settings(), messages, logprobs: true, top_logprobs: 5 }
    : { ...settings(), prompt: given, logprobs: 5 };
  try {
    for await (const event of events(chatting ? "/v1/chat/completions" : "/v1/completions", body, stop.signal)) {
      for (const choice of event.choices) {
        const piece = pieces(choice);
        held.push(...piece.tokens); count += piece.tokens.length;
        if (piece.text) { first ??= performance.now(); write(text, piece.text, held); held = []; written += piece.text; }
        if (piece.reason && held.length) write(text, piece.reason === "stop" ? "end" : "…", held).className = "end";
      }
      $("log").scrollTop = $("log").scrollHeight;
    }
  } catch (error) {
    if (error.name !== "AbortError") { $("mistake").textContent = error.message; $("mistake").hidden = false; }
  }
  const seconds = (performance.now() - (first ?? began)) / 1000, small = document.createElement("small");
  if (first) small.textContent = ` · first token after ${Math.round(first - began)} ms, then ${((count - 1) / Math.max(seconds, 1e-3)).toFixed(0)} tokens/s`;
  head.append(small);
  if (chatting) messages.push({ role: "assistant", content: written });
  if (!chatting) $("prompt").value = "";
  running = null; $("send").hidden = false; $("stop").hidden = true;
}
const submit = () => { const given = $("prompt").value; if (given.trim() && !running) { $("prompt").value = ""; send(given); } };
$("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
});
$("stop").addEventListener("click", () => running?.abort());
$("reset").addEventListener("click", () => { running?.abort(); messages = []; $("log").replaceChildren(); $("prompt").focus(); });
$("tint").addEventListener("change", () => $("log").classList.toggle("tinted", $("tint").checked));
$("log").classList.add("tinted");
for (const mode of ["chat", "text"]) $(`mode-${mode}`)?.addEventListener("click", () => {
  chatting = mode === "chat"; messages = [];
  for (const each of ["chat", "text"]) $(`mode-${each}`).setAttribute("aria-pressed", each === mode);
  $("reset").click();
});
for (const slider of document.querySelectorAll("input[type=range]")) {
  slider.addEventListener("input", () => { document.querySelector(`[data-of=${slider.id}]`).textContent = slider.value; });
}

// ---- a token's probabilities, by pointer or arrow keys
const shown = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
function look(span) {
  document.querySelector(".text b.at")?.classList.remove("at");
  if (!span?.tokens?.length) return;
  span.classList.add("at");
  const box = document.createElement("div");
  box.className = "odds";
  for (const { token, p, top } of span.tokens.slice(-3)) {
    const rows = top.some(([each]) => each === token) ? top : [[token, p], ...top];
    for (const [each, odds] of rows) {
      const name = document.createElement("code"), bar = document.createElement("div"), number = document.createElement("span");
      name.textContent = shown(each); number.textContent = odds < 0.0005 ? "<0.1%" : `${(100 * odds).toFixed(1)}%`;
      if (each === token) name.className = number.className = "taken";
      bar.append(document.createElement("i")); bar.firstChild.style.width = `${100 * odds}%`;
      box.append(name, bar, number);
    }
  }
  $("panel").replaceChildren(box);
}
$("log").addEventListener("pointerover", (event) => event.target.matches(".text b") && look(event.target));
$("log").addEventListener("click", (event) => event.target.matches(".text b") && look(event.target));
$("log").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], spans = [...event.target.querySelectorAll?.("b") ?? []];
  if (!step || !spans.length) return;
  event.preventDefault();
  const at = spans.findIndex((span) => span.classList.contains("at"));
  const next = spans[Math.min(Math.max(at + step, 0), spans.length - 1)];
  look(next); next.scrollIntoView({ block: "nearest" });
});

// ---- the engine's picture
const WINDOW_S = 30, seen = [], spans = new Map(), lanes = new Map();  // samples; request -> its spans, its lane
let picture = null;
const colour = (number) => getComputedStyle(root).getPropertyValue(`--c${number % 8}`);
async function poll() {
  if (locked()) { $("status").textContent = locked(); return; }
  try {
    const answer = await fetch(`/picture?since=${picture?.now ?? 0}`, { headers: headers() });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    picture = await answer.json();
    seen.push(picture);
    while (seen.length > 2 && seen[1].now < picture.now - WINDOW_S) seen.shift();
    picture.steps.forEach(follow);
    $("status").textContent = "ready"; $("status").className = "status";
    draw();
  } catch (error) {
    $("status").textContent = error instanceof TypeError ? "the server has gone" : error.message;
    $("status").className = "status bad";
  }
}
async function watch() {
  for (; ;) { if (!document.hidden) await poll(); await new Promise((done) => setTimeout(done, 200)); }
}
function surface(canvas, height) {
  const scale = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.width = width * scale; canvas.height = height * scale; canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return [pen, width];
}
// A step's part in the spans of each request: [request, tokens, whether they are its prompt's]
function follow([began, ended, rows, waiting]) {
  const extend = (number, state) => {
    const list = spans.get(number) ?? [], last = list.at(-1);
    if (last?.state === state && began - last.to < 0.1) last.to = ended; else list.push({ state, from: began, to: ended });
    if (!spans.has(number)) {
      const taken = new Set([...spans].filter(([, other]) => other.at(-1).to >= began - 0.05).map(([other]) => lanes.get(other)));
      let lane = 0;
      while (taken.has(lane)) lane++;
      spans.set(number, list); lanes.set(number, lane);
    }
  };
  for (const [number, , reading] of rows) extend(number, reading ? "prefill" : "decode");
  for (const number of waiting) extend(number, "waiting");
}
function drawLanes(style) {
  for (const [number, list] of spans) {
    if (list.at(-1).to < picture.now - WINDOW_S) { spans.delete(number); lanes.delete(number); }
  }
  const rows = Math.max(8, ...[...lanes.values()].map((lane) => lane + 1)), height = Math.max(4, Math.min(20, 260 / rows));
  const [pen, width] = surface($("lanes"), rows * height + 4), x = (at) => width - (picture.now - at) / WINDOW_S * width;
  pen.fillStyle = style.getPropertyValue("--faint");
  for (let second = 0; second <= WINDOW_S; second += 5) pen.fillRect(Math.min(width - 1, x(picture.now - second)), 0, 1, rows * height);
  const order = ["waiting", "decode", "prefill"];  // a prompt is often read in one step: drawn last, 4 pixels wide at least
  for (const state of order) for (const [number, list] of spans) for (const span of list) {
    if (span.state !== state) continue;
    const left = x(span.from), top = lanes.get(number) * height + 1, tall = height - 2;
    const wide = Math.max(x(span.to) - left, state === "prefill" ? 4 : 1);
    pen.fillStyle = state === "waiting" ? style.getPropertyValue("--soft") : state === "prefill" ? style.getPropertyValue("--card") : colour(number);
    if (state === "waiting") pen.fillRect(left, top + tall / 2 - 1, wide, 2); else pen.fillRect(left, top, wide, tall);
    if (state !== "prefill") continue;
    pen.fillStyle = colour(number);
    for (let at = 0; at < wide; at += 4) pen.fillRect(left + at, top, 2, tall);
  }
}
function drawBlocks(style) {
  const total = picture.blocks, owners = new Map();
  for (const { number, blocks } of picture.requests) for (const block of blocks) owners.set(block, [...owners.get(block) ?? [], number]);
  const cached = new Set(picture.cached), canvas = $("blocks");
  let side = 16;
  while (side > 3 && Math.ceil(total / Math.floor(canvas.clientWidth / side)) * side > 190) side--;
  const across = Math.max(1, Math.floor(canvas.clientWidth / side));
  const [pen] = surface(canvas, Math.min(900, Math.ceil(total / across) * side));
  for (let block = 0; block < total; block++) {
    const x = block % across * side, y = Math.floor(block / across) * side, size = side - (side > 5 ? 2 : 1), held = owners.get(block);
    pen.fillStyle = held ? colour(held[0]) : style.getPropertyValue(cached.has(block) ? "--soft" : "--faint");
    pen.globalAlpha = !held && cached.has(block) ? 0.5 : 1;
    pen.fillRect(x, y, size, size);
    pen.globalAlpha = 1;
    if (held?.length > 1) {
      pen.fillStyle = colour(held[1]);
      pen.beginPath(); pen.moveTo(x + size, y); pen.lineTo(x + size, y + size); pen.lineTo(x, y + size); pen.fill();
    }
  }
  $("kv").textContent = `${Math.round(100 * owners.size / total)}%`;
}
function drawBatch() {
  const counts = new Map(), list = [];
  for (const { number, count } of picture.batch) counts.set(number, (counts.get(number) ?? 0) + count);
  for (const { number, state, tokens, of, blocks } of picture.requests.slice(0, 40)) {
    const row = document.createElement("li"), count = counts.get(number) ?? 0;
    row.style.setProperty("--c", `var(--c${number % 8})`);
    const name = document.createElement("b"), what = document.createElement("span"), track = document.createElement("div");
    const progress = document.createElement("span"), held = document.createElement("span");
    name.textContent = `#${number}`; what.textContent = state === "prefill" ? `reads ${count}` : state === "decode" ? "writes" : "waits";
    track.className = "track"; track.append(document.createElement("i")); track.firstChild.style.width = `${100 * tokens / Math.max(of, 1)}%`;
    progress.textContent = `${tokens} of ${of}`; held.textContent = `${blocks.length} blocks`;
    row.append(name, what, track, progress, held);
    list.push(row);
  }
  $("batch").replaceChildren(...list);
  const states = new Map(picture.requests.map((each) => [each.number, each.state]));
  let reading = 0, writes = 0;
  for (const [number, count] of counts) {
    if (states.get(number) === "prefill" || count > 8) reading += count;
    else if (states.has(number)) writes++;
  }
  const parts = [reading ? `${reading} tokens of prompts are read` : "", writes ? `${writes} request${writes > 1 ? "s" : ""} write${writes > 1 ? "" : "s"} a token${writes > 1 ? " each" : ""}` : ""];
  $("step").textContent = parts.filter(Boolean).join(", ") || "Nothing runs.";
  $("running").textContent = picture.requests.filter((each) => each.state !== "waiting").length;
  $("waiting").textContent = picture.requests.filter((each) => each.state === "waiting").length;
  const before = seen.find((each) => each.now > picture.now - 2) ?? picture, seconds = picture.now - before.now;
  $("speed").textContent = seconds > 0.1 ? Math.round((picture.generated_tokens - before.generated_tokens) / seconds) : 0;
}
function draw() {
  if (!picture) return;
  const style = getComputedStyle(root);
  drawLanes(style); drawBlocks(style); drawBatch();
}
// Three calls of four prompts, as a browser opens no more than six connections to a server. All begin alike, by a block.
$("crowd").addEventListener("click", async () => {
  const words = "the a one of to and in it was that by from with all no so".split(" ");
  const pick = (n) => Math.floor(Math.random() * n);
  const some = (count) => Array.from({ length: count }, () => words[pick(words.length)]).join(" ");
  const start = some(80);
  for (const max_tokens of [150, 40, 90]) {
    const prompt = Array.from({ length: 4 }, () => `${start} ${some(4 + pick(60))}`);
    fetch("/v1/completions", { method: "POST", headers: headers(), body: JSON.stringify({ model, prompt, max_tokens }) })
      .then(async (answer) => { if (!answer.ok) throw new Error((await answer.json()).error.message); })
      .catch((error) => { $("mistake").textContent = error.message; $("mistake").hidden = false; });
    await new Promise((done) => setTimeout(done, 700 + pick(600)));
  }
});
addEventListener("resize", draw);
watch();
