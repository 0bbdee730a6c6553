// The playground: models, panels and their answers. Figures are in pictures.js.
"use strict";

(() => {
  const { element } = Pictures;
  const SHARED = window.SHARED || null; // Precomputed answers, see kerasbert/play/share.py.
  const LANGUAGES = Object.keys(STRINGS);
  const $ = (id) => document.getElementById(id);
  let language = LANGUAGES.find((code) => (navigator.language || "en").toLowerCase().startsWith(code)) || "en";
  let models = [], examples = {}, most = 2e6;
  let chosen = null, panel = null, answers = 0;
  let picked = false; // Whether the reader chose a model or typed a text; until then, the page chooses by language.
  let working = false;
  const written = {}; // What the reader wrote into each panel's fields, with {mask} for the mask token.

  function say(key, values = {}) {
    return (STRINGS[language][key] || key).replace(/\{(\w+)\}/g, (all, name) => (name in values ? values[name] : all));
  }

  // Replace the children of an element, and keep the focus on the one with the same data-key.
  function swap(parent, ...children) {
    const key = parent.contains(document.activeElement) && document.activeElement.dataset.key;
    parent.replaceChildren(...children);
    const again = key && parent.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (again) again.focus({ preventScroll: true });
  }

  // Arrow keys, Home and End move the focus within a row of buttons, and press the button.
  function arrows(event, parent) {
    const buttons = [...parent.querySelectorAll("button:not(:disabled)")], at = buttons.indexOf(document.activeElement);
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    let to = event.key === "Home" ? 0 : event.key === "End" ? buttons.length - 1 : null;
    if (event.key in steps) to = (at + steps[event.key] + buttons.length) % buttons.length;
    if (to === null || at < 0) return;
    event.preventDefault();
    buttons[to].focus();
    buttons[to].click();
  }

  // === The server, or precomputed answers ===

  // An error of the server, as a sentence in the page's language.
  function refusal({ error, key, values = {} }) {
    if (!key) return new Error(say("error", { error }));
    const shown = Object.fromEntries(Object.entries(values).map(([name, value]) => [name,
      name === "field" ? say((LABELS[panel] || {})[value] || (value in STRINGS.en ? value : "text"))
      : typeof value === "number" ? value.toLocaleString(language) : value]));
    return new Error(say("error_" + key, shown));
  }

  function keyOf(path, body) {
    return JSON.stringify([path, ...Object.keys(body).sort().map((name) => [name, body[name]])]);
  }

  async function api(path, body = null) {
    if (SHARED) {
      if (!body) return SHARED;
      const found = SHARED.answers[keyOf(path, body)];
      if (!found) throw new Error(say("error", { error: path }));
      if (found.refused) throw refusal(found.refused);
      return found;
    }
    let response;
    try {
      response = await fetch("api/" + path, body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {});
    } catch (error) {
      throw new Error(say("gone"));
    }
    const found = await response.json().catch(() => ({ error: response.statusText }));
    if (!response.ok) throw refusal(found);
    return found;
  }

  // === Models ===

  async function look() {
    try {
      const found = await api("models");
      ({ models, examples } = found);
      most = found.most.bytes;
      showModels();
      if (models.some((model) => !["ready", "failed"].includes(model.state))) setTimeout(look, 400);
    } catch (error) {
      $("loaded-text").textContent = error.message;
      setTimeout(look, 2000);
    }
  }

  function showModels() {
    const done = models.filter((model) => model.state === "ready").length;
    const over = models.filter((model) => ["ready", "failed"].includes(model.state)).length;
    $("loaded").max = models.length;
    $("loaded").value = over;
    $("loading").hidden = Boolean(SHARED);
    $("loaded").hidden = over === models.length;
    $("loaded-text").textContent = say("loaded", { done, all: models.length });
    $("models").setAttribute("aria-label", say("models"));
    const best = preferred();
    if (!picked && best !== null && best !== chosen && models[best].state === "ready") choose(best);
    swap($("models"), ...models.map((model, place) => {
      const note = model.state === "ready" && SHARED ? model.class
        : model.state === "ready" ? `${model.class}, ${say("ready", { parameters: (model.parameters / 1e6).toFixed(1), seconds: model.seconds })}`
        : model.state === "failed" ? `${say("failed")}: ${model.error}` : say(model.state, { seconds: model.seconds });
      return element("button", {
        type: "button", role: "radio", class: model.state, "aria-checked": String(place === chosen), "data-key": "model " + place,
        tabindex: place === chosen || (chosen === null && model.state === "ready") ? 0 : -1,
        disabled: model.state !== "ready", onclick: () => { picked = true; choose(place); showModels(); },
      }, model.name, element("small", {}, note));
    }));
    if (chosen === null) $("panel").replaceChildren(element("p", { class: "about" }, say(done ? "nothing" : "wait")));
  }

  // Whether a model reads a language; if its languages are unknown, yes.
  function reads(model, code) {
    return !model.languages.length || !code || model.languages.includes(code) || model.languages.includes("mul");
  }

  // The first model that reads the page's language, even if it is still loading.
  function preferred() {
    const all = [...models.keys()].filter((place) => models[place].state !== "failed");
    return all.find((place) => reads(models[place], language)) ?? all[0] ?? null;
  }

  function choose(place) {
    chosen = place;
    const panels = models[place].panels.filter((name) => !SHARED || examplesOf(name).length);
    open(panels.includes(panel) ? panel : panels[0]);
  }

  function open(name) {
    panel = name;
    answers++;
    const panels = models[chosen].panels.filter((one) => !SHARED || examplesOf(one).length);
    swap($("panels"), ...panels.map((one) => element("button", {
      type: "button", role: "tab", id: "tab-" + one, "data-panel": one, "data-key": one, "aria-controls": "panel", "aria-selected": String(one === panel),
      tabindex: one === panel ? 0 : -1, onclick: () => open(one),
    }, say(one))));
    $("panel").setAttribute("role", "tabpanel");
    $("panel").setAttribute("aria-labelledby", "tab-" + panel);
    build();
  }

  // === Forms ===

  function examplesOf(name) {
    const model = models[chosen];
    let found = examples[name === "classify" && model.pair ? "answer" : name] || [];
    found = found.filter((one) => reads(model, one.language));
    return [...found.filter((one) => one.language === language), ...found.filter((one) => one.language !== language)];
  }

  function withMask(text) {
    return text.split("{mask}").join(models[chosen].mask);
  }

  function withoutMask(text) {
    const { mask } = models[chosen];
    return mask ? text.split(mask).join("{mask}") : text;
  }

  const FIELDS = {
    fill: ["text"], classify: ["text", "text_b"], tag: ["text"], answer: ["text", "text_b"], choose: ["text", "texts"],
    write: ["text"], similar: ["texts"], search: ["texts", "text"], attention: ["text"], tokens: ["text"],
  };
  const LABELS = { answer: { text: "question", text_b: "context" }, similar: { texts: "lines" }, search: { texts: "lines", text: "query" }, choose: { texts: "choices" } };

  function build() {
    const model = models[chosen], fields = {};
    const form = element("form", { onsubmit: (event) => { event.preventDefault(); if (!go.hasAttribute("aria-disabled")) run(); } });
    const result = element("div", { id: "result", "aria-live": "polite" });
    const extra = { heads: null, layer: model.layers - 1 };
    const kept = (written[panel] = written[panel] || {});
    for (const name of FIELDS[panel]) {
      if (panel === "search" && name === "text" && !SHARED) addUpload();
      const label = (LABELS[panel] || {})[name] || name;
      const long = name === "texts" || (panel === "answer" && name === "text_b");
      const field = element("textarea", {
        name, rows: long ? 5 : 2, class: long ? "long" : "", readonly: Boolean(SHARED), spellcheck: "false",
        placeholder: name === "text_b" && panel === "classify" && !model.pair ? say("optional") : "",
        oninput: keep, // Enter submits single-line fields; Shift+Enter begins a new line.
        onkeydown: (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !long) { event.preventDefault(); run(); } },
      });
      fields[name] = field;
      form.append(element("label", { class: "field" }, element("span", {}, say(label)), field));
    }
    if (panel === "fill" && !SHARED) form.append(element("div", { class: "row" }, element("button", { type: "button", class: "small", onclick: insertMask }, say("insert", { mask: model.mask }))));
    let method = null;
    if (panel === "classify" && model.panels.includes("attention") && !SHARED) {
      method = element("select", { name: "method" }, ...["integrated_gradients", "gradient_x_input", "attention_rollout"].map((one) => element("option", { value: one }, say(one))));
      form.append(element("label", { class: "row" }, element("span", { class: "label" }, say("method")), method));
    }
    const go = element("button", { class: "go", type: "submit" }, say("go"));
    const busy = element("span", { class: "note", id: "busy", role: "status" });
    const starts = examplesOf(panel);
    if (starts.length) {
      form.append(element("div", { class: "row" }, element("span", { class: "label" }, say("examples")),
        ...starts.map((one) => element("button", { type: "button", class: "small", lang: one.language, onclick: () => { take(one); keep(); run(); } }, Pictures.short(withMask(one.text || one.texts[0]), 24)))));
    }
    if (!SHARED) form.append(element("div", { class: "row" }, go, busy));
    $("panel").replaceChildren(element("p", { class: "about" }, say("about_" + panel, { mask: model.mask || "[MASK]" })), form, result);
    if (Object.keys(kept).length && !SHARED) for (const name in fields) fields[name].value = withMask(kept[name] || "");
    else if (starts.length) take(starts[0]);
    if (SHARED) run();

    function keep() {
      picked = true;
      for (const name in fields) kept[name] = withoutMask(fields[name].value);
    }

    function take(one) {
      for (const name in fields) {
        const value = one[name] === undefined ? "" : one[name];
        fields[name].value = Array.isArray(value) ? value.join("\n") : withMask(value);
      }
      extra.index = null;
    }

    function insertMask() {
      const field = fields.text, at = field.selectionStart;
      field.value = field.value.slice(0, at) + model.mask + field.value.slice(field.selectionEnd);
      keep();
      field.focus();
      field.selectionStart = field.selectionEnd = at + model.mask.length;
    }

    function lines() {
      return fields.texts.value.split(/\r?\n/).filter((line) => line.trim());
    }

    function ask() {
      const body = { model: chosen };
      for (const name in fields) {
        if (name === "texts") body.texts = lines();
        else if (name !== "text_b" || fields[name].value.trim()) body[name] = fields[name].value;
      }
      return body;
    }

    function addUpload() {
      const file = element("input", { type: "file", name: "file", accept: ".txt,.csv,.tsv,text/plain", onchange: async () => {
        result.replaceChildren();
        if (!file.files.length) return;
        try {
          fields.texts.value = (await readFile(file.files[0])).split(/\r?\n/).filter((line) => line.trim()).join("\n");
          keep();
          extra.index = null;
          await readList();
        } catch (error) {
          wrong(error);
        }
      } });
      form.append(element("label", { class: "field" }, element("span", {}, say("file")), file));
      fields.texts.addEventListener("input", () => { extra.index = null; });
    }

    // === Requests ===

    function wrong(error) {
      result.replaceChildren(element("p", { class: "wrong", role: "alert" }, error.message));
    }

    function show(...children) {
      swap(result, ...children);
    }

    async function during(work) {
      const own = ++answers, began = performance.now();
      working = true;
      go.setAttribute("aria-disabled", "true"); // A disabled button would lose the focus.
      const tick = () => { busy.textContent = say("working", { seconds: Math.round((performance.now() - began) / 1000) }); };
      const timer = setInterval(tick, 1000);
      try {
        const found = await work();
        return own === answers ? found : null; // Outdated: another panel was opened.
      } catch (error) {
        if (own === answers) wrong(error);
        return null;
      } finally {
        clearInterval(timer);
        busy.textContent = "";
        if (own === answers || !go.isConnected) working = false;
        go.removeAttribute("aria-disabled");
      }
    }

    async function run(more = {}) {
      if (panel === "tokens") return showTokens();
      if (panel === "search" && !SHARED) return search();
      const body = { ...ask(), ...more };
      if (method) body.method = method.value;
      if (panel === "attention") body.layer = extra.layer;
      const found = await during(() => api(panel, body));
      if (found) SHOW[panel](found, body);
    }

    async function readList() {
      const texts = lines(), index = crypto.getRandomValues(new Uint32Array(4)).join("-").slice(0, 40), here = chosen;
      const timer = setInterval(async () => {
        const { done } = await api("index/" + index).catch(() => ({ done: 0 }));
        if (!extra.index && working) busy.textContent = say("reading", { done, all: texts.length });
      }, 500);
      const found = await during(() => api("index", { model: here, index, texts })).finally(() => clearInterval(timer));
      if (!found) return false;
      extra.index = index;
      result.replaceChildren(element("p", { class: "note" }, say("indexed", { all: found.texts })));
      return true;
    }

    async function search() {
      if (!extra.index && !(await readList())) return;
      const found = await during(() => api("search", { index: extra.index, text: fields.text.value, top_k: 10 }));
      if (found) SHOW.search(found);
    }

    async function showTokens() {
      const text = fields.text.value;
      const there = SHARED ? [chosen] : models.map((_, place) => place).filter((place) => models[place].state === "ready");
      const found = await during(() => Promise.all(there.map((place) => api("tokens", { model: place, text }))));
      if (!found) return;
      result.replaceChildren(...found.flatMap((one, i) => [
        element("h2", {}, models[there[i]].name, " ", element("span", { class: "note" }, say("count_tokens", { count: one.tokens.length, vocabulary: one.vocabulary }))),
        Pictures.pieces(text, one.tokens),
      ]));
    }

    // === Answers ===

    function percent(value) {
      return (100 * value).toFixed(value < 0.0995 ? 1 : 0) + "%";
    }

    const SHOW = {
      fill({ gaps }) {
        const all = gaps[0].length - 1;
        const slider = element("input", { type: "range", min: 0, max: all, value: all, id: "layer", "data-key": "layer", "aria-label": say("by_layer"), oninput: () => draw(Number(slider.value)) });
        const title = element("span", { class: "label", id: "layer-name" }), shown = element("div"), grid = element("div");
        const layerName = (number) => (number ? say("layer", { number, all }) : say("embeddings"));
        function draw(layer) {
          slider.value = layer;
          title.textContent = layerName(layer);
          slider.setAttribute("aria-valuetext", layerName(layer));
          shown.replaceChildren(...gaps.flatMap((layers, i) => [
            ...(gaps.length > 1 ? [element("h2", {}, say("hidden", { number: i + 1 }))] : []),
            Pictures.bars(layers[layer].map((one) => ({ name: one.token, value: one.score, text: percent(one.score) }))),
          ]));
          const order = [...gaps[0].keys()].reverse();
          swap(grid, Pictures.table(
            gaps.map((_, i) => say("hidden", { number: i + 1 })), order.map(layerName),
            order.map((number) => gaps.map((layers) => ({ text: layers[number][0].token, share: layers[number][0].score, title: percent(layers[number][0].score) }))),
            order.indexOf(layer), (row) => draw(order[row])));
        }
        result.replaceChildren(element("div", { class: "row" }, slider, title), shown, element("h2", {}, say("by_layer")), grid);
        draw(all);
      },

      classify(found, body) {
        const rows = found.classes.map((one) => ({ name: one.name, value: one.score, text: found.one ? one.score.toFixed(3) : percent(one.score), pressed: one.name === found.target }));
        const most = found.one ? Math.max(1, Math.abs(found.classes[0].score)) : 1;
        const parts = [Pictures.bars(rows, most, found.one || SHARED ? null : (row) => run({ target: row.name }))];
        if (found.words) {
          const most = Math.max(1e-9, ...found.words.map((word) => Math.abs(word.score))); // Contributions have no limit.
          const rollout = body.method === "attention_rollout";
          parts.push(element("h2", {}, rollout ? say("attended") : say("explains", { target: found.target })));
          [body.text, body.text_b || ""].forEach((text, of) => {
            const own = found.words.filter((word) => word.of === of);
            if (own.length) parts.push(Pictures.shaded(text, own, most));
          });
          if (found.error !== null) parts.push(element("p", { class: "note", id: "sum" }, say("sum", { sum: (found.output - found.baseline_output).toFixed(3), from: found.baseline_output.toFixed(3), to: found.output.toFixed(3), error: found.error.toExponential(0) })));
          const best = [...found.words].sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, 12);
          const word = (one) => Array.from(one.of ? body.text_b : body.text).slice(one.start, one.end).join("");
          parts.push(Pictures.bars(best.map((one) => ({ name: word(one), value: one.score, text: one.score.toFixed(3) })), most));
        }
        show(...parts);
      },

      tag({ spans }, body) {
        const shaded = spans.length && spans.every((span) => !span.label);
        if (!spans.length) result.replaceChildren(element("p", { class: "note" }, say("no_entities")));
        else result.replaceChildren(Pictures.named(body.text, shaded ? spans.map((span) => ({ ...span, share: span.score })) : spans));
      },

      answer({ answers }, body) {
        const spans = answers.filter((one) => one.start !== null).map((one) => ({ start: one.start, end: one.end, label: "", score: percent(one.score), share: one.score }));
        result.replaceChildren(
          Pictures.bars(answers.map((one) => ({ name: one.start === null ? say("no_answer") : one.answer, value: one.score, text: percent(one.score) }))),
          Pictures.named(body.text_b, spans));
      },

      choose({ scores }, body) {
        result.replaceChildren(Pictures.bars(scores.map((score, i) => ({ name: body.texts[i], value: score, text: percent(score) }))));
      },

      write({ text }, body) {
        result.replaceChildren(element("div", { class: "marked", dir: "auto" }, body.text, element("mark", { style: { background: "rgba(var(--for), 0.25)" } }, text)));
      },

      similar({ texts, points, similarities }) {
        const numbers = texts.map((_, i) => String(i + 1));
        result.replaceChildren(
          element("p", { class: "note" }, say("similarity_of")), Pictures.map(points, texts, similarities, say("similar")),
          element("h2", {}, say("as_table")),
          Pictures.table(numbers, texts.map((text, i) => `${i + 1} ${text.length > 42 ? text.slice(0, 40) + "…" : text}`), similarities.map((row) => row.map((value) => ({ text: value.toFixed(2), share: value })))));
      },

      search({ hits }) {
        result.replaceChildren(element("ol", { class: "hits" }, ...hits.map((hit) => element("li", {}, hit.text, element("small", {}, hit.score.toFixed(3))))));
      },

      attention({ tokens, weights }) {
        const shown = element("div"), heads = element("div", { class: "row", id: "heads" });
        const slider = element("input", { type: "range", min: 1, max: model.layers, value: extra.layer + 1, id: "layer", "data-key": "layer", "aria-label": say("by_layer"), onchange: () => { extra.layer = Number(slider.value) - 1; run(); },
          oninput: () => { title.textContent = say("layer", { number: slider.value, all: model.layers }); } });
        const title = element("span", { class: "label" }, say("layer", { number: extra.layer + 1, all: model.layers }));
        function draw() {
          const mean = (i, j) => weights.reduce((sum, head) => sum + head[i][j], 0) / weights.length;
          const image = extra.heads === null ? tokens.map((_, i) => tokens.map((_, j) => mean(i, j))) : weights[extra.heads];
          shown.replaceChildren(Pictures.attention(tokens, image, say("attention")));
          swap(heads, element("span", { class: "label" }, say("heads")), ...[null, ...weights.keys()].map((head) => element("button", {
            type: "button", class: "small", "data-key": "head " + head, "aria-pressed": String(extra.heads === head), onclick: () => { extra.heads = head; draw(); },
            "aria-label": head === null ? say("mean") : say("head", { number: head + 1 }),
          }, head === null ? say("mean") : String(head + 1))));
        }
        show(element("div", { class: "row" }, slider, title), heads, shown);
        draw();
      },
    };
  }

  // Decode a file with the first encoding that fits.
  async function readFile(file) {
    if (file.size > most / 2) throw new Error(say("large_file", { most: most / 2e6 }));
    const bytes = await file.arrayBuffer();
    const others = language === "ja" ? ["shift_jis", "euc-kr"] : ["euc-kr", "shift_jis"];
    for (const encoding of ["utf-8", ...others]) {
      try {
        const text = new TextDecoder(encoding, { fatal: true }).decode(bytes);
        if (!text.includes("\0")) return text;
      } catch (error) {
        if (!(error instanceof TypeError)) throw error;
      }
    }
    throw new Error(say("bad_file"));
  }

  // === The page ===

  function speak() {
    document.documentElement.lang = language;
    for (const one of document.querySelectorAll("[data-say]")) one.textContent = say(one.dataset.say);
    showModels();
    $("panels").setAttribute("aria-label", say("panels"));
    if (chosen !== null) open(panel);
  }

  for (const name of ["models", "panels"]) $(name).addEventListener("keydown", (event) => arrows(event, $(name)));
  $("language").value = language;
  $("language").addEventListener("change", () => { language = $("language").value; speak(); });
  speak();
  look();
})();
