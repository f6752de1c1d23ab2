// Makes the pages quick and live. Every page works without it.
"use strict";
const $ = (found, inside = document) => inside.querySelector(found);
const $$ = (found, inside = document) => [...inside.querySelectorAll(found)];
const page = document.body.dataset.page;

// --- light or dark ---------------------------------------------------------------------------------------------------
const root = document.documentElement;
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
try { const kept = localStorage.getItem("theme"); if (kept) root.dataset.theme = kept; } catch { /* it need not be kept */ }
function turn() {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it need not be kept */ }
}
$("#theme").addEventListener("click", turn);
$("#keys").addEventListener("click", () => $("#help").showModal());

// --- parts of pages --------------------------------------------------------------------------------------------------
async function fetched(address) {
  const answer = await fetch(address, { headers: { "X-Requested-With": "fetch" } });
  const text = await answer.text();
  if (!answer.ok) {
    const said = new DOMParser().parseFromString(text, "text/html").querySelector("main p, p");
    throw new Error(said ? said.textContent : `the server answered ${answer.status}`);
  }
  return text;
}
function put(place, html) { place.innerHTML = html; }  // made by our own templates, which escape; scripts cannot run here
function tell(place, error) {
  const note = document.createElement("p");
  note.className = "note bad";
  note.textContent = error.message;
  place.replaceChildren(note);
}

// --- filters answer as one types --------------------------------------------------------------------------------------
for (const form of $$("form[data-live]")) {
  const place = document.getElementById(form.dataset.live);
  let waiting, asked = 0;
  const ask = async () => {
    const number = ++asked;
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    history.replaceState(null, "", query.size ? `?${query}` : location.pathname);
    query.set("fragment", "1");
    try {
      const html = await fetched(`${form.getAttribute("action")}?${query}`);
      if (number === asked) put(place, html);
    } catch (error) { if (number === asked) tell(place, error); }
  };
  form.addEventListener("input", (event) => { clearTimeout(waiting); waiting = setTimeout(ask, event.target.type === "search" ? 140 : 0); });
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  form.refresh = ask;
}

// --- a run: one step at a time -----------------------------------------------------------------------------------------
const links = () => $$("#lines a");
const current = () => links().findIndex((link) => link.getAttribute("aria-current"));
let wanted = 0;
async function choose(place, { quietly = false } = {}) {
  const all = links();
  if (!all.length) return;
  const link = all[Math.max(0, Math.min(place, all.length - 1))];
  all.forEach((other) => other.removeAttribute("aria-current"));
  link.setAttribute("aria-current", "true");
  link.scrollIntoView({ block: "nearest" });
  mark();
  const number = ++wanted, detail = $("#detail");
  if (!quietly) history.replaceState(null, "", `?step=${link.dataset.step}`);
  detail.classList.add("busy");
  try {
    const html = await fetched(`/steps/${link.dataset.step}?run=${document.body.dataset.run}`);
    if (number !== wanted) return;
    put(detail, html);
    detail.scrollTop = 0;
    lazy(detail);
  } catch (error) { if (number === wanted) tell(detail, error); }
  if (number === wanted) detail.classList.remove("busy");
}
function mark() {
  const all = links(), place = current(), scrub = $("#scrub"), where = $("#where");
  if (!scrub || place < 0) return;
  scrub.max = all.length - 1;
  scrub.value = place;
  where.textContent = `${place + 1} of ${all.length}`;
  const plot = $("svg.plot"), here = $("svg.plot .here");
  if (!plot) return;
  const bars = all.filter((link) => ["action", "planning"].includes(link.dataset.kind));
  const bar = bars.indexOf(all[place]);
  here.setAttribute("x", bar * Number(plot.dataset.step));
  here.setAttribute("width", bar < 0 ? 0 : Math.max(2, Number(plot.dataset.step)));
}
function lazy(inside) {
  for (const details of $$("details[data-src]", inside)) {
    details.addEventListener("toggle", async () => {
      const place = $("div", details);
      if (!details.open || details.dataset.asked) return;
      details.dataset.asked = "yes";
      try { put(place, await fetched(details.dataset.src)); } catch (error) { tell(place, error); }
    });
  }
}
function wire() {
  const scrub = $("#scrub"), plot = $("svg.plot"), lines = $("#lines");
  if (!lines) return;
  lines.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    choose(links().indexOf(link));
  });
  scrub?.addEventListener("input", () => choose(Number(scrub.value)));
  plot?.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * plot.viewBox.baseVal.width;
    const bar = Math.floor(x / Number(plot.dataset.step));
    const bars = links().filter((link) => ["action", "planning"].includes(link.dataset.kind));
    if (bars[bar]) choose(links().indexOf(bars[bar]));
  });
  mark();
}
if (page === "run") { wire(); lazy(document); }

// --- what is written while one looks ------------------------------------------------------------------------------------
async function refresh() {
  if (page === "runs") {
    if (new URLSearchParams(location.search).has("until")) return;  // who reads older runs is not called back
    const here = $("tr.here")?.dataset.href;
    await $("form[data-live]").refresh();
    $$("tr[data-href]").find((row) => row.dataset.href === here)?.classList.add("here");
    return;
  }
  const place = $("#run"), kept = $("#lines a[aria-current]")?.dataset.step;
  const lines = $("#lines"), top = lines ? lines.scrollTop : 0, end = lines && lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
  const last = links().at(-1)?.dataset.step === kept;
  put(place, await fetched(`/runs/${document.body.dataset.run}?fragment=1${kept ? `&step=${kept}` : ""}`));
  wire();
  const now = $("#lines");
  if (now) now.scrollTop = end ? now.scrollHeight : top;
  if (last && links().at(-1)?.dataset.step !== kept) choose(links().length - 1, { quietly: true });  // who looks at the end stays there
}
async function watch() {
  if (document.hidden) return;
  try {
    const { pulse } = JSON.parse(await fetched("/pulse"));
    if (pulse !== document.body.dataset.pulse) {
      document.body.dataset.pulse = pulse;
      await refresh();
    }
  } catch { /* the server is gone, or busy: what is shown stays */ }
}
if (document.body.dataset.pulse) setInterval(watch, 1000);

// --- small acts ---------------------------------------------------------------------------------------------------------
document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    const before = copy.textContent;
    copy.textContent = "copied";
    setTimeout(() => { copy.textContent = before; }, 1200);
  }
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button")) location.href = row.dataset.href;
});
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// --- keyboard -----------------------------------------------------------------------------------------------------------
// Each tells whether there was something to do: a key that does nothing here is the browser's own.
function move(by) {
  if (page === "run") { choose(current() + by); return true; }
  const rows = $$("tr[data-href]");
  if (!rows.length) return false;
  const at = rows.findIndex((row) => row.classList.contains("here"));
  const next = rows[Math.max(0, Math.min(at + by, rows.length - 1))];
  rows.forEach((row) => row.classList.remove("here"));
  next.classList.add("here");
  next.scrollIntoView({ block: "nearest" });
  return true;
}
function find() { const search = $("input[type=search]"); search?.focus(); search?.select(); return Boolean(search); }
function open() { const row = $("tr.here"); if (row) location.href = row.dataset.href; return Boolean(row); }
function nextFailure() {
  const all = links(), after = all.findIndex((link, place) => place > current() && link.parentElement.classList.contains("failed"));
  if (after >= 0) choose(after);
  return after >= 0;
}
function showSent() { const sent = $("#sent"); if (sent) sent.open = !sent.open; return Boolean(sent); }
const keys = {
  "/": find, j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1), Enter: open, e: nextFailure,
  s: showSent, u: () => { location.href = "/"; return true; }, t: () => { turn(); return true; }, "?": () => { $("#help").showModal(); return true; },
};
document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  const typing = event.target.closest("input:not([type=range]), textarea, select");
  if (typing) { if (event.key === "Escape") typing.blur(); return; }
  if (event.target.closest("button, summary, a") && event.key === "Enter") return;
  const act = keys[event.key];
  if (act && !$("dialog[open]") && act()) event.preventDefault();
});
