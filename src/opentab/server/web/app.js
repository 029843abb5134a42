// The page: who is here, where they want to go, and one view at a time.

import { el } from "./dom.js";
import { useCurrency } from "./money.js";
import { useZone } from "./words.js";
import { go, route } from "./router.js";
import { signedIn, signIn, whenRefused, whoIsHere } from "./session.js";
import { customersView } from "./customers.js";
import { eventsView } from "./events.js";
import { managementView } from "./management.js";
import { operationsView } from "./operations.js";

const VIEWS = {
  "/": { title: "Customers", show: customersView, everyone: true },
  "/management": { title: "Management", show: managementView },
  "/operations": { title: "Operations", show: operationsView },
  "/events": { title: "Events", show: eventsView },
};
const AGAIN_MS = 2000;

const main = document.getElementById("main");
const nav = document.getElementById("views");
let session = null, ending = new AbortController(), shown = null;

/** End the view that is there, and show the one that an address means. */
function show(url, { focus = true } = {}) {
  ending.abort();
  ending = new AbortController();
  const view = VIEWS[url.pathname] ?? VIEWS["/"];
  const moved = shown !== view;
  shown = view;
  drawFrame(view);
  document.title = `${view.title} · opentab`;
  const places = { url, session, signal: ending.signal, go: (href) => go(href, show) };
  main.replaceChildren(mayOpen(view) ? view.show(places) : refusal());
  if (focus && moved) main.querySelector("h1")?.focus({ preventScroll: true });
  if (moved) scrollTo(0, 0);
}

function mayOpen(view) {
  if (!session.tokens || session.role === "reader" || session.role === "admin") return true;
  return session.role === "customer" && Boolean(view.everyone);
}

function refusal() {
  const why = session.role === "customer"
    ? "The token that you signed in with is a customer's: it shows that customer's own page, and nothing else."
    : "The token that you signed in with sends events and reads nothing. Sign in with a reader's token.";
  return el("section", { class: "card" }, el("h1", { tabindex: "-1" }, "Not for this token"), el("p", {}, why),
    session.role === "customer" ? el("p", {}, el("a", { href: "/" }, "To your own page")) : null);
}

function drawFrame(view) {
  const open = Object.entries(VIEWS).filter(([, each]) => mayOpen(each));
  nav.replaceChildren(...open.map(([path, each]) =>
    el("a", { href: path, "aria-current": each === view ? "page" : null }, each.title)));
  nav.hidden = open.length < 2;
  document.getElementById("session").replaceChildren(...signedIn(session, begin));
}

function askForToken() {
  if (main.querySelector("#token")) return;
  ending.abort();
  shown = null;
  nav.hidden = true;
  document.title = "Sign in · opentab";
  document.getElementById("session").replaceChildren();
  main.replaceChildren(signIn(begin));
  main.querySelector("input").focus();
}

async function begin() {
  try {
    session = await whoIsHere();
  } catch {
    main.replaceChildren(el("p", { class: "quiet", role: "status" }, "The server cannot be reached. Trying again…"));
    setTimeout(begin, AGAIN_MS);
    return;
  }
  useCurrency(session.currency);
  useZone(session.zone);
  if (session.tokens && !session.role) askForToken();
  else show(new URL(location.href), { focus: false });
}

route((url) => show(url));
whenRefused(askForToken);
begin();
