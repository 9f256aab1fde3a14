#include "serve/server.hpp"

namespace trireme::serve {
namespace {

constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Trireme</title>
<style>
:root { color-scheme: light dark; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
textarea { width: 100%; min-height: 7rem; box-sizing: border-box; font: inherit; padding: .5rem; }
fieldset { border: 1px solid var(--line); border-radius: .4rem; display: grid; gap: .4rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); margin: .8rem 0; }
label { display: flex; justify-content: space-between; gap: .5rem; align-items: center; }
input[type=number], input[type=text], input[type=password] { width: 6rem; font: inherit; }
button { font: inherit; padding: .3rem 1rem; }
#answer { white-space: pre-wrap; border: 1px solid var(--line); border-radius: .4rem;
  min-height: 6rem; padding: .6rem; margin-top: .8rem; }
#answer .prompt { opacity: .65; }
#answer .token { border-radius: .2rem; cursor: help; }
#state { opacity: .75; margin-left: 1rem; }
</style>
<h1>Trireme <small id="model"></small></h1>
<form id="form">
<textarea id="prompt" aria-label="Prompt" placeholder="A text to continue"></textarea>
<fieldset>
<legend>Sampling</legend>
<label>tokens <input type="number" id="max_tokens" value="64" min="1"></label>
<label>temperature <input type="number" id="temperature" value="1" min="0" step="0.1"></label>
<label>top-k <input type="number" id="top_k" value="0" min="0"></label>
<label>top-p <input type="number" id="top_p" value="1" min="0" max="1" step="0.05"></label>
<label>min-p <input type="number" id="min_p" value="0" min="0" max="1" step="0.05"></label>
<label>repetition <input type="number" id="repetition_penalty" value="1" min="0.1" step="0.1"></label>
<label>seed <input type="number" id="seed" placeholder="random" min="0"></label>
<label>stop <input type="text" id="stop"></label>
<label>access token <input type="password" id="token" autocomplete="off"></label>
<label>probabilities <input type="checkbox" id="logprobs" checked></label>
</fieldset>
<button id="go">Continue</button> <button type="button" id="end" disabled>Stop</button>
<span id="state" role="status"></span>
</form>
<div id="answer" aria-live="polite"></div>
<script>
"use strict";
const at = id => document.getElementById(id);
let abort = null;
const headers = () => {
  const all = { "Content-Type": "application/json" };
  if (at("token").value) all.Authorization = "Bearer " + at("token").value;
  return all;
};
function show(text, logprob, top) {
  const span = document.createElement("span");
  span.textContent = text;
  if (logprob !== undefined) {
    const p = Math.exp(logprob);
    span.className = "token";
    span.style.background = `hsl(${120 * p} 70% 50% / .35)`;
    span.title = `${(100 * p).toFixed(1)} %` + Object.entries(top || {}).map(
      ([token, value]) => `\n${JSON.stringify(token)}: ${(100 * Math.exp(value)).toFixed(1)} %`).join("");
  }
  at("answer").append(span);
  return span;
}
function show_choice(choice) {
  const scores = choice.logprobs;
  if (!scores || !scores.tokens.length) { if (choice.text) show(choice.text); return; }
  scores.tokens.forEach((token, i) =>
    show(token, scores.token_logprobs[i], scores.top_logprobs && scores.top_logprobs[i]));
}
async function run() {
  const body = { prompt: at("prompt").value, stream: true };
  for (const key of ["max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"])
    if (at(key).value !== "") body[key] = Number(at(key).value);
  if (at("stop").value) body.stop = at("stop").value;
  if (at("logprobs").checked) body.logprobs = 5;
  at("answer").replaceChildren();
  show(body.prompt).className = "prompt";
  abort = new AbortController();
  at("go").disabled = true; at("end").disabled = false; at("state").textContent = "…";
  let tokens = 0, reason = "", rest = "";
  const begin = performance.now();
  try {
    const response = await fetch("v1/completions",
      { method: "POST", headers: headers(), body: JSON.stringify(body), signal: abort.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        if (data === "[DONE]") continue;
        const choice = JSON.parse(data).choices[0];
        show_choice(choice);
        tokens += choice.logprobs ? choice.logprobs.tokens.length : choice.text ? 1 : 0;
        reason = choice.finish_reason || reason;
      }
    }
    const seconds = (performance.now() - begin) / 1000;
    at("state").textContent = `${tokens} tokens in ${seconds.toFixed(1)} s, ended by ${reason}`;
  } catch (error) {
    at("state").textContent = error.name === "AbortError" ? "stopped" : error.message;
  }
  at("go").disabled = false; at("end").disabled = true;
}
at("form").addEventListener("submit", event => { event.preventDefault(); run(); });
at("end").addEventListener("click", () => abort && abort.abort());
fetch("health").then(r => r.json()).then(h => { at("model").textContent = h.model; }).catch(() => {});
</script>
</html>
)html";

}  // namespace

std::string_view web_page() { return kPage; }

}  // namespace trireme::serve
