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

// What must not be next to an added token with `single_word`, the white space that others include, and characters that a normal form may join to the one before.
const IN_WORD = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]", SPACES = "\\p{White_Space}*";
const JOINS = /[\p{M}\u1160-\u11FF\uD7B0-\uD7FF\u3131-\u318E\uFF9E-\uFFDC\u0E33\u0EB3]/u;

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
  const isAdded = new Set(content.added_tokens.map((token) => token.content));
  // Only text that is an added token becomes it, but the library also adds them to the vocabulary of words.
  if (isWordPiece) for (const name of isAdded) if (!Object.hasOwn(content.model.vocab, name)) tokenizer.model.tokens_to_ids.delete(name);
  const processors = content.post_processor ? content.post_processor.processors || [content.post_processor] : [];
  const template = processors.find((one) => one.type === "TemplateProcessing");

  const normalizers = content.normalizer ? content.normalizer.normalizers || [content.normalizer] : [];
  // BERT's own rules, and the normal form of texts before them.
  const rules = normalizers.find((one) => one.type === "BertNormalizer");
  const isWord = (point) => rules?.handle_chinese_chars && CJK.test(point);
  const form = isWordPiece ? normalizers.map((one) => one.type).find((type) => type === "NFC" || type === "NFKC") : undefined;
  const has = (type) => normalizers.some((one) => one.type === type);
  if (has("Precompiled")) {
    // Unlike the model's normalizer, the library turns U+200D, which joins emoji, into a space, and lowercases sigma by its position.
    const own = tokenizer.normalizer;
    const small = (text) => (has("Lowercase") ? text.replaceAll("Σ", "σ") : text);
    tokenizer.normalizer = (text) => small(text).split("\u200d").map((part) => own(part)).join("\u200d");
  }

  // The library ignores `single_word` and has no offsets, so added tokens are found here, by two functions that split a text into
  // [string, added token or null]: before normalization, and after it.
  const [early, late] = [false, true].map((after) => splitter(content.added_tokens.filter((token) => token.normalized === after), after));

  function splitter(tokens, after) {
    const named = tokens.map((token) => [after ? normal(token.content).text : token.content, token]).filter(([name]) => name);
    if (!named.length) return (text) => [[text, null]];
    // As in the model: white space has priority, then longer tokens.
    named.sort(([a], [b]) => Number(!a.trim()) - Number(!b.trim()) || a.length - b.length).reverse();
    const patterns = named.map(([name, { lstrip, rstrip, single_word }]) => {
      const escaped = name.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
      const near = after && rules?.handle_chinese_chars ? `(?!${CJK.source})${IN_WORD}` : IN_WORD;
      const word = single_word ? `(?<!${near})${escaped}(?!${near})` : escaped;
      return `(${lstrip ? SPACES : ""}${word}${rstrip ? SPACES : ""})`;
    });
    const pattern = new RegExp(patterns.join("|"), "gu");
    return (text) => {
      const parts = [];
      let from = 0;
      for (const match of text.matchAll(pattern)) {
        if (match.index > from) parts.push([text.slice(from, match.index), null]);
        parts.push([match[0], named[match.slice(1).findIndex((group) => group !== undefined)][1]]);
        from = match.index + match[0].length;
      }
      if (from < text.length) parts.push([text.slice(from), null]);
      return parts;
    };
  }

  // The ids of a text's tokens and, for WordPiece, their characters [start, end). The library returns no offsets,
  // so its normalizer is applied to each character separately here.
  function pieces(text) {
    const found = { ids: [], starts: isWordPiece ? [] : null, ends: isWordPiece ? [] : null };
    const add = (id, start, end) => {
      found.ids.push(Number(id));
      if (isWordPiece) found.starts.push(start), found.ends.push(end);
    };
    const points = Array.from(text);
    // An added token does not span the white space that `lstrip` and `rstrip` include.
    const addToken = ({ id }, start, end) => {
      const isSpace = (point) => /\p{White_Space}/u.test(point);
      if (!points.slice(start, end).every(isSpace)) {
        while (isSpace(points[start])) start++;
        while (isSpace(points[end - 1])) end--;
      }
      add(id, start, end);
    };
    let at = 0;
    for (const [section, token] of early(text)) {
      const end = at + Array.from(section).length;
      if (!token) inSection(section, at, add, addToken);
      else {
        // Accents that are dropped belong to the character before them.
        let last = end;
        while (isWordPiece && last < points.length && /\p{Mn}/u.test(points[last]) && !tokenizer.normalizer?.(points[last])) last++;
        addToken(token, at, last);
      }
      at = end;
    }
    return found;
  }

  function inSection(section, at, add, addToken) {
    const { text, units } = normal(section, at);
    let from = 0;
    for (const [part, token] of late(text)) {
      const inner = units.slice(from, from + part.length);
      if (token) addToken(token, inner[0][0], inner.at(-1)[1]);
      else inWords(part, at + from, inner, add);
      from += part.length;
    }
  }

  function inWords(text, place, units, add) {
    const split = (string) => (tokenizer.pre_tokenizer ? tokenizer.pre_tokenizer(string, { section_index: place }) : [string]);
    if (!isWordPiece) {
      for (const token of tokenizer.model(split(text))) add(tokenizer.token_to_id(token) ?? tokenizer.model.unk_token_id);
      return;
    }
    const words = text.trim() ? split(Array.from(text, (point) => (isWord(point) ? ` ${point} ` : point)).join("")) : [];
    const prefix = content.model.continuing_subword_prefix.length;
    let from = 0;
    for (const word of words) {
      from = text.indexOf(word, from);
      tokenizer.model([word]).forEach((token, i, tokens) => {
        const size = tokens.length === 1 ? word.length : token.length - (i ? prefix : 0); // An unknown word is one token.
        add(tokenizer.token_to_id(token), units[from][0], units[from + size - 1][1]);
        from += size;
      });
    }
  }

  // A normalized text, and for each of its UTF-16 units the start and the end of its character in the original, including accents.
  function normal(text, at = 0) {
    if (!isWordPiece) {
      const made = tokenizer.normalizer ? tokenizer.normalizer(text) : text;
      return { text: made, units: Array(made.length).fill([at, at]) };
    }
    const points = composed(Array.from(text), at), units = [];
    let clean = "", last = -1, unit = 0;
    // Sigma is lowercased differently at the end of a word; no other letter depends on its neighbors.
    const small = points.map(([point]) => point).join("").replaceAll("İ", "I").toLowerCase();
    for (const [point, start, end] of points) {
      const letter = point === "Σ" && rules?.lowercase ? small[unit] : point;
      unit += point.length;
      // The library deletes private-use characters.
      let made = tokenizer.normalizer && !/\p{Co}/u.test(point) ? tokenizer.normalizer(letter) : letter;
      if (isWord(point)) made = made.trim(); // The spaces around it must not become part of added tokens.
      for (let k = 0; k < made.length; k++) units.push([start, end]);
      if (made) last = clean.length + made.length - 1;
      else if (last >= 0 && /\p{Mn}/u.test(point)) units[last] = [units[last][0], end];
      clean += made;
    }
    return { text: clean, units };
  }

  // The characters of a text in the model's normal form, each with its start and end in the original.
  function composed(points, at) {
    const found = [];
    for (let i = 0, end; i < points.length; i = end) {
      end = i + 1;
      while (form && end < points.length && JOINS.test(points[end])) end++;
      const cluster = points.slice(i, end), apart = form ? cluster.map((point) => point.normalize(form)) : cluster;
      const whole = form ? cluster.join("").normalize(form) : cluster[0];
      if (whole === apart.join("")) apart.forEach((part, k) => found.push(...Array.from(part, (point) => [point, at + i + k, at + i + k + 1])));
      else found.push(...Array.from(whole, (point) => [point, at + i, at + end]));
    }
    return found;
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
    return isWordPiece || isAdded.has(token) ? token : tokenizer.decode([id]).trim() || token;
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
    const chosen = mostContext(ids.length, cuts), rows = Array(ids.length);
    for (const [window, { begin, size }] of cuts.entries()) {
      const made = row(ids.slice(begin, begin + size));
      const { data, dims } = (await outputs(made)).logits;
      for (const place of range(size)) {
        const from = (place + made.begins[0]) * dims[2];
        if (chosen[begin + place] === window) rows[begin + place] = Array.from(data.subarray(from, from + dims[2]));
      }
    }
    const units = unitsOf(text, starts, ends).map((unit) => ({ ...unit, rows: unit.pieces.map((piece) => rows[piece]) }));
    if (task.chain) chain(units);
    else {
      for (const unit of units) {
        unit.odds = ofUnit(unit.rows.map(softmax));
        unit.label = best(unit.odds, 1)[0];
      }
    }
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

  // As `kerasbert.text.chains`: sets the label of each unit on the best path of a CRF, and its marginal probabilities.
  function chain(units) {
    const { transitions, steps, ends } = task.chain, labels = range(transitions.length);
    const isLong = units.map(({ rows }) => Number(task.label_pieces === "all" && rows.length > 1));
    const emissions = units.map(({ rows }, at) => labels.map((label) => {
      const last = rows.length - 1;
      const path = task.label_pieces === "first" ? [label] : rows.map((_, i) => task.table[label][Number(i === 0)][Number(i === last)]);
      const sum = path.reduce((total, one, i) => total + rows[i][one] + (i ? transitions[path[i - 1]][one] : 0), 0);
      return sum + (at ? 0 : ends[0][isLong[at]][label]) + (at < units.length - 1 ? 0 : ends[1][isLong[at]][label]);
    }));
    const zeros = labels.map(() => 0), top = units.map(() => zeros), all = units.map(() => zeros);
    const between = (at) => steps[2 * isLong[at - 1] + isLong[at]];
    for (let at = units.length - 1; at > 0; at--) {
      const paths = (ahead) => between(at).map((row) => row.map((score, next) => score + emissions[at][next] + ahead[at][next]));
      top[at - 1] = paths(top).map((row) => Math.max(...row));
      all[at - 1] = paths(all).map((row) => {
        const most = Math.max(...row);
        return most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
      });
    }
    units.forEach((unit, at) => {
      const before = units[at - 1], scores = (rows) => labels.map((label) => emissions[at][label] + rows[at][label]);
      const moved = (row) => scores(top).map((score, label) => score + (row ? row[label] : 0));
      unit.label = best(moved(before && between(at)[before.label]), 1)[0];
      const odds = (row) => softmax(scores(all).map((score, label) => score + (row ? row[label] : 0)));
      unit.odds = before ? zeros.slice() : odds();
      if (before) between(at).forEach((row, label) => odds(row).forEach((x, next) => (unit.odds[next] += before.odds[label] * x)));
    });
  }

  function entities(units) {
    const found = [];
    let open = null;
    for (const { start, end, odds, label } of units) {
      const meaning = task.meanings[label];
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
    // As `kerasbert.heads.base.spans.best_spans`: all tokens of a row are ranked, but only those of the context are valid.
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
    const { length } = spans;
    if (task.has_null) {
      // "No answer" has an empty span; without a threshold, it only has a share of the probabilities.
      const sum = Math.min(...logits.map(([start, end]) => start[0] + end[0])), threshold = task.null_threshold;
      const place = threshold == null ? length : spans.filter((span) => sum - span.sum <= threshold).length;
      spans.splice(place, 0, { sum: sum - (threshold ?? 0), start: null, end: null });
    }
    const odds = softmax(spans.map((span) => span.sum)), points = Array.from(text_b);
    if (task.has_null && task.null_threshold == null) spans.length = length;
    return { answers: spans.slice(0, task.top_k).map(({ start, end }, i) => ({ answer: start === null ? "" : points.slice(start, end).join(""), start, end, score: odds[i] })) };
  }

  const panels = { fill, classify, tag, answer };
  return { answer: (ask) => panels[task.panel](ask), pieces };
}
