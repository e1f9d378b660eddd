// Keeps an open page up to date: every five seconds the main part is fetched anew, while the page is seen and nobody is
// in it with the keyboard or in a form. A newer service is loaded with its own style. A form with a forecast has it while one types. Without this script the page reads as it was served.
"use strict";
const EVERY_MS = 5000;
const main = document.querySelector("main[data-live]");

async function renew() {
  if (document.hidden) return;
  const told = main.querySelector(".as-of");
  if (main.querySelector(":focus-visible, details[open] form")) return stale(told, "not renewed while you are in it; ");
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(EVERY_MS) });
    if (answer.redirected) return location.assign(answer.url);
    if (!answer.ok) throw new Error(`not now: ${answer.statusText || answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (page.querySelector("link[rel=stylesheet]").href !== document.querySelector("link[rel=stylesheet]").href) return location.reload();
    document.querySelector("footer").replaceChildren(...page.querySelector("footer").childNodes);
    const open = [...main.querySelectorAll("details")].map((part) => part.open);
    main.replaceChildren(...page.querySelector("main").childNodes);
    const parts = main.querySelectorAll("details");
    if (parts.length === open.length) parts.forEach((part, place) => { part.open = open[place]; });
  } catch (error) {
    stale(told, error.message.startsWith("not now") ? `${error.message}; ` : "the service does not answer; ");
  }
}

function stale(told, why) {
  if (told && !told.classList.contains("stale")) {
    told.classList.add("stale");
    told.prepend(why);
  }
}

if (main) {
  const there = new URL(location);
  there.searchParams.delete("done"); // what was said of a change is not said of what others do after it
  history.replaceState(null, "", there);
  setInterval(renew, EVERY_MS);
  document.addEventListener("visibilitychange", renew);
}

const PAUSE_MS = 600;
const composed = document.querySelector("form[data-forecast]");
let waits, asks = false;

async function forecast() {
  if (asks || !composed.checkValidity()) return;
  asks = true;
  const query = `?${new URLSearchParams(new FormData(composed))}`;
  try {
    const answer = await fetch(composed.action + query, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (`?${new URLSearchParams(new FormData(composed))}` === query) {
      for (const part of document.querySelectorAll("[data-part]")) {
        const now = page.querySelector(`[data-part="${part.dataset.part}"]`);
        if (now) part.replaceWith(document.importNode(now, true));
      }
      history.replaceState(null, "", query);
    } else {
      waits = setTimeout(forecast, PAUSE_MS);
    }
  } catch { /* it stays stale, and the button asks again */ }
  asks = false;
}

if (composed) {
  const zone = composed.querySelector("[data-zone]");
  if (zone) zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone || zone.value;
  const typed = document.querySelector("form [name=typed]");
  typed?.form.addEventListener("submit", () => { typed.value = new URLSearchParams(new FormData(composed)); });
  composed.addEventListener("input", () => {
    const shown = document.querySelector("[data-part=forecast]");
    shown.classList.add("stale-forecast");
    shown.querySelector("form")?.remove();
    clearTimeout(waits);
    waits = setTimeout(forecast, PAUSE_MS);
  });
}
