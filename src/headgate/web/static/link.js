// The link to the application: its stream of samples, and commands, which need the token.
const KEY = "headgate-token";
const found = new URLSearchParams(location.hash.slice(1)).get("token");
// In a frame the page can only be looked at: what is around it could place clicks.
export const framed = location.pathname === "/widget" || window.top !== window;
document.documentElement.classList.toggle("framed", framed);
if (found && !framed) {
  sessionStorage.setItem(KEY, found);
  history.replaceState(null, "", location.pathname); // it must not stay in the address bar
}

export const token = {
  get value() { return framed ? "" : sessionStorage.getItem(KEY) ?? ""; },
  set value(given) { if (!framed) sessionStorage.setItem(KEY, given); },
};
const headers = () => token.value ? { Authorization: `Bearer ${token.value}` } : {};

export async function network() {
  const answer = await fetch("/api/network", { headers: headers() });
  if (answer.status === 204) throw new Error("The run has not begun.");
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error), { status: answer.status });
  return answer.json();
}

export async function command(name, given) {
  const answer = await fetch("/api/command", { method: "POST", headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify({ command: name, arguments: given }) });
  const data = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(data.error), { status: answer.status });
  return data;
}

// EventSource cannot send a token, so the stream is read by hand.  Ends when the connection does.
export async function follow(onData) {
  const answer = await fetch("/api/stream", { headers: headers() });
  if (!answer.ok) throw Object.assign(new Error((await answer.json()).error), { status: answer.status });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = text.slice(0, end);
      text = text.slice(end + 2);
      if (event.startsWith("data: ")) await onData(JSON.parse(event.slice(6)));
    }
  }
}
