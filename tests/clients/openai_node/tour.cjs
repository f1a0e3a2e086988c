// openai for Node: models, chat, streams, tools, structured output, completions, responses, errors, an abort.
//
//     node tour.cjs URL MODEL FOLDER      (FOLDER has node_modules with `openai`)
//
// Prints one line per check; the first that fails ends it with status 1.
"use strict";
const { createRequire } = require("node:module");
const { join, resolve } = require("node:path");

const [url, model, folder] = process.argv.slice(2);
const load = createRequire(join(resolve(folder), "package.json"));
const OpenAI = load("openai").default;
const VERSION = load("openai/version").VERSION;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const talk = [{ role: "user", content: "Name the capital of France." }];
const ask = [{ role: "user", content: "What will the weather be in Paris for the next 3 days?" }];
const parameters = {
  type: "object",
  properties: {
    city: { type: "string", enum: ["Berlin", "Paris"] },
    days: { type: "integer", minimum: 1, maximum: 9 },
  },
  required: ["city", "days"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "weather", parameters } };
let numChecks = 0;

function check(what, holds, seen) {
  if (!holds) throw new Error(`${what}: ${JSON.stringify(seen)}`);
  numChecks += 1;
  console.log(`openai-node ${VERSION}: ${what}: ok`);
}

function isWeather(text) {
  const { city, days, ...more } = JSON.parse(text);
  const fits = ["Berlin", "Paris"].includes(city) && Number.isInteger(days) && days >= 1 && days <= 9;
  return fits && Object.keys(more).length === 0;
}

async function refused(kind, call) {
  try {
    await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name}`);
}

async function models() {
  const ids = [];
  for await (const entry of client.models.list()) ids.push(entry.id);
  check("models are listed", ids.includes(model), ids);
  const error = await refused(OpenAI.NotFoundError, () => client.models.retrieve("no-such-model"));
  check("an unknown model is not found", error.code === "model_not_found" && error.requestID, error);
}

async function chat() {
  const body = { model, messages: talk, max_completion_tokens: 12, temperature: 0 };
  const { data: whole, request_id } = await client.chat.completions.create(body).withResponse();
  const text = whole.choices[0].message.content;
  check("chat answers, with usage", text && whole.usage.completion_tokens > 0 && request_id, whole);
  let joined = "";
  let usage = null;
  const finishes = [];
  const stream = await client.chat.completions.create({
    ...body, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    joined += chunk.choices[0]?.delta?.content ?? "";
    if (chunk.choices[0]?.finish_reason) finishes.push(chunk.choices[0].finish_reason);
    usage = chunk.usage ?? usage;
  }
  check("the stream equals the answer", joined === text, [joined, text]);
  check("one finish reason, one usage", finishes.length === 1 && usage.completion_tokens > 0, [finishes, usage]);
  const final = await client.chat.completions.stream(body).finalChatCompletion();
  check("the stream's helper ends alike", final.choices[0].message.content === text, final);
  const scored = await client.chat.completions.create({ ...body, logprobs: true, top_logprobs: 2, n: 2 });
  check("two choices with logprobs", scored.choices.every((one) => one.logprobs.content[0].top_logprobs.length === 2));
}

async function tools() {
  const body = { model, messages: ask, max_tokens: 60, temperature: 0, tools: [tool] };
  const named = { type: "function", function: { name: "weather" } };
  const { message } = (await client.chat.completions.create({ ...body, tool_choice: named })).choices[0];
  const call = message.tool_calls[0];
  check("a named tool is called", isWeather(call.function.arguments), message);
  const streamed = await client.chat.completions
    .stream({ ...body, tool_choice: named })
    .finalChatCompletion();
  const same = streamed.choices[0].message.tool_calls[0].function.arguments === call.function.arguments;
  check("streamed arguments equal", same && streamed.choices[0].finish_reason === "tool_calls", streamed);
  const result = { role: "tool", tool_call_id: call.id, content: "sunny" };
  const messages = [...ask, message, result];
  const answer = await client.chat.completions.create({ ...body, messages, tool_choice: "none" });
  check("a tool's result is answered", answer.choices[0].message.content, answer);
  const asked = [];
  const runnable = {
    type: "function",
    function: { name: "weather", parameters, parse: JSON.parse, function: (one) => (asked.push(one), "sunny") },
  };
  await client.chat.completions
    .runTools({ ...body, tools: [runnable], tool_choice: named, parallel_tool_calls: false })
    .done();
  check("runTools runs the tool", asked.length === 1 && isWeather(JSON.stringify(asked[0])), asked);
}

async function structured() {
  const format = { type: "json_schema", json_schema: { name: "weather", schema: parameters, strict: true } };
  const body = { model, messages: ask, max_tokens: 60, temperature: 0, response_format: format };
  const answer = await client.chat.completions.parse(body);
  check("an object by its schema", isWeather(answer.choices[0].message.content), answer);
}

async function completions() {
  const body = { model, prompt: "The capital of France is", max_tokens: 8, temperature: 0 };
  const whole = (await client.completions.create(body)).choices[0].text;
  let joined = "";
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    joined += chunk.choices[0]?.text ?? "";
  }
  check("completions stream as they answer", whole && joined === whole, [joined, whole]);
}

async function responses() {
  const body = { model, input: talk[0].content, max_output_tokens: 12, temperature: 0 };
  const whole = await client.responses.create(body);
  check("responses answer", whole.output_text && whole.usage.output_tokens > 0, whole);
  const streamed = await client.responses.stream(body).finalResponse();
  check("responses stream as they answer", streamed.output_text === whole.output_text, streamed);
  const more = await client.responses.create({ ...body, input: "More.", previous_response_id: whole.id });
  check("a response goes on", more.usage.input_tokens > whole.usage.input_tokens, more.usage);
  const flat = { type: "function", name: "weather", parameters, strict: true };
  const called = await client.responses.create({
    ...body, input: ask[0].content, max_output_tokens: 60, tools: [flat], tool_choice: "required",
  });
  check("a response calls a tool", isWeather(called.output[0].arguments), called);
}

async function errors() {
  const image = [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:," } }] }];
  for (const [fields, param] of [
    [{ messages: talk, temperature: 9 }, "temperature"],
    [{ messages: image }, "messages[0].content[0]"],
  ]) {
    const error = await refused(OpenAI.BadRequestError, () => client.chat.completions.create({ model, ...fields }));
    check(`a bad ${param} is named`, error.param === param && error.status === 400, error);
  }
  const leaving = await client.chat.completions.create({ model, messages: talk, max_tokens: 200, stream: true });
  for await (const chunk of leaving) {
    if (chunk.choices.length) break;
  }
  check("a stream can be left", leaving.controller.signal.aborted);
}

async function main() {
  for (const step of [models, chat, tools, structured, completions, responses, errors]) await step();
  console.log(`openai-node ${VERSION}: ${numChecks} checks passed`);
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
