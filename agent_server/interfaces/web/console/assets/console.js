// The console works without this script. With it, a running diagnosis shows its progress as it comes, and what is still
// asked of other hosts appears without a reload.
"use strict";

const progress = document.getElementById("progress");

if (progress && window.EventSource) {
  const step = document.getElementById("step");
  const seconds = document.getElementById("seconds");
  const began = Date.now() - 1000 * Number(progress.dataset.seconds);
  const clock = setInterval(() => {
    seconds.textContent = String(Math.round((Date.now() - began) / 1000));
  }, 1000);
  const source = new EventSource(progress.dataset.events);

  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (event.step) {
      step.textContent = event.step;
    }
    if (event.place) {
      source.close();
      clearInterval(clock);
      location.replace(event.place);
    }
  };
  // The browser connects again by itself, but not after an answer that is no stream: the session has ended.
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      location.reload();
    }
  };
}

// A part of the page whose answers are not complete is fetched again until it is; not while the focus is in it.
async function renew() {
  const part = document.querySelector("[data-pending]");
  if (!part) {
    return;
  }
  if (document.visibilityState === "visible" && !part.contains(document.activeElement)) {
    const answer = await fetch(location.href, { redirect: "error" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = answer.ok && page.getElementById(part.id);
    if (!fresh) {
      return; // the session has ended
    }
    part.replaceWith(fresh);
  }
  setTimeout(renew, 1500);
}
setTimeout(() => renew().catch(() => {}), 1000);

// A form is sent once, however often its button is pressed.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") {
    return;
  }
  if (form.dataset.sent) {
    event.preventDefault();
  }
  form.dataset.sent = "1";
});

// A page that comes back from the browser's memory may send its forms again.
window.addEventListener("pageshow", () => {
  for (const form of document.forms) {
    delete form.dataset.sent;
  }
});
