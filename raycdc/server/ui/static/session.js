// The session of this browser. Scripts cannot read its cookie; its key is in the storage of this origin.

const KEY = "raycdc-key";

/** The run refused the cookie or the key: the browser must sign in again. */
export class NotLoggedInError extends Error {}

/** Send a request with the key. Throws NotLoggedInError if the run does not accept it. */
export async function request(path, options = {}) {
  const headers = { ...options.headers, "X-Raycdc-Key": localStorage.getItem(KEY) ?? "" };
  const answer = await fetch(path, { ...options, headers, credentials: "same-origin", cache: "no-store" });
  if (answer.status === 401) throw new NotLoggedInError();
  return answer;
}

/** Post a document as JSON, and return [ok, the document of the answer]. */
export async function post(path, document) {
  const answer = await request(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(document),
  });
  return [answer.ok, await answer.json()];
}

/** Sign in with the code of a link or the token. Throws an Error with the reason of a refusal. */
export async function logIn(code) {
  const answer = await fetch("/page/login", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }),
    credentials: "same-origin",
  });
  const session = await answer.json();
  if (!answer.ok) throw new Error(session.text);
  localStorage.setItem(KEY, session.key);
}

/** True if this browser has signed in before; the session may have ended since. */
export const hasKey = () => localStorage.getItem(KEY) !== null;

/** Sign out: the run ends the session. */
export async function logOut() {
  try {
    await request("/page/logout", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  } catch (error) {
    if (!(error instanceof NotLoggedInError || error instanceof TypeError)) throw error;
  } finally {
    localStorage.removeItem(KEY);
  }
}

/** Remove the code from the address, and return it; null if there is none. */
export function codeOfAddress() {
  const match = /^#login=([\w-]+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", location.pathname);
  return match[1];
}
