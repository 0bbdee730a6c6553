// Send texts to TensorFlow Serving's REST API: node rest_client.mjs localhost:8501 spam "A text."
// Prints the outputs of each text as a line of JSON. Needs only Node.js.

// Return an object of outputs for each text.
export async function predict(address, model, texts) {
  const url = `http://${address}/v1/models/${encodeURIComponent(model)}:predict`;
  const instances = texts.map((text) => ({ text }));
  const response = await fetch(url, { method: "POST", body: JSON.stringify({ instances }) });
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  return (await response.json()).predictions;
}

const [address, model, ...texts] = process.argv.slice(2);
if (!texts.length) {
  console.error("Usage: node rest_client.mjs HOST:PORT MODEL TEXT [TEXT ...]");
  process.exit(1);
}
try {
  for (const row of await predict(address, model, texts)) console.log(JSON.stringify(row));
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
