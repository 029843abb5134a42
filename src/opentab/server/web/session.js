// Who is here: a token is given once, kept by the browser where no script can read it, and forgotten on the way out.

import { refusals, Refused } from "./api.js";
import { el, name, say } from "./dom.js";

/** What the server says of us: whether it wants a token, and whose ours is. */
export async function whoIsHere() {
  const answer = await fetch("/session");
  return answer.json();
}

/** A form for a token; calls `done` once it was taken. */
export function signIn(done) {
  const field = el("input", { id: "token", name: "token", type: "password", required: "", autocomplete: "off", spellcheck: "false" });
  const trouble = el("p", { class: "trouble", role: "alert" });
  const button = el("button", { class: "primary" }, "Sign in");
  const give = async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const answer = await fetch("/session", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ token: field.value }),
      });
      const body = await answer.json().catch(() => ({}));
      if (!answer.ok) throw new Refused(answer.status, body.detail ?? "the token was refused");
      field.value = "";
      done();
    } catch (error) {
      say(trouble, error instanceof Refused ? `That did not work: ${error.message}.` : "The server cannot be reached.");
      field.focus();
    }
    button.disabled = false;
  };
  return el("section", { class: "card sign-in", "aria-labelledby": "sign-in" },
    el("h1", { id: "sign-in", tabindex: "-1" }, "Sign in"),
    el("p", { class: "quiet" }, "This server asks for an access token. It is kept in a cookie that no script can read, until you sign out or close the browser."),
    el("form", { on: { submit: give } }, el("label", { for: "token" }, "Access token"), field, trouble, button));
}

/** Who is signed in, and the way out. */
export function signedIn(session, out) {
  if (!session.tokens || !session.role) return [];
  const leave = async () => {
    await fetch("/session", { method: "DELETE" });
    out();
  };
  const who = session.customer === null ? el("span", {}, session.role) : name(session.customer);
  return [el("span", { class: "who" }, who), el("button", { class: "plain", on: { click: leave } }, "Sign out")];
}

/** Call back when the server does not take the token any more. */
export function whenRefused(callback) {
  refusals.addEventListener("refused", callback);
}
