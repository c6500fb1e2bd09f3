// Round numbers for axes, and how each kind of number is said; as in report/series.py.
"use strict";
const words = (() => {
  function ticks(low, high, about) {
    const rough = (high - low) / about;
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.75);
    const found = [];
    for (let i = Math.ceil(low / unit - 1e-9); i <= Math.floor(high / unit + 1e-9); i++) found.push(+(i * unit).toPrecision(12));
    return found;
  }

  function say(value, kind) {
    if (kind === "step") return Math.round(value).toLocaleString("en-US");
    if (kind === "count") return count(value);
    if (kind === "seconds") return seconds(value);
    if (kind === "percent") return `${(100 * value).toFixed(1)}%`;
    return kind === "gib" ? `${decimal(value, 3)} GiB` : decimal(value, 4);
  }

  function sayTick(value, kind) {
    if (kind === "percent") return `${+(100 * value).toPrecision(6)}%`;
    if (kind === "gib" || value === 0) return `${+value.toPrecision(6)}`;
    if (kind !== "number") return say(value, kind);
    const size = Math.abs(value);
    return size >= 1e-3 && size < 1e5 ? `${+value.toPrecision(6)}` : value.toExponential().replace("e+", "e");
  }

  function count(value) {
    for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= 0.9995 * size) return +(value / size).toPrecision(3) + letter;
    return `${+value.toPrecision(3)}`;
  }

  function seconds(value) {
    if (value < 1e-3) return `${+(value * 1e6).toPrecision(3)} µs`;
    return value < 0.9995 ? `${+(value * 1e3).toPrecision(3)} ms` : `${+value.toPrecision(3)} s`;
  }

  function decimal(value, digits) {
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e5)) return value.toExponential(digits - 1).replace("e+", "e");
    return value.toFixed(Math.max(digits - String(Math.trunc(size)).length, 0));
  }

  function clock(value) {
    const whole = Math.round(value), two = (number) => String(number).padStart(2, "0");
    const rest = `${whole >= 3600 ? two(Math.floor(whole / 60) % 60) : Math.floor(whole / 60)}:${two(whole % 60)}`;
    return whole >= 3600 ? `${Math.floor(whole / 3600)}:${rest}` : rest;
  }

  return { say, sayTick, ticks, count, seconds, clock };
})();
