// Helpers for elements of the page. Texts of sources, servers and errors are inserted as text, never as markup.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element: `about` has its class, attributes and listeners; the further arguments are its children or texts. */
export function element(tag, about = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  put(made, ...inside);
  return made;
}

/** Replace the content of `place`. */
export function put(place, ...inside) {
  place.replaceChildren(...inside.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== "")
    .map((each) => (each instanceof Node ? each : document.createTextNode(String(each)))));
}

/** Set the text only if it differs, so that a selection stays. */
export function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** Set the attribute only if it differs; null removes it. */
export function setAttribute(place, name, value) {
  if (value === null) place.removeAttribute(name);
  else if (place.getAttribute(name) !== String(value)) place.setAttribute(name, String(value));
}

/** Give `place` one child per item, in this order. Children are kept by key, so that focus and selection stay. */
export function keep(place, items, keyOf, make, update) {
  const existing = new Map([...place.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = existing.get(key);
    existing.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    const after = before ? before.nextSibling : place.firstChild;
    if (after !== child) place.insertBefore(child, after);
    before = child;
  }
  for (const child of existing.values()) child.remove();
}

const SVG = "http://www.w3.org/2000/svg";

/** A new SVG element. */
export function shape(tag, about = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, String(value));
  if (text !== null) made.textContent = text;
  return made;
}

/** Announce the text to screen readers. */
export function announce(text) {
  setText(byId("announcement"), text);
}
