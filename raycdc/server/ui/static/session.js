// Being let in. The cookie is out of reach of scripts; the key that goes with it is in this origin's storage.

const KEY = "raycdc-key";

/** The run refuses what this browser shows: it must be let in anew. */
export class NotLetInError extends Error {}

/** A request with the key. NotLetInError where the run does not know it. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers, "X-Raycdc-Key": localStorage.getItem(KEY) ?? "" };
  const answer = await fetch(path, { ...options, headers, credentials: "same-origin", cache: "no-store" });
  if (answer.status === 401) throw new NotLetInError();
  return answer;
}

/** The same with a body in JSON, and its answer: [ok, document]. */
export async function tell(path, document) {
  const answer = await ask(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(document),
  });
  return [answer.ok, await answer.json()];
}

/** Ask to be let in with the code of a link or the token. An Error says why not. */
export async function logIn(code) {
  const answer = await fetch("/page/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }),
    credentials: "same-origin",
  });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.text);
  localStorage.setItem(KEY, said.key);
}

/** Whether this browser was let in at some time. */
export const hasKey = () => localStorage.getItem(KEY) !== null;

/** Leave: the run forgets this browser. */
export async function logOut() {
  try {
    await ask("/page/logout", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  } catch (gone) {
    if (!(gone instanceof NotLetInError || gone instanceof TypeError)) throw gone;
  } finally {
    localStorage.removeItem(KEY);
  }
}

/** The code that stands in the address, which is taken away from there. */
export function codeOfAddress() {
  const match = /^#login=([\w-]+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", location.pathname);
  return match[1];
}
