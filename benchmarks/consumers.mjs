// The part of consumers.py that runs in transformers.js: `node benchmarks/consumers.mjs FOLDER`.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { AutoModelForSequenceClassification, AutoTokenizer, env, pipeline } from "@huggingface/transformers";

const folder = resolve(process.argv[2]);
env.allowRemoteModels = false;
env.localModelPath = folder;
const expected = JSON.parse(readFileSync(`${folder}/expected.json`, "utf-8"));
const largest = (found, wanted) => Math.max(...found.map((value, i) => Math.abs(value - wanted[i])));
const show = (name, off) => console.log(`${"transformers.js".padEnd(22)} ${name.padEnd(10)} ${off.toExponential(1)}`);

const embed = await pipeline("feature-extraction", "embedder", { dtype: "fp32" });
const vectors = await embed(expected.texts, { pooling: "mean", normalize: true });
show("embedder", largest(vectors.tolist().flat(), expected.embedder.flat()));

const tokenizer = await AutoTokenizer.from_pretrained("classifier");
const model = await AutoModelForSequenceClassification.from_pretrained("classifier", { dtype: "fp32" });
const { logits } = await model(tokenizer(expected.texts, { padding: true }));
show("classifier", largest(logits.tolist().flat(), expected.classifier.flat()));
