// What the task stream and the network share: a canvas that is moved and zoomed by mouse, touch and keys.
const tip = document.getElementById("tip");

export function showTip(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
}

// view: { pan(dx, dy), zoom(factor, x, y), home(), at(x, y) -> text, pick(x, y) }, in CSS pixels.
export function movable(canvas, view, tools) {
  let from = null, moved = false;
  canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; moved = false; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (from) {
      const dx = event.clientX - from[0], dy = event.clientY - from[1];
      if (Math.abs(dx) + Math.abs(dy) > 3) moved = true;
      if (moved) { view.pan(dx, dy); from = [event.clientX, event.clientY]; }
      return;
    }
    showTip(event, view.at(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerup", (event) => { if (!moved) view.pick?.(event.offsetX, event.offsetY); from = null; });
  canvas.addEventListener("pointercancel", () => { from = null; });
  canvas.addEventListener("pointerleave", (event) => showTip(event, ""));
  canvas.addEventListener("wheel", (event) => {
    // A page that scrolls past must not get stuck in the picture: zoom with Ctrl, or once it has the focus.
    if (!event.ctrlKey && document.activeElement !== canvas) return;
    event.preventDefault();
    view.zoom(Math.exp(-event.deltaY * 0.002), event.offsetX, event.offsetY);
  }, { passive: false });
  const middle = () => [canvas.clientWidth / 2, canvas.clientHeight / 2];
  const keys = { "+": () => view.zoom(1.4, ...middle()), "=": () => view.zoom(1.4, ...middle()), "-": () => view.zoom(1 / 1.4, ...middle()), 0: () => view.home(),
    ArrowLeft: () => view.pan(60, 0), ArrowRight: () => view.pan(-60, 0), ArrowUp: () => view.pan(0, 60), ArrowDown: () => view.pan(0, -60) };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    keys[event.key]();
    event.preventDefault();
  });
  for (const [text, title, action] of [["+", "Closer", keys["+"]], ["−", "Further", keys["-"]], [view.homeText, view.homeTitle, keys[0]]]) {
    const button = document.createElement("button");
    button.type = "button"; button.className = "plain"; button.textContent = text; button.title = title;
    button.addEventListener("click", action);
    tools.append(button, " ");
  }
}
