#include "megatron/serve/page.h"

namespace megatron::serve {
namespace {

constexpr std::string_view kPage = R"page(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>megatron serve</title>
<style>
:root { color-scheme: light dark; --line: #8886; --soft: #8882; --accent: #0b62c4; }
@media (prefers-color-scheme: dark) { :root { --accent: #7db7ff; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; display: grid; grid-template-columns: 1fr 20rem;
  grid-template-rows: auto minmax(0, 1fr) auto; height: 100vh; }
header { grid-column: 1 / 3; padding: .6rem 1rem; border-bottom: 1px solid var(--line); display: flex; gap: 1rem;
  align-items: baseline; flex-wrap: wrap; }
h1 { font-size: 1.1rem; margin: 0; }
#status { font-size: .9rem; }
main { padding: 1rem; overflow-y: auto; max-width: 60rem; }
aside { padding: 1rem; border-left: 1px solid var(--line); overflow-y: auto; }
form#ask { padding: 1rem; display: flex; gap: .5rem; border-top: 1px solid var(--line); }
aside + form#ask { grid-column: 1 / 3; }
textarea { flex: 1; font: inherit; padding: .5rem; resize: vertical; min-height: 3rem; }
button { font: inherit; padding: .4rem 1rem; cursor: pointer; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 1px; }
.turn { margin: 0 0 1rem; padding: .5rem .8rem; border-radius: .5rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.user { background: var(--soft); }
.turn h2 { font-size: .8rem; margin: 0; opacity: .75; }
label { display: block; margin: .6rem 0 .1rem; font-size: .9rem; }
label.check { display: flex; gap: .5rem; align-items: center; }
input[type=number], input[type=text], input[type=password], select { width: 100%; font: inherit; padding: .3rem; }
.token { border: 0; border-bottom: 3px solid hsl(calc(var(--p) * 120) 70% 45%); background: none; padding: 0;
  font: inherit; color: inherit; white-space: pre-wrap; cursor: pointer; text-align: left; }
#detail table { border-collapse: collapse; width: 100%; font-size: .9rem; }
#detail td, #detail th { text-align: left; padding: .1rem .4rem; border-bottom: 1px solid var(--line); }
#run img { display: block; width: 100%; margin: .5rem 0; background: #fff; }
code { background: var(--soft); white-space: pre-wrap; }
.error { border: 2px solid #c00; }
@media (max-width: 50rem) { body { display: block; height: auto; } aside { border: 0; } }
</style>
</head>
<body>
<header><h1 id="model">megatron serve</h1><span id="status" role="status" aria-live="polite">Ready.</span></header>
<main>
<details id="run" hidden><summary>The run that this model comes from</summary></details>
<section id="talk" aria-label="Conversation" aria-live="polite" aria-busy="false"></section>
</main>
<aside aria-label="Settings">
  <section id="choice" hidden><label for="models">Model</label><select id="models"></select></section>
  <label for="mode">Mode</label>
  <select id="mode"><option value="chat">Chat</option><option value="text">Continue a text</option></select>
  <label for="system">System message</label><input id="system" type="text">
  <label for="temperature">Temperature</label>
  <input id="temperature" type="number" min="0" max="2" step="0.1" value="0.8">
  <label for="top_p">Top-p</label><input id="top_p" type="number" min="0.05" max="1" step="0.05" value="0.95">
  <label for="max_tokens">Maximum tokens</label>
  <input id="max_tokens" type="number" min="1" step="1" value="256">
  <label for="seed">Seed (empty: a new one each time)</label><input id="seed" type="number" step="1">
  <label class="check"><input id="probabilities" type="checkbox"> Show tokens with their probabilities</label>
  <label for="token">Bearer token, where the server wants one</label>
  <input id="token" type="password" autocomplete="off">
  <p><button type="button" id="clear">Clear the conversation</button></p>
  <section id="detail" aria-live="polite" aria-label="The selected token"></section>
</aside>
<form id="ask">
  <label for="text" style="position:absolute;left:-99rem">Message</label>
  <textarea id="text" placeholder="Message (Enter sends, Shift+Enter begins a line)" required></textarea>
  <button id="send">Send</button><button type="button" id="stop" disabled>Stop</button>
</form>
<script>
"use strict";
const $ = (id) => document.getElementById(id);
const messages = [];
let model = "", running = null;

const headers = () => {
  const all = {"Content-Type": "application/json"};
  if ($("token").value) all.Authorization = "Bearer " + $("token").value;
  return all;
};

const find_model = async () => {
  const response = await fetch("v1/models", {headers: headers()});
  if (!response.ok) return say("The server wants a bearer token.");
  const {data} = await response.json();
  $("models").replaceChildren(...data.map(({id}) => new Option(id)));
  $("choice").hidden = data.length < 2;
  choose_model();
  find_run();
};

// The base, or one of its adapters.
const choose_model = () => {
  model = $("models").value;
  $("model").textContent = document.title = model;
};

const find_run = async () => {
  const response = await fetch("run", {headers: headers()});
  if (response.ok) $("run").hidden = (await response.json()).pictures.length === 0;
};

// Drawn anew each time that it is opened: the run may not be at its end.
const show_run = async () => {
  if (!$("run").open) return;
  const {pictures} = await (await fetch("run", {headers: headers()})).json();
  const images = [];
  for (const name of pictures) {
    const response = await fetch(`run/${name}.svg`, {headers: headers()});
    if (!response.ok) continue;
    const image = document.createElement("img");
    image.alt = name;
    image.src = URL.createObjectURL(await response.blob());
    image.addEventListener("load", () => URL.revokeObjectURL(image.src));
    images.push(image);
  }
  $("run").replaceChildren($("run").firstElementChild, ...images);
};

const say = (text) => { $("status").textContent = text; };

const turn = (who, text) => {
  const box = document.createElement("article");
  box.className = "turn " + (who === "You" ? "user" : "");
  const name = document.createElement("h2");
  name.textContent = who;
  const body = document.createElement("div");
  body.textContent = text;
  box.append(name, body);
  $("talk").append(box);
  box.scrollIntoView({block: "end"});
  return body;
};

const percent = (logprob) => (100 * Math.exp(logprob)).toPrecision(3) + " %";

const show_token = (token) => {
  const table = document.createElement("table");
  const row = (cells, tag) => {
    const tr = document.createElement("tr");
    for (const text of cells) {
      const cell = document.createElement(tag);
      if (tag === "th") cell.scope = "col";
      const inner = document.createElement(tag === "td" ? "code" : "span");
      inner.textContent = text;
      cell.append(inner);
      tr.append(cell);
    }
    table.append(tr);
  };
  row(["Token", "Probability"], "th");
  row([JSON.stringify(token.token) + " (chosen)", percent(token.logprob)], "td");
  for (const other of token.top) row([JSON.stringify(other.token), percent(other.logprob)], "td");
  $("detail").replaceChildren(table);
};

const add_token = (body, token) => {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "token";
  button.style.setProperty("--p", Math.exp(token.logprob).toFixed(3));
  button.textContent = token.token;
  button.title = percent(token.logprob);
  button.setAttribute("aria-label", JSON.stringify(token.token) + ", " + percent(token.logprob));
  button.addEventListener("click", () => show_token(token));
  body.append(button);
};

// The tokens of a chat's or a completion's chunk in one form.
const tokens_of = (logprobs) => {
  if (!logprobs) return [];
  if (logprobs.content)
    return logprobs.content.map((t) => ({token: t.token, logprob: t.logprob, top: t.top_logprobs}));
  return logprobs.tokens.map((token, i) => ({token, logprob: logprobs.token_logprobs[i],
    top: Object.entries(logprobs.top_logprobs[i] || {}).map(([name, logprob]) => ({token: name, logprob}))}));
};

const request_of = (text) => {
  const chat = $("mode").value === "chat", wanted = $("probabilities").checked;
  const body = {model, stream: true, stream_options: {include_usage: true},
    temperature: Number($("temperature").value), top_p: Number($("top_p").value),
    max_tokens: Number($("max_tokens").value)};
  if ($("seed").value !== "") body.seed = Number($("seed").value);
  if (!chat) return ["v1/completions", {...body, prompt: text, ...(wanted ? {logprobs: 5} : {})}];
  const system = $("system").value ? [{role: "system", content: $("system").value}] : [];
  return ["v1/chat/completions", {...body, messages: [...system, ...messages, {role: "user", content: text}],
    ...(wanted ? {logprobs: true, top_logprobs: 5} : {})}];
};

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

const ask = async (text) => {
  const chat = $("mode").value === "chat", wanted = $("probabilities").checked;
  const [path, request] = request_of(text);
  turn("You", text);
  const body = turn(model || "Model", "");
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  $("talk").setAttribute("aria-busy", "true");
  say("Writing…");
  const begin = performance.now();
  let answer = "", usage = null;
  try {
    const response = await fetch(path,
      {method: "POST", headers: headers(), body: JSON.stringify(request), signal: running.signal});
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      if (event.usage) usage = event.usage;
      const choice = event.choices[0];
      if (!choice) continue;
      const piece = chat ? choice.delta.content || "" : choice.text;
      answer += piece;
      if (wanted) for (const token of tokens_of(choice.logprobs)) add_token(body, token);
      else body.append(piece);
    }
    const seconds = (performance.now() - begin) / 1000;
    const count = usage ? usage.completion_tokens : 0;
    say(`${count} tokens, ${(count / seconds).toFixed(1)} per second.`);
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else {
      body.parentElement.classList.add("error");
      body.append(error.message);
      say("The request failed.");
      answer = "";
    }
  }
  if (chat && answer) messages.push({role: "user", content: text}, {role: "assistant", content: answer});
  running = null;
  $("send").disabled = false;
  $("stop").disabled = true;
  $("talk").setAttribute("aria-busy", "false");
};

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value;
  if (!text || running) return;
  $("text").value = "";
  ask(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => { if (running) running.abort(); });
$("clear").addEventListener("click", () => {
  messages.length = 0;
  $("talk").replaceChildren();
  $("detail").replaceChildren();
  say("Ready.");
});
$("token").addEventListener("change", find_model);
$("models").addEventListener("change", choose_model);
$("run").addEventListener("toggle", show_run);
find_model();
</script>
</body>
</html>
)page";

}  // namespace

std::string_view page() { return kPage; }

std::vector<std::pair<std::string, std::string>> page_headers() {
  return {{"Content-Security-Policy",
           "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
           "img-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
          {"Referrer-Policy", "no-referrer"}};
}

}  // namespace megatron::serve
