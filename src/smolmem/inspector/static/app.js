// Makes the pages fast and live. Every page works without this script.
"use strict";
const $ = (selector, parent = document) => parent.querySelector(selector);
const $$ = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const page = document.body.dataset.page;

// --- theme -----------------------------------------------------------------------------------------------------------
const root = document.documentElement;
const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
try { const stored = localStorage.getItem("theme"); if (stored) root.dataset.theme = stored; } catch { /* storage may be disabled */ }
function switchTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* storage may be disabled */ }
}
$("#switch-theme").addEventListener("click", switchTheme);
$("#show-help").addEventListener("click", () => $("#help").showModal());

// --- fragments: parts of pages ---------------------------------------------------------------------------------------
async function fetchText(url) {
  const response = await fetch(url, { headers: { "X-Requested-With": "fetch" } });
  const text = await response.text();
  if (!response.ok) {
    const message = new DOMParser().parseFromString(text, "text/html").querySelector("main p, p");
    throw new Error(message ? message.textContent : `the server answered ${response.status}`);
  }
  return text;
}
function setHtml(element, html) { element.innerHTML = html; }  // from our own templates, which escape; inline scripts cannot run
function showError(element, error) {
  const box = document.createElement("p");
  box.className = "box bad";
  box.textContent = error.message;
  element.replaceChildren(box);
}

// --- filters: results are updated while the user types ---------------------------------------------------------------
function replaceRows(target, html) {
  const focused = $("tr.focused", target)?.dataset.href;  // the user may have moved while the rows were fetched
  setHtml(target, html);
  $$("tr[data-href]", target).find((row) => row.dataset.href === focused)?.classList.add("focused");
}
for (const form of $$("form[data-live]")) {
  const target = document.getElementById(form.dataset.live);
  let timer, latest = 0;
  const update = async () => {
    const request = ++latest;  // an answer that is overtaken by a later request is dropped
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    query.set("fragment", "1");
    try {
      const html = await fetchText(`${form.getAttribute("action")}?${query}`);
      if (request === latest) replaceRows(target, html);
    } catch (error) { if (request === latest) showError(target, error); }
  };
  form.addEventListener("input", (event) => { if (event.target.type === "search") { clearTimeout(timer); timer = setTimeout(update, 140); } });
  form.addEventListener("change", (event) => { if (event.target.type !== "search") update(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); update(); });
  form.update = update;
}

// --- a run: one step at a time ---------------------------------------------------------------------------------------
const stepLinks = () => $$("#step-list a[data-step]");
const selectedStep = () => $("#step-list a[aria-current]")?.dataset.step;
const selectedIndex = () => stepLinks().findIndex((link) => link.getAttribute("aria-current"));
const chartedLinks = () => stepLinks().filter((link) => ["action", "planning"].includes(link.dataset.kind));
let latestStep = 0;
async function selectStep(index, { keepUrl = false } = {}) {
  const links = stepLinks();
  if (!links.length) return;
  const link = links[Math.max(0, Math.min(index, links.length - 1))];
  links.forEach((other) => other.removeAttribute("aria-current"));
  link.setAttribute("aria-current", "true");
  link.scrollIntoView({ block: "nearest" });
  showPosition();
  const request = ++latestStep, detail = $("#step-detail");
  if (!keepUrl) history.replaceState(null, "", `?step=${link.dataset.step}`);
  detail.classList.add("loading");
  try {
    const html = await fetchText(`/steps/${link.dataset.step}?run=${document.body.dataset.run}`);
    if (request !== latestStep) return;
    setHtml(detail, html);
    detail.scrollTop = 0;
    loadWhenOpened(detail);
  } catch (error) { if (request === latestStep) showError(detail, error); }
  if (request === latestStep) detail.classList.remove("loading");
}
function showPosition() {
  const links = stepLinks(), index = selectedIndex(), slider = $("#step-slider");
  if (!slider || index < 0) return;
  slider.max = links.length - 1;
  slider.value = index;
  const number = $("i", links[index]).textContent;
  $("#step-position").textContent = number ? `step ${number}` : $("b", links[index]).textContent;
  const chart = $("svg.run-chart");
  if (!chart) return;
  const bar = chartedLinks().indexOf(links[index]), width = Number(chart.dataset.barWidth), selection = $(".selected", chart);
  selection.setAttribute("x", bar * width);
  selection.setAttribute("width", bar < 0 ? 0 : Math.max(2, width));
}
function loadWhenOpened(parent) {
  for (const details of $$("details[data-src]", parent)) {
    details.addEventListener("toggle", async () => {
      const target = $("div", details);
      if (!details.open || details.dataset.loaded) return;
      details.dataset.loaded = "yes";
      try { setHtml(target, await fetchText(details.dataset.src)); } catch (error) { showError(target, error); }
    });
  }
}
function addRunListeners() {
  const slider = $("#step-slider"), chart = $("svg.run-chart"), list = $("#step-list");
  if (!list) return;
  list.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-step]");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    selectStep(stepLinks().indexOf(link));
  });
  slider?.addEventListener("input", () => selectStep(Number(slider.value)));
  chart?.addEventListener("click", (event) => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    const link = chartedLinks()[Math.floor(x / Number(chart.dataset.barWidth))];
    if (link) selectStep(stepLinks().indexOf(link));
  });
  showPosition();
}
if (page === "run") { addRunListeners(); loadWhenOpened(document); }

// --- live updates ----------------------------------------------------------------------------------------------------
async function updateRuns() {
  if (new URLSearchParams(location.search).has("until")) return;  // a page of older runs does not change
  await $("form[data-live]").update();
}
async function updateRun() {
  const selected = selectedStep();
  const html = await fetchText(`/runs/${document.body.dataset.run}?fragment=1${selected ? `&step=${selected}` : ""}`);
  if (document.activeElement?.closest("#run form")) return;  // the user is typing
  if (selectedStep() !== selected) { await updateRun(); return; }  // the user selected another step meanwhile
  const before = $("#step-list"), scrollTop = before ? before.scrollTop : 0;
  const atBottom = before && before.scrollTop + before.clientHeight >= before.scrollHeight - 4;
  const atLastStep = stepLinks().at(-1)?.dataset.step === selected;
  setHtml($("#run"), html);
  addRunListeners();
  const after = $("#step-list");
  if (after) after.scrollTop = atBottom ? after.scrollHeight : scrollTop;
  // the selection follows new steps only if the last step was selected
  if (atLastStep && stepLinks().at(-1)?.dataset.step !== selected) selectStep(stepLinks().length - 1, { keepUrl: true });
}
async function checkForChanges() {
  if (document.hidden) return;
  try {
    const version = JSON.parse(await fetchText("/data-version")).data_version;
    if (version !== document.body.dataset.version) {
      document.body.dataset.version = version;
      if (version.endsWith("vanished")) location.reload();  // the whole page says that it shows an old file
      else await (page === "runs" ? updateRuns() : updateRun());
    }
  } catch { /* the server is stopped or busy: the page stays as it is */ }
}
if (document.body.dataset.version) setInterval(checkForChanges, 1000);

// --- clicks and confirmations ----------------------------------------------------------------------------------------
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) {
    await navigator.clipboard.writeText(button.dataset.copy);
    const label = button.textContent;
    button.textContent = "copied";
    setTimeout(() => { button.textContent = label; }, 1200);
  }
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button")) location.href = row.dataset.href;
});
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// --- keyboard shortcuts ----------------------------------------------------------------------------------------------
// Each returns whether it did something; if not, the browser handles the key.
function moveBy(offset) {
  if (page === "run") { selectStep(selectedIndex() + offset); return true; }
  const rows = $$("tr[data-href]");
  if (!rows.length) return false;
  const index = rows.findIndex((row) => row.classList.contains("focused"));
  const next = rows[Math.max(0, Math.min(index + offset, rows.length - 1))];
  rows.forEach((row) => row.classList.remove("focused"));
  next.classList.add("focused");
  next.scrollIntoView({ block: "nearest" });
  return true;
}
function focusSearch() { const search = $("input[type=search]"); search?.focus(); search?.select(); return Boolean(search); }
function openFocusedRun() { const row = $("tr.focused"); if (row) location.href = row.dataset.href; return Boolean(row); }
function selectNextFailure() {
  const next = stepLinks().findIndex((link, index) => index > selectedIndex() && link.parentElement.classList.contains("failed"));
  if (next >= 0) selectStep(next);
  return next >= 0;
}
function togglePrompt() { const prompt = $("#prompt"); if (prompt) prompt.open = !prompt.open; return Boolean(prompt); }
const shortcuts = {
  "/": focusSearch, j: () => moveBy(1), k: () => moveBy(-1), ArrowDown: () => moveBy(1), ArrowUp: () => moveBy(-1),
  Enter: openFocusedRun, e: selectNextFailure, s: togglePrompt, u: () => { location.href = "/"; return true; },
  t: () => { switchTheme(); return true; }, "?": () => { $("#help").showModal(); return true; },
};
document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const field = event.target.closest("input:not([type=range]), textarea, select");
  if (field) { if (event.key === "Escape") field.blur(); return; }
  if (event.target.closest("button, summary, a") && event.key === "Enter") return;
  const shortcut = shortcuts[event.key];
  if (shortcut && !$("dialog[open]") && shortcut()) event.preventDefault();
});
