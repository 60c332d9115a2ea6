// Formats of times and numbers, the theme, and a few keys; loaded before the components.
(() => {
  "use strict";
  const THEME = "vitrine-theme";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  const dayFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const yearFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const numbers = new Intl.NumberFormat("en-GB");
  const compact = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 1 });
  const listeners = new Set();

  const span = (seconds) => {
    const value = Math.abs(seconds);
    if (value < 60) return `${Math.floor(value)} s`;
    if (value < 3600) return `${Math.floor(value / 60)} min`;
    if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`.replace(" 0 min", "");
    return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`.replace(" 0 h", "");
  };

  window.vitrine = {
    zone,
    onTick(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    clock(at, now = Date.now()) {
      if (!at) return "–";
      const moment = new Date(at);
      const today = new Date(now);
      if (moment.toDateString() === today.toDateString()) return clockFormat.format(moment);
      return (moment.getFullYear() === today.getFullYear() ? dayFormat : yearFormat).format(moment);
    },
    utc: (at) => (at ? `${new Date(at).toISOString().slice(0, 19).replace("T", " ")} UTC` : ""),
    both: (at) => (at ? `${yearFormat.format(new Date(at))} ${zone}\n${vitrine.utc(at)}` : ""),
    // times that the server has written into a sentence
    local: (text, now = Date.now()) =>
      text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC/g, (_, day, time) => vitrine.clock(`${day}T${time}Z`, now)),
    age(at, now = Date.now()) {
      if (!at) return "–";
      const seconds = (now - new Date(at).getTime()) / 1000;
      if (Math.abs(seconds) < 1) return "now";
      return seconds >= 0 ? `${span(seconds)} ago` : `in ${span(seconds)}`;
    },
    duration(seconds) {
      if (seconds === null || seconds === undefined) return "–";
      if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
      if (seconds < 60) return `${seconds.toFixed(1)} s`;
      return span(seconds);
    },
    count: (number) => (number < 100000 ? numbers.format(number) : compact.format(number)),
    toggleTheme() {
      const dark = !(document.body.classList.contains("body--dark"));
      try { localStorage.setItem(THEME, dark ? "dark" : "light"); } catch (error) { /* private window: not kept */ }
      setDark(dark);
    },
  };

  // the chosen theme, as soon as NiceGUI can apply it; without a choice the one of the system
  let chosen = null;
  try { chosen = localStorage.getItem(THEME); } catch (error) { /* not available */ }
  if (chosen) document.documentElement.dataset.theme = chosen;
  window.addEventListener("load", () => { if (chosen) setDark(chosen === "dark"); });

  setInterval(() => {
    const now = Date.now();
    for (const listener of listeners) listener(now);
  }, 1000);

  // while the server does not accept the socket: load the page again if it asks for a login now
  setInterval(async () => {
    if (!window.socket || window.socket.connected) return;
    try {
      // the login page leads a browser with a session away
      const answer = await fetch("/console/login", { redirect: "manual", headers: { Accept: "text/html" } });
      if (answer.status === 200) location.reload();
    } catch (error) { /* the server is not back yet */ }
  }, 5000);

  // the address holds the filters: going back must show the page as it was
  window.addEventListener("popstate", () => location.reload());

  // not by the address: a change of it is a step back and forward, which loads the page again
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".v-skip")) return;
    event.preventDefault();
    document.getElementById("content").focus();
  });

  // a browser allows the clipboard only while it handles a click, so this does not pass the server
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.classList.add("v-copied");
      setTimeout(() => button.classList.remove("v-copied"), 1500);
    } catch (error) {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling || button);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
    }
  });

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      const search = document.querySelector("input[type=search], .v-search input");
      if (search) { event.preventDefault(); search.focus(); }
    }
  });
})();
