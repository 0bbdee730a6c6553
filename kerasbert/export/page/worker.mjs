// Runs the model in a worker, so that the page stays responsive. All files come from this folder.
import * as ort from "./onnxruntime-web/ort.wasm.bundle.min.mjs";
import { Tokenizer } from "./tokenizers/tokenizers.min.mjs";
import { makeAnswerer, Refusal } from "./answers.mjs";

const here = (name) => new URL(name, import.meta.url).href;
ort.env.wasm.numThreads = 1; // Threads need headers that a plain file server does not send.
ort.env.wasm.wasmPaths = { wasm: here("onnxruntime-web/ort-wasm-simd-threaded.wasm") };

async function got(name) {
  const response = await fetch(here(name)).catch(() => null);
  if (!response || !response.ok) throw new Refusal("missing", { name });
  return response;
}

async function withProgress(name) {
  const response = await got(name);
  const all = Number(response.headers.get("Content-Length")) || 0;
  const parts = [];
  let done = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done: ended, value } = await reader.read();
    if (ended) break;
    parts.push(value);
    done += value.length;
    postMessage({ progress: { done, all } });
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function load() {
  const json = (name) => got(name).then((response) => response.json());
  const asked = ["task.json", "tokenizer.json", "tokenizer_config.json"].map(json);
  asked.forEach((one) => one.catch(() => {})); // Errors are reported where the files are awaited.
  const task = await asked[0];
  postMessage({ task });
  const [bytes, content, config] = await Promise.all([withProgress("model.onnx"), ...asked.slice(1)]);
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  const run = (feeds) => session.run(Object.fromEntries(Object.entries(feeds).map(([name, values]) => [name, new ort.Tensor("int32", Int32Array.from(values), [1, values.length])])));
  return makeAnswerer(task, new Tokenizer(content, config), content, run);
}

const said = (error) => (error instanceof Refusal ? { refused: error.key, values: error.values } : { refused: "broken", values: { error: String(error && error.message ? error.message : error) } });
const loaded = load();
loaded.then(() => postMessage({ ready: true }), (error) => postMessage({ failed: said(error) }));
let last = loaded.catch(() => {}); // Requests are answered one at a time.
onmessage = ({ data: { number, ask } }) => {
  last = last.then(async () => {
    const began = performance.now();
    const found = await loaded.then((model) => model.answer(ask)).catch(said);
    postMessage({ number, found, milliseconds: performance.now() - began });
  });
};
