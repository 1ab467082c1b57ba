// Elements of the page. Whatever a source, a server or an error says goes in as text, never as markup.

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** A new element: `about` are its class, attributes and listeners, and what follows is inside, elements or texts. */
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

/** Have `place` hold exactly this. */
export function put(place, ...inside) {
  place.replaceChildren(...inside.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== "")
    .map((each) => (each instanceof Node ? each : document.createTextNode(String(each)))));
}

/** Set a text where it is another one, so that selections stay. */
export function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** Set an attribute where it is another one; null removes it. */
export function setAttribute(place, name, value) {
  if (value === null) place.removeAttribute(name);
  else if (place.getAttribute(name) !== String(value)) place.setAttribute(name, String(value));
}

/** Have `place` hold one child per item, in this order: children are kept by key, so that focus and selection stay. */
export function keep(place, items, keyOf, make, update) {
  const there = new Map([...place.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = there.get(key);
    there.delete(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    const after = before ? before.nextSibling : place.firstChild;
    if (after !== child) place.insertBefore(child, after);
    before = child;
  }
  for (const gone of there.values()) gone.remove();
}

const SVG = "http://www.w3.org/2000/svg";

/** A new element of SVG. */
export function shape(tag, about = {}, text = null) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(about)) made.setAttribute(name, String(value));
  if (text !== null) made.textContent = text;
  return made;
}

/** Have it said to those who hear the page instead of seeing it. */
export function say(text) {
  setText(byId("spoken"), text);
}
