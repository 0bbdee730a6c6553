// Figures of model outputs from plain data; any page can use them with pictures.css.
// Texts enter the page only as textContent, never as HTML. Spans count code points.
"use strict";

const Pictures = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = ["#ffd6a5", "#a0e8af", "#b4c7ff", "#ffb3c1", "#fdf08a", "#d0b8f5", "#9be7f0", "#e2c9a8", "#c9e265", "#f3b0e3"];

  function element(name, settings = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(settings)) {
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (key === "style") Object.assign(made.style, value);
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  function drawn(name, settings = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(settings)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function short(text, most) {
    const points = Array.from(text);
    return points.length > most ? points.slice(0, most - 1).join("") + "…" : text;
  }

  // Bars for rows of {name, value, text, pressed}, as shares of `most`, the value of a full bar; with `click(row)`, names are
  // buttons. Signed bars start in the middle.
  function bars(rows, most = 1, click = null) {
    const signed = rows.some((row) => row.value < 0);
    const picture = element("div", { class: "bars", role: "list" });
    for (const row of rows) {
      const width = (Math.abs(row.value) / most) * (signed ? 50 : 100);
      const left = signed ? (row.value < 0 ? 50 - width : 50) : 0;
      const name = click
        ? element("button", { type: "button", class: "name", "data-key": "bar " + row.name, "aria-pressed": String(Boolean(row.pressed)), onclick: () => click(row) }, row.name)
        : element("span", { class: "name" }, row.name);
      const fill = element("div", { class: row.value < 0 ? "fill against" : "fill", style: { width: width + "%", left: left + "%" } });
      picture.append(element("div", { class: "bar", role: "listitem" }, name, element("div", { class: "track" }, fill), element("span", { class: "value" }, row.text)));
    }
    return picture;
  }

  // A text with spans {start, end, score}, blue above 0 and orange below, relative to `most`.
  function shaded(text, spans, most) {
    const points = Array.from(text);
    const picture = element("div", { class: "marked", dir: "auto" });
    let at = 0;
    for (const span of [...spans].sort((a, b) => a.start - b.start)) {
      if (span.start < at) continue;
      picture.append(points.slice(at, span.start).join(""));
      const share = Math.min(1, Math.abs(span.score) / (most || 1e-9)) * 0.55;
      const color = span.score < 0 ? "--against" : "--for";
      const title = (span.score > 0 ? "+" : "") + span.score.toFixed(4);
      picture.append(element("mark", { title, style: { background: `rgba(var(${color}), ${share.toFixed(3)})` } }, points.slice(span.start, span.end).join("")));
      at = span.end;
    }
    picture.append(points.slice(at).join(""));
    return picture;
  }

  // A text with spans {start, end, label, score}, in a color per label or as dark as their `share`.
  function named(text, spans) {
    const points = Array.from(text);
    const labels = [...new Set(spans.map((span) => span.label))];
    const edges = [...new Set([0, points.length, ...spans.flatMap((span) => [span.start, span.end])])].sort((a, b) => a - b);
    const picture = element("div", { class: "marked", dir: "auto" });
    for (let i = 0; i + 1 < edges.length; i++) {
      const over = spans.filter((span) => span.start <= edges[i] && edges[i + 1] <= span.end);
      const piece = points.slice(edges[i], edges[i + 1]).join("");
      if (!over.length) picture.append(piece);
      else {
        const first = over[0];
        const shade = first.share !== undefined;
        const background = shade ? `rgba(var(--for), ${(0.1 + 0.45 * first.share).toFixed(3)})` : COLORS[labels.indexOf(first.label) % COLORS.length];
        const title = over.map((span) => `${span.label} ${span.score}`.trim()).join(", ");
        picture.append(element("mark", { class: shade ? "" : "named", title, style: { background } }, piece));
      }
      for (const span of spans) if (span.end === edges[i + 1] && span.label) picture.append(element("bdi", {}, span.label));
    }
    return picture;
  }

  // Attention (T, T): lines from attending tokens, at the left, to attended ones. Hovering shows a single token's.
  function attention(tokens, weights, label) {
    const width = 380, row = 22, column = 118, height = tokens.length * row + 8;
    const middle = (i) => 4 + row * (i + 0.5);
    const lines = drawn("g");
    const paths = [];
    weights.forEach((looks, i) => looks.forEach((weight, j) => {
      if (weight < 0.01) return;
      const from = column + 6, to = width - column - 6, half = (from + to) / 2;
      const d = `M${from} ${middle(i)}C${half} ${middle(i)} ${half} ${middle(j)} ${to} ${middle(j)}`;
      const line = drawn("path", { class: "line", d, "stroke-opacity": weight.toFixed(3), "data-from": i, "data-to": j });
      paths.push({ i, j, weight, line });
      lines.append(line);
    }));
    const sides = [[], []];
    let pinned = null;
    // For a single token, opacity is relative to its strongest line; for all, it is the weight.
    const shareOf = (chosen, place) => (chosen.side ? weights[place][chosen.place] : weights[chosen.place][place]);
    function show(chosen) {
      const most = chosen ? Math.max(1e-9, ...tokens.map((_, place) => shareOf(chosen, place))) : 1;
      for (const path of paths) {
        const seen = !chosen || (chosen.side ? path.j : path.i) === chosen.place;
        path.line.setAttribute("stroke-opacity", seen ? Math.min(1, path.weight / most).toFixed(3) : 0);
      }
      sides.forEach((group, side) => group.forEach((token, place) => {
        const on = chosen && chosen.side === side && chosen.place === place;
        token.classList.toggle("on", Boolean(on));
        const share = chosen && chosen.side !== side ? shareOf(chosen, place) : 0;
        token.querySelector("rect").setAttribute("fill-opacity", ((0.6 * share) / most).toFixed(3));
        token.querySelector("title").textContent = tokens[place] + (share ? ` ${(100 * share).toFixed(1)}%` : "");
      }));
    }
    function token(side, place) {
      const x = side ? width - column : column;
      const box = drawn("rect", { x: side ? x : 0, y: 4 + row * place, width: column, height: row - 2, "fill-opacity": 0 });
      const name = drawn("text", { x: side ? x + 5 : x - 5, y: middle(place) + 4, "font-size": 12.5, "text-anchor": side ? "start" : "end" });
      name.textContent = short(tokens[place], 16);
      const chosen = { side, place };
      function pin() {
        pinned = pinned && pinned.side === side && pinned.place === place ? null : chosen;
        sides.forEach((group, one) => group.forEach((other, at) => other.setAttribute("aria-pressed", String(Boolean(pinned) && pinned.side === one && pinned.place === at))));
        show(pinned);
      }
      const made = drawn("g", {
        class: "token", tabindex: 0, role: "button", "aria-pressed": "false", "data-side": side, "data-place": place,
        onpointerenter: () => show(chosen), onpointerleave: () => show(pinned), onfocus: () => show(chosen), onblur: () => show(pinned),
        onclick: pin, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pin(); } },
      }, drawn("title"), box, name);
      sides[side].push(made);
      return made;
    }
    const picture = drawn("svg", { class: "picture attention", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label }, lines);
    picture.style.maxWidth = "640px";
    for (const side of [0, 1]) tokens.forEach((_, place) => picture.append(token(side, place)));
    show(null);
    return picture;
  }

  // Named points on a plane; hovering shows similarities (N, N) to the others.
  function map(points, names, similarities, label) {
    const width = 600, height = 400, edge = 40;
    const scale = (values, size) => {
      const low = Math.min(...values), range = Math.max(...values) - low || 1;
      return values.map((value) => edge + ((value - low) / range) * (size - 2 * edge));
    };
    const x = scale(points.map((point) => point[0]), width), y = scale(points.map((point) => -point[1]), height);
    // Move names down where points are close, so that they do not overlap.
    const lines = [...y];
    const order = [...y.keys()].sort((a, b) => y[a] - y[b]);
    order.forEach((i, k) => {
      for (const j of order.slice(0, k)) if (Math.abs(x[i] - x[j]) < 260) lines[i] = Math.max(lines[i], lines[j] + 17);
    });
    const picture = drawn("svg", { class: "picture map", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
    const made = names.map((name, i) => {
      const left = x[i] > width * 0.6;
      const text = drawn("text", { class: "name", x: x[i] + (left ? -9 : 9), y: lines[i] + 4, "font-size": 13, "text-anchor": left ? "end" : "start" });
      text.textContent = short(name, 34);
      const title = drawn("title");
      title.textContent = name;
      const point = drawn("circle", { class: "point", cx: x[i], cy: y[i], r: 6, tabindex: 0, role: "img", onpointerenter: () => show(i), onpointerleave: () => show(null), onfocus: () => show(i), onblur: () => show(null) }, title);
      picture.append(point, text);
      return { point, text, name };
    });
    function show(chosen) {
      made.forEach(({ point, text, name }, i) => {
        const near = chosen === null ? 1 : Math.max(0, similarities[chosen][i]);
        point.setAttribute("fill-opacity", (0.15 + 0.85 * near).toFixed(3));
        point.setAttribute("r", i === chosen ? 9 : 6);
        text.textContent = short(name, 34) + (chosen === null || i === chosen ? "" : ` ${similarities[chosen][i].toFixed(2)}`);
      });
    }
    show(null);
    return picture;
  }

  // A table of cells {text, share}; `head` and `side` name columns and rows; with `click(row)`, rows can be selected.
  function table(head, side, rows, chosen = -1, click = null) {
    const body = rows.map((cells, i) => element("tr",
      { class: i === chosen ? "chosen" : "", style: click ? { cursor: "pointer" } : {}, onclick: () => click && click(i) },
      // The button has no handler of its own: a click on it is one on its row.
      element("th", { scope: "row" }, click ? element("button", { type: "button", "data-key": "row " + i, "aria-pressed": String(i === chosen) }, side[i]) : side[i]),
      ...cells.map((cell) => element("td", { title: cell.title || "", style: { background: `rgba(var(--for), ${(0.55 * Math.max(0, cell.share)).toFixed(3)})` } }, cell.text))));
    const top = element("tr", {}, element("td"), ...head.map((name) => element("th", { scope: "col" }, name)));
    return element("div", { class: "table", tabindex: 0 }, element("table", {}, top, ...body));
  }

  // A text as tokens {name, start, end, unknown}; tokens without a space between them are drawn together.
  function pieces(text, tokens) {
    const points = Array.from(text);
    return element("div", { class: "pieces", dir: "auto" }, ...tokens.map((token, i) => {
      const before = i ? tokens[i - 1] : null;
      const goesOn = before && before.end === token.start && token.end > token.start;
      const shown = points.slice(token.start, token.end).join("") || token.name;
      return element("span", { class: (goesOn ? "goes-on " : "") + (token.unknown ? "unknown" : ""), title: `${token.name} · ${token.id}` }, shown);
    }));
  }

  return { element, short, bars, shaded, named, attention, map, table, pieces };
})();
window.Pictures = Pictures;
