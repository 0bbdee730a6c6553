// Tokenizes texts as a page does: node cut_by_page.mjs FOLDER reads a JSON list of texts and writes {ids, starts, ends} of each.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const here = (name) => new URL(name, pathToFileURL(process.argv[2] + "/"));
const read = (name) => JSON.parse(readFileSync(here(name), "utf8"));
const { makeAnswerer } = await import(here("answers.mjs"));
const { Tokenizer } = await import(here("tokenizers/tokenizers.min.mjs"));
const content = read("tokenizer.json");
const { pieces } = makeAnswerer(read("task.json"), new Tokenizer(content, read("tokenizer_config.json")), content, null);
process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(pieces)));
