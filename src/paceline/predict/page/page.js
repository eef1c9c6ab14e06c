"use strict";

const $ = (id) => document.getElementById(id);
const MOST_BARS = 40;
let metadata = null;

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if ($("token").value) headers.Authorization = `Bearer ${$("token").value}`;
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) $("token-label").hidden = false;
  const content = await response.json();
  if (!response.ok) throw new Error(content.error || `status ${response.status}`);
  return content;
}

function fail(error) {
  $("state").textContent = error.message;
  $("state").className = "error";
}

async function start() {
  const { models } = await ask("v2/models");
  $("model").replaceChildren(...models.map((name) => element("option", name)));
  await choose();
}

async function choose() {
  const name = encodeURIComponent($("model").value);
  const page = await ask(`page/${name}`);
  metadata = await ask(`v2/models/${name}`);
  const rows = [];
  for (const [kind, tensors] of [["input", metadata.inputs], ["output", metadata.outputs]]) {
    for (const tensor of tensors) {
      const row = element("tr");
      const shape = `[${tensor.shape.map((n) => (n < 0 ? "any" : n)).join(", ")}]`;
      for (const text of [kind, tensor.name, tensor.datatype, shape]) row.append(element("td", text));
      rows.push(row);
    }
  }
  $("signature").replaceChildren(...rows);
  $("about").textContent = Object.entries({ ...page.about, ...page.now }).map(([key, value]) => `${key} ${value}`).join(" · ");
  $("inputs").replaceChildren(...metadata.inputs.map((tensor) => input(tensor, page.example[tensor.name])));
  $("state").textContent = "";
}

function input(tensor, example) {
  const label = element("label", `${tensor.name}: numbers of one row, as JSON`);
  const area = element("textarea");
  area.name = tensor.name;
  area.spellcheck = false;
  area.value = example === undefined ? "" : JSON.stringify(example);
  label.append(area);
  return label;
}

function request() {
  return {
    inputs: metadata.inputs.map((tensor) => {
      const text = $("form").elements[tensor.name].value;
      let data;
      try {
        data = JSON.parse(text);
      } catch {
        throw new Error(`${tensor.name} is not JSON`);
      }
      const flat = (Array.isArray(data) ? data : [data]).flat(Infinity);
      const inner = tensor.shape.slice(1).reduce((a, b) => a * Math.abs(b), 1);
      const first = tensor.shape[0] < 0 ? Math.max(1, Math.round(flat.length / inner)) : tensor.shape[0];
      const shape = tensor.shape.length ? [first, ...tensor.shape.slice(1)] : [];
      return { name: tensor.name, datatype: tensor.datatype, shape, data: flat };
    }),
  };
}

async function predict(event) {
  event.preventDefault();
  $("state").className = "";
  $("state").textContent = "…";
  try {
    const began = performance.now();
    const answer = await ask(`v2/models/${encodeURIComponent($("model").value)}/infer`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request()),
    });
    $("state").textContent = `version ${answer.model_version}, ${(performance.now() - began).toFixed(1)} ms`;
    show(answer);
  } catch (error) {
    fail(error);
  }
}

function show(answer) {
  const parts = [];
  for (const output of answer.outputs) {
    parts.push(element("h3", `${output.name} [${output.shape.join(", ")}]`));
    const values = output.data.slice(0, output.shape.length > 1 ? output.shape[1] : output.data.length);
    if (values.length > MOST_BARS) continue;
    const low = Math.min(0, ...values), high = Math.max(...values), size = high - low || 1;
    values.forEach((value, index) => {
      const row = element("div", undefined, value === high ? "row best" : "row");
      const bar = element("div", undefined, "bar");
      bar.style.width = `${(100 * (value - low)) / size}%`;
      row.append(element("span", index), bar, element("span", Number(value).toPrecision(5)));
      parts.push(row);
    });
  }
  $("answer").replaceChildren(...parts);
  $("raw").textContent = JSON.stringify(answer, null, 1).slice(0, 20000);
}

$("model").addEventListener("change", () => choose().catch(fail));
$("token").addEventListener("change", () => start().catch(fail));
$("form").addEventListener("submit", predict);
start().catch(fail);
