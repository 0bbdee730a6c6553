// The page: it shows the answers of worker.mjs. Texts are only inserted as text, never as HTML.
"use strict";

(() => {
  const { element, bars, named } = window.Pictures;
  const one = (selector) => document.querySelector(selector);
  const known = Object.keys(window.STRINGS);
  const state = { task: null, ready: false, progress: null, failed: null, last: null, number: 0, busy: false };
  let language = (navigator.languages || []).map((name) => name.slice(0, 2)).find((name) => known.includes(name)) || "en";

  const say = (key, values = {}) => window.STRINGS[language][key].replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
  const refusal = ({ refused, values }) => element("p", { class: "wrong", role: "alert" }, say(refused, { ...values, ...(values.field ? { field: say(values.field) } : {}) }));
  const percent = (score) => (100 * score).toFixed(1) + "%";

  function show() {
    document.documentElement.lang = language;
    for (const part of document.querySelectorAll("[data-say]")) part.textContent = say(part.dataset.say);
    one("#loading").hidden = state.ready || Boolean(state.failed);
    const { done, all } = state.progress || { done: 0, all: 0 };
    one("#loaded").value = all ? done / all : 0;
    one("#loaded-text").textContent = all && done === all ? say("starting") : say("loading", { done: (done / 1e6).toFixed(1), all: all ? (all / 1e6).toFixed(1) : "?" });
    const task = state.task;
    if (task) {
      one("#title").textContent = task.title;
      document.title = `kerasbert ${task.title}`;
      one("#about").textContent = say("about_" + task.panel, { mask: task.mask });
      const labels = task.panel === "answer" ? ["question", "context"] : ["text", task.panel !== "classify" || !task.pairs ? null : task.pair ? "text_b" : "second"];
      document.querySelectorAll("#ask .field").forEach((field, i) => {
        field.hidden = !labels[i];
        if (labels[i]) field.querySelector("span").textContent = say(labels[i]);
      });
      one("#insert").hidden = task.panel !== "fill";
      one("#insert").textContent = say("insert", { mask: task.mask });
    }
    one("button.go").disabled = !state.ready || state.busy;
    const result = one("#result");
    if (state.failed) result.replaceChildren(refusal(state.failed));
    else if (state.busy) result.replaceChildren(element("p", { class: "note" }, say("working")));
    else if (state.last) result.replaceChildren(...pictures(state.last), element("p", { class: "note", id: "took" }, say("took", { seconds: (state.last.milliseconds / 1000).toFixed(2) })));
  }

  function pictures({ found, ask }) {
    if (found.refused) return [refusal(found)];
    if (found.gaps) return found.gaps.flatMap((gap, i) => [
      element("h2", {}, say("hidden", { number: i + 1 })),
      bars(gap.map(({ token, score }) => ({ name: token, value: score, text: percent(score) }))),
    ]);
    if (found.classes) {
      const rows = [...found.classes].sort((a, b) => b.score - a.score);
      const most = found.one ? Math.max(1, ...rows.map((row) => Math.abs(row.score))) : 1;
      return [bars(rows.map(({ name, score }) => ({ name, value: score, text: found.one ? score.toFixed(3) : percent(score) })), most)];
    }
    if (found.spans) return found.spans.length ? [named(ask.text, found.spans.map((span) => ({ ...span, score: percent(span.score) })))] : [element("p", { class: "note" }, say("no_entities"))];
    const shown = found.answers.slice(0, 1).filter(({ start }) => start !== null).map((answer) => ({ ...answer, label: "", share: answer.score, score: percent(answer.score) }));
    return [bars(found.answers.map(({ answer, score }) => ({ name: answer || say("no_answer"), value: score, text: percent(score) }))), named(ask.text_b, shown)];
  }

  one("#language").value = language;
  one("#language").addEventListener("change", (event) => { language = event.target.value; show(); });
  if (window.location.protocol === "file:") {
    state.failed = { refused: "from_file", values: {} };
    show();
    return;
  }
  const worker = new Worker("worker.mjs", { type: "module" });
  worker.onerror = () => { state.failed = { refused: "old_browser", values: {} }; show(); };
  worker.onmessage = ({ data }) => {
    const { number, found, milliseconds, ...news } = data;
    if (number === undefined) Object.assign(state, news);
    else if (number === state.number) Object.assign(state, { busy: false, last: { found, milliseconds, ask: state.ask } });
    show();
  };
  one("#ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!state.ready || state.busy) return;
    state.ask = { text: one("textarea[name=text]").value, text_b: one("textarea[name=text_b]").value };
    Object.assign(state, { busy: true, number: state.number + 1 });
    worker.postMessage({ number: state.number, ask: state.ask });
    show();
  });
  one("#ask").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target.name === "text") {
      event.preventDefault();
      one("#ask").requestSubmit();
    }
  });
  one("#insert").addEventListener("click", () => {
    const field = one("textarea[name=text]");
    field.setRangeText(state.task.mask, field.selectionStart, field.selectionEnd, "end");
    field.focus();
  });
  show();
})();
