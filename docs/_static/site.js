document.addEventListener("DOMContentLoaded", () => {
  // Names for screen readers, which the theme leaves out or which differ from the visible text.
  for (const button of document.querySelectorAll(".search-button-field")) {
    button.ariaLabel = button.textContent.replace(/\s+/g, " ").trim();
  }
  for (const summary of document.querySelectorAll(".bd-sidebar-primary summary")) {
    summary.ariaLabel = summary.closest("li").querySelector("a").textContent;
  }

  // Searches show pages in English, in the language of the page where the search began, and in
  // the language of the query's letters.
  const own = document.documentElement.lang;
  const language = new URLSearchParams(location.search).get("language") || own;
  for (const form of document.querySelectorAll("form.bd-search")) {
    const field = Object.assign(document.createElement("input"), { type: "hidden" });
    form.append(Object.assign(field, { name: "language", value: language }));
  }
  if (typeof Search === "undefined") return; // Only the page of results has it.
  const find = Search._performSearch;
  Search._performSearch = (query, ...terms) => {
    const shown = new Set(["en", language]);
    if (/\p{Script=Hangul}/u.test(query)) shown.add("ko");
    if (/[\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Han}]/u.test(query)) shown.add("ja");
    const found = find(query, ...terms);
    return found.filter(([page]) => shown.has(/^(ko|ja)\//.exec(page)?.[1] ?? "en"));
  };
});
