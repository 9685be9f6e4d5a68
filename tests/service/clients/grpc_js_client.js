/* Asks a gateway by @grpc/grpc-js, as web servers written in JavaScript do; prints what it said, as JSON.
 *
 *     NODE_PATH=…/node_modules node grpc_js_client.js ADDRESS DESCRIPTORS ROWS
 *
 * DESCRIPTORS is a file with the FileDescriptorSet of the Open Inference Protocol.
 */
const fs = require("fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, descriptors, given] = process.argv.slice(2);
const rows = JSON.parse(given);
const options = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true };
const loaded = loader.loadFileDescriptorSetFromBuffer(fs.readFileSync(descriptors), options);
const Service = grpc.loadPackageDefinition(loaded).inference.GRPCInferenceService;
const client = new Service(address, grpc.credentials.createInsecure());

function request(model, id = "") {
  const raw = Buffer.from(new Float32Array(rows.flat()).buffer);
  const shape = [rows.length, rows[0].length];
  return { model_name: model, id, inputs: [{ name: "x", datatype: "FP32", shape }], raw_input_contents: [raw] };
}

function typed(model) {
  const { inputs, ...rest } = request(model);
  return { ...rest, inputs: [{ ...inputs[0], contents: { fp32_contents: rows.flat() } }], raw_input_contents: [] };
}

/* {name: values} of an answer. */
function tensors({ outputs, raw_output_contents: raw }) {
  const values = (bytes) => Array.from(new Float32Array(new Uint8Array(bytes).buffer));
  return Object.fromEntries(outputs.map(({ name }, i) => [name, values(raw[i])]));
}

function ask(method, message, from = client, timeout_ms = 60_000) {
  return new Promise((resolve, reject) => {
    const told = (error, answer) => (error ? reject(error) : resolve(answer));
    from[method](message, { deadline: Date.now() + timeout_ms }, told);
  });
}

async function refused(asking) {
  try {
    await asking;
  } catch (error) {
    return { code: grpc.status[error.code], said: error.details, problem: error.metadata.get("problem") };
  }
}

/* Answers of a stream that asks for each model, by the id of the request; what is wrong in place of tensors. */
function streamed(models) {
  return new Promise((resolve, reject) => {
    const stream = client.ModelStreamInfer();
    const answers = {};
    stream.on("data", ({ error_message, infer_response }) => {
      answers[infer_response.id] = error_message || tensors(infer_response);
    });
    stream.on("error", reject);
    stream.on("end", () => resolve(answers));
    models.forEach((model, i) => stream.write(request(model, `${i} ${model}`)));
    stream.end();
  });
}

async function main() {
  const gzip = { "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip };
  const compressed = new Service(address, grpc.credentials.createInsecure(), gzip);
  await new Promise((resolve, reject) => {
    client.waitForReady(Date.now() + 60_000, (error) => (error ? reject(error) : resolve()));
  });
  const told = {
    ready: (await ask("ServerReady", {})).ready,
    metadata: await ask("ModelMetadata", { name: "score" }),
    raw: tensors(await ask("ModelInfer", request("score"))),
    typed: tensors(await ask("ModelInfer", typed("score"))),
    compressed: tensors(await ask("ModelInfer", request("score"), compressed)),
    explained: tensors(await ask("ModelInfer", request("score_explain"))),
    streamed: await streamed(["score", "score_explain", "absent"]),
    absent: await refused(ask("ModelInfer", request("absent"))),
    late: await refused(ask("ModelInfer", request("score"), client, 0)),
  };
  compressed.close();
  client.close();
  console.log(JSON.stringify(told));
}

main();
