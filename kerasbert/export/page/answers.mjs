// Computes a model's answers with its graph and tokenizer; spans count code points, as in Python.
// Independent of the page and of how files are loaded: worker.mjs passes in both libraries' objects.

// An invalid request, with the key of its message in strings.js.
export class Refusal extends Error {
  constructor(key, values = {}) {
    super(key);
    this.key = key;
    this.values = values;
  }
}

export const MOST_CHARACTERS = 20000;
const CJK = /[\u{3400}-\u{4DBF}\u{4E00}-\u{9FFF}\u{F900}-\u{FAFF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2CEAF}\u{2F800}-\u{2FA1F}]/u;
// As `kerasbert.data.word_spans`: white space ends a word, punctuation and CJK characters are words of their own, and marks belong to the character before.
const MARK = "\\p{M}\\p{Cf}\\x00-\\x08\\x0e-\\x1b\\x7f-\\x84\\x86-\\x9f";
const ALONE = "\\p{P}$+<=>^`|~" + CJK.source.slice(1, -1);
const WORD = new RegExp(`[${MARK}]*[${ALONE}][${MARK}]*|[^${ALONE}\\p{Z}\\t-\\r\\x1c-\\x1f\\x85]+`, "gu");

const range = (size) => [...Array(size).keys()];
const best = (values, count) => range(values.length).sort((a, b) => values[b] - values[a] || a - b).slice(0, count);

function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  const odds = Array.from(logits, (x) => Math.exp(x - most));
  const sum = odds.reduce((a, b) => a + b, 0);
  return odds.map((x) => x / sum);
}

// Windows {begin, size} over `length` tokens, `stride` apart, up to the one that reaches the end.
function windows(length, room, stride) {
  const step = Math.min(stride, room);
  return range(1 + Math.max(0, Math.ceil((length - room) / step))).map((i) => ({ begin: i * step, size: Math.min(room, length - i * step) }));
}

// For each token, the window in which it has most context; the first window wins ties.
function mostContext(length, cuts) {
  const chosen = Array(length).fill(null), most = Array(length).fill(-1);
  cuts.forEach(({ begin, size }, window) => {
    for (const place of range(size)) {
      const context = Math.min(place, size - 1 - place) + 0.01 * size;
      if (context > most[begin + place]) [most[begin + place], chosen[begin + place]] = [context, window];
    }
  });
  return chosen;
}

// `content` is the tokenizer.json behind `tokenizer`; `run(feeds)` computes the graph's outputs {data, dims}.
export function makeAnswerer(task, tokenizer, content, run) {
  const isWordPiece = content.model.type === "WordPiece";
  const special = content.added_tokens.map((token) => token.content).sort((a, b) => b.length - a.length);
  const isSpecial = new Set(special);
  const escaped = special.map((token) => token.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  const sections = special.length ? new RegExp(`(${escaped.join("|")})`, "u") : null;
  const processors = content.post_processor ? content.post_processor.processors || [content.post_processor] : [];
  const template = processors.find((one) => one.type === "TemplateProcessing");

  const normalizers = content.normalizer ? content.normalizer.normalizers || [content.normalizer] : [];
  const has = (type) => normalizers.some((one) => one.type === type);
  if (has("Precompiled")) {
    // Unlike the model's normalizer, the library turns U+200D, which joins emoji, into a space, and lowercases sigma by its position.
    const own = tokenizer.normalizer;
    const small = (text) => (has("Lowercase") ? text.replaceAll("Σ", "σ") : text);
    tokenizer.normalizer = (text) => small(text).split("\u200d").map((part) => own(part)).join("\u200d");
  }

  // The ids of a text's tokens and, for WordPiece, their characters [start, end). The library returns no offsets,
  // so its normalizer is applied to each character separately here.
  function pieces(text) {
    if (!isWordPiece) return { ids: tokenizer.encode(text, { add_special_tokens: false }).ids.map(Number), starts: null, ends: null };
    const found = { ids: [], starts: [], ends: [] };
    const add = (token, start, end) => {
      found.ids.push(tokenizer.token_to_id(token));
      found.starts.push(start);
      found.ends.push(end);
    };
    let at = 0;
    for (const section of sections ? text.split(sections) : [text]) {
      const points = Array.from(section);
      if (isSpecial.has(section)) add(section, at, at + points.length);
      else inWords(points, at, add);
      at += points.length;
    }
    return found;
  }

  function inWords(points, at, add) {
    let clean = "", last = -1, unit = 0;
    const source = [], ends = []; // For each unit of `clean`: its character, and the end of that character including accents.
    // Sigma is lowercased differently at the end of a word; no other letter depends on its neighbors.
    const small = points.join("").replaceAll("İ", "I").toLowerCase();
    points.forEach((point, i) => {
      const letter = point === "Σ" && content.normalizer?.lowercase ? small[unit] : point;
      unit += point.length;
      // The library deletes private-use characters, and does not recognize CJK characters of two UTF-16 units.
      let normal = tokenizer.normalizer && !/\p{Co}/u.test(point) ? tokenizer.normalizer(letter) : letter;
      if (point.length > 1 && CJK.test(point) && content.normalizer?.handle_chinese_chars !== false) normal = ` ${normal} `;
      for (let k = 0; k < normal.length; k++) {
        source.push(at + i);
        ends.push(at + i + 1);
      }
      if (normal) last = normal.trim() ? clean.length + normal.trimEnd().length - 1 : -1;
      else if (last >= 0 && /\p{Mn}/u.test(point)) ends[last] = at + i + 1;
      clean += normal;
    });
    let from = 0;
    for (const word of clean.trim() ? tokenizer.pre_tokenizer(clean) : []) {
      from = clean.indexOf(word, from);
      const prefix = content.model.continuing_subword_prefix.length;
      tokenizer.model([word]).forEach((token, i, tokens) => {
        const size = tokens.length === 1 ? word.length : token.length - (i ? prefix : 0); // An unknown word is one token.
        add(token, source[from], ends[from + size - 1]);
        from += size;
      });
    }
  }

  // A network input from the ids of one or two texts; `begins` holds the first position of each.
  function row(...texts) {
    const made = { ids: [], segments: [], begins: [] };
    const parts = template ? (texts.length > 1 ? template.pair : template.single) : [{ Sequence: { id: "A", type_id: 0 } }];
    for (const part of parts) {
      const { id, type_id } = part.SpecialToken || part.Sequence;
      const ids = part.SpecialToken ? template.special_tokens[id].ids : texts[id === "A" ? 0 : 1];
      if (part.Sequence) made.begins.push(made.ids.length);
      made.ids.push(...ids);
      made.segments.push(...ids.map(() => type_id));
    }
    return made;
  }

  const room = (count) => task.length - row(...Array(count).fill([])).ids.length;

  async function outputs({ ids, segments }, positions = []) {
    const values = { token_ids: ids, segment_ids: segments, padding_mask: ids.map(() => 1), mask_positions: positions };
    return run(Object.fromEntries(task.inputs.map((name) => [name, values[name]])));
  }

  function checked(text, key) {
    if (typeof text !== "string" || !text.trim()) throw new Refusal("empty", { field: key });
    if (text.length > MOST_CHARACTERS) throw new Refusal("long", { count: text.length, most: MOST_CHARACTERS });
    if (/\p{Cs}/u.test(text)) throw new Refusal("half");
    return text;
  }

  async function fill({ text }) {
    const { ids } = pieces(checked(text, "text"));
    const places = range(ids.length).filter((place) => ids[place] === task.mask_id);
    if (!places.length) throw new Refusal("no_mask", { mask: task.mask });
    const size = room(1), gaps = [];
    // In a text that is too long, each mask gets a window of its own, around it.
    const cuts = ids.length <= size ? [[0, places]] : places.map((place) => [Math.min(Math.max(place - (size >> 1), 0), ids.length - size), [place]]);
    for (const [first, inside] of cuts) {
      const made = row(ids.slice(first, first + size));
      const positions = inside.map((place) => place - first + made.begins[0]);
      const { data, dims } = (await outputs(made, positions))[task.output];
      positions.forEach((_, i) => {
        const odds = softmax(data.subarray(i * dims[2], i * dims[2] + task.vocabulary));
        gaps.push(best(odds, task.top_k).map((id) => ({ token: name(id), id, score: odds[id] })));
      });
    }
    return { gaps };
  }

  // A token as readable text, as byte-pair vocabularies encode spaces and accents.
  function name(id) {
    const token = tokenizer.id_to_token(id) ?? String(id);
    return isWordPiece || isSpecial.has(token) ? token : tokenizer.decode([id]).trim() || token;
  }

  // A text or pair, truncated as by `BertPreprocessor`.
  function cut([a, b]) {
    const most = room(b ? 2 : 1);
    if (!b) return [a.slice(0, most)];
    const half = (isFirst) => Math.floor(most / 2) + (isFirst ? most % 2 : 0);
    const least = { longest_first: half(a.length > b.length), round_robin: half(true), only_second: most, only_first: 0 }[task.truncate];
    a = a.slice(0, Math.max(least, most - b.length));
    return [a, b.slice(0, most - a.length)];
  }

  async function classify({ text, text_b }) {
    const texts = [checked(text, "text")];
    if (text_b || task.pair) texts.push(checked(text_b, "text_b"));
    const ids = texts.map((one) => pieces(one).ids);
    const { data } = (await outputs(row(...cut(ids))))[task.output];
    if (task.activation === "none") return { one: true, classes: [{ name: task.labels[0], score: data[0] }] };
    const scores = task.activation === "sigmoid" ? Array.from(data, (x) => 1 / (1 + Math.exp(-x))) : softmax(data);
    return { one: false, classes: task.labels.map((label, i) => ({ name: label, score: scores[i] })) };
  }

  async function tag({ text }) {
    const { ids, starts, ends } = pieces(checked(text, "text"));
    const cuts = windows(ids.length, room(1), task.stride);
    const chosen = mostContext(ids.length, cuts), odds = Array(ids.length);
    for (const [window, { begin, size }] of cuts.entries()) {
      const made = row(ids.slice(begin, begin + size));
      const { data, dims } = (await outputs(made)).logits;
      for (const place of range(size)) {
        const from = (place + made.begins[0]) * dims[2];
        if (chosen[begin + place] === window) odds[begin + place] = softmax(data.subarray(from, from + dims[2]));
      }
    }
    const units = unitsOf(text, starts, ends).map((unit) => ({ ...unit, odds: ofUnit(unit.pieces.map((piece) => odds[piece])) }));
    return { spans: entities(units) };
  }

  // The units that get one label: words, or with `label_pieces` "all" pieces, where those that share a character are one.
  function unitsOf(text, starts, ends) {
    const units = [];
    if (task.label_pieces === "all") {
      starts.forEach((start, piece) => {
        if (units.length && start < ends[piece - 1]) units.at(-1).pieces.push(piece);
        else units.push({ start, pieces: [piece] });
        units.at(-1).end = ends[piece];
      });
      return units;
    }
    let at = 0, unit = 0;
    for (const match of text.matchAll(WORD)) {
      const start = unit + Array.from(text.slice(at, match.index)).length;
      at = match.index + match[0].length;
      unit = start + Array.from(match[0]).length;
      units.push({ start, end: unit, pieces: [] });
    }
    starts.forEach((start, piece) => {
      const of = units.find((one) => one.end > start);
      if (of && of.start < ends[piece]) of.pieces.push(piece);
    });
    // Words that the tokenizer deletes are dropped; a word that shares a piece with the previous one is merged into it.
    const found = [];
    for (const one of units) {
      if (one.pieces.length) found.push(one);
      else if (found.length && one.start < ends[found.at(-1).pieces.at(-1)]) found.at(-1).end = one.end;
    }
    return found;
  }

  function ofUnit(rows) {
    if (task.label_pieces === "first") return rows[0];
    const sums = rows[0].map((_, label) => rows.reduce((sum, odds, i) => sum + odds[task.table[label][Number(i === 0)][Number(i === rows.length - 1)]], 0));
    const all = sums.reduce((a, b) => a + b, 0);
    return sums.map((x) => x / Math.max(all, 1e-30));
  }

  function entities(units) {
    const found = [];
    let open = null;
    for (const { start, end, odds } of units) {
      const label = best(odds, 1)[0], meaning = task.meanings[label];
      if (!meaning) {
        open = null;
        continue;
      }
      const [type, begins, isLast] = meaning;
      if (begins || type !== open) found.push({ label: type, start, scores: [] });
      found.at(-1).end = end;
      found.at(-1).scores.push(odds[label]);
      open = isLast ? null : type;
    }
    return found.map(({ scores, ...one }) => ({ ...one, score: scores.reduce((a, b) => a + b, 0) / scores.length }));
  }

  async function answer({ text, text_b }) {
    const question = pieces(checked(text, "question")).ids.slice(0, task.question);
    const { ids, starts, ends } = pieces(checked(text_b, "context"));
    if (!ids.length) throw new Refusal("empty", { field: "context" });
    const cuts = windows(ids.length, room(2) - question.length, task.stride);
    const chosen = mostContext(ids.length, cuts), logits = [];
    let shift = 0;
    for (const { begin, size } of cuts) {
      const made = row(question, ids.slice(begin, begin + size));
      shift = made.begins[1];
      const found = await outputs(made);
      logits.push(["start_logits", "end_logits"].map((key) => Array.from(found[key].data)));
    }
    // As `kerasbert.models.spans.best_spans`: all tokens of a row are ranked, but only those of the context are valid.
    const spansOf = (count) => cuts.flatMap(({ begin, size }, window) => {
      const [start, end] = logits[window];
      const ranked = (values) => best(values, count).filter((place) => place >= shift && place < shift + size);
      const lasts = ranked(end);
      return ranked(start).filter((first) => chosen[begin + first - shift] === window).flatMap((first) => lasts
        .filter((last) => last >= first && last - first < task.longest)
        .map((last) => ({ sum: start[first] + end[last], start: starts[begin + first - shift], end: ends[begin + last - shift] })));
    });
    let spans = spansOf(task.n_best);
    if (!spans.length) spans = spansOf(task.length);
    spans = spans.sort((a, b) => b.sum - a.sum).slice(0, task.n_best);
    const odds = softmax(spans.map((span) => span.sum)), points = Array.from(text_b);
    return { answers: spans.slice(0, task.top_k).map(({ start, end }, i) => ({ answer: points.slice(start, end).join(""), start, end, score: odds[i] })) };
  }

  const panels = { fill, classify, tag, answer };
  return { answer: (ask) => panels[task.panel](ask), pieces };
}
