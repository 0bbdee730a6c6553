// Send texts to TensorFlow Serving's gRPC API: node grpc_client.mjs localhost:8500 spam "A text."
// Prints the outputs of each text as a line of JSON. Needs the packages in package.json.

import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const FILE = fileURLToPath(new URL("predict.proto", import.meta.url));
const { PredictionService } = grpc.loadPackageDefinition(
  loadSync(FILE, { keepCase: true, longs: Number, defaults: true }),
).tensorflow.serving;
const FLOAT = 1;
const STRING = 7;

// Return an object of outputs for each text.
export async function predict(address, model, texts) {
  const client = new PredictionService(address, grpc.credentials.createInsecure());
  const text = {
    dtype: STRING,
    tensor_shape: { dim: [{ size: texts.length }] },
    string_val: texts.map((text) => Buffer.from(text)),
  };
  const request = {
    model_spec: { name: model, signature_name: "serving_default" },
    inputs: { text },
  };
  try {
    const { outputs } = await new Promise((resolve, reject) => {
      const deadline = Date.now() + 60_000;
      client.Predict(request, { deadline }, (error, found) =>
        error ? reject(error) : resolve(found),
      );
    });
    const columns = Object.entries(outputs).map(([name, tensor]) => [name, rowsOf(tensor)]);
    return texts.map((_, row) =>
      Object.fromEntries(columns.map(([name, rows]) => [name, rows[row]])),
    );
  } finally {
    client.close();
  }
}

// Return a tensor as nested arrays.
function rowsOf({ dtype, tensor_shape, float_val, int_val, string_val }) {
  const strings = string_val.map((text) => text.toString());
  const values = { [FLOAT]: float_val, [STRING]: strings }[dtype] ?? int_val;
  return nested(values, tensor_shape.dim.map(({ size }) => size));
}

function nested(values, [count, ...sizes]) {
  if (count === undefined) return values[0];
  const size = sizes.reduce((product, next) => product * next, 1);
  return Array.from({ length: count }, (_, i) =>
    nested(values.slice(i * size, (i + 1) * size), sizes),
  );
}

const [address, model, ...texts] = process.argv.slice(2);
if (!texts.length) {
  console.error("Usage: node grpc_client.mjs HOST:PORT MODEL TEXT [TEXT ...]");
  process.exit(1);
}
try {
  for (const row of await predict(address, model, texts)) console.log(JSON.stringify(row));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
