// The few lines that every other script needs.

export const find = (selector, root = document) => root.querySelector(selector);
export const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Say something about the connection at the top of the page; an empty text takes it away. */
export function say(text) {
  const place = find("#connection");
  place.hidden = !text;
  if (place.textContent !== text) place.textContent = text;
}

/** A note in `place`, which a screen reader reads out. */
export function show(place, tone, title, text, list = []) {
  const box = Object.assign(document.createElement("div"), { className: `note ${tone}` });
  box.append(Object.assign(document.createElement("strong"), { textContent: title }), " ", text);
  if (list.length) box.append(document.createElement("ul"));
  for (const item of list) box.lastChild.append(Object.assign(document.createElement("li"), { textContent: item }));
  place.replaceChildren(box);
}
