// Keeps an open page up to date: every five seconds the main part is fetched anew, while the page is seen and nobody is
// in a form of it. Without this script the page reads as it was served.
"use strict";
const EVERY_MS = 5000;
const main = document.querySelector("main[data-live]");

async function renew() {
  if (document.hidden || main.contains(document.activeElement) || main.querySelector("details[open] form")) return;
  const told = main.querySelector(".as-of");
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(EVERY_MS) });
    if (answer.redirected) return location.assign(answer.url);
    if (!answer.ok) throw new Error(answer.statusText);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    main.replaceChildren(...page.querySelector("main").childNodes);
  } catch {
    if (told && !told.classList.contains("stale")) {
      told.classList.add("stale");
      told.prepend("the service does not answer; ");
    }
  }
}

if (main) {
  setInterval(renew, EVERY_MS);
  document.addEventListener("visibilitychange", renew);
}
