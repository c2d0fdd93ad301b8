// The dashboard works without this file. It adds: a switch between dark and
// light, live updates of visible pages, and help with selecting.
(() => {
  "use strict";
  const root = document.documentElement;
  const store = "inbox-dashboard-theme";

  // Run at once, before anything is painted.
  let theme = null;
  try { theme = localStorage.getItem(store); } catch { /* not allowed to store */ }
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;

  const switchTheme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem(store, root.dataset.theme); } catch { /* for this page only */ }
  };

  // Updates: the page's own address with part=live, one at a time.
  let timer = 0;
  let failed = false;
  let requesting = false;
  const live = () => document.getElementById("live");

  const busy = (part) => {
    if (part.querySelector("input:checked, details[open]")) return "Updates are paused while something is selected or unfolded.";
    const focused = document.activeElement;
    if (part.contains(focused) && focused.matches("input, select, textarea, button")) return "Updates are paused while a control has the focus.";
    const selection = getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return "Updates are paused while text is selected.";
    return "";
  };

  const showStatus = (text, bad) => {
    const status = document.getElementById("update-status");
    if (status.textContent !== text) status.textContent = text;
    status.hidden = !text;
    status.classList.toggle("bad", !!bad);
  };

  const swap = (fresh) => {
    for (const id of ["nav", "live"]) {
      const next = fresh.getElementById(id);
      const now = document.getElementById(id);
      if (!next || !now || next.innerHTML === now.innerHTML) continue;
      const focused = now.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const scrolled = [...now.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
      now.replaceWith(document.adoptNode(next));
      [...next.querySelectorAll(".scroll")].forEach((box, i) => { box.scrollLeft = scrolled[i] || 0; });
      if (focused) [...next.querySelectorAll("a")].find((a) => a.getAttribute("href") === focused)?.focus({ preventScroll: true });
    }
    prepare();
  };

  const later = () => {
    clearTimeout(timer);
    const part = live();
    if (!part || !part.dataset.live || document.hidden) return;
    timer = setTimeout(update, Number(part.dataset.every) * (failed ? 3 : 1));
  };

  const update = () => {
    const part = live();
    if (!part || !part.dataset.live || document.hidden || requesting) return;
    const waiting = busy(part);
    if (waiting) {
      showStatus(waiting);
      later();
      return;
    }
    const request = new XMLHttpRequest();
    request.open("GET", part.dataset.live);
    request.responseType = "document"; // parsed without being run
    request.timeout = 30000;
    requesting = true;
    request.onloadend = () => {
      requesting = false;
      // A page that is not ours is the login page that the request was redirected to.
      const out = request.status === 401 || request.status === 403 || (request.status === 200 && !request.response?.getElementById("live"));
      failed = out || request.status !== 200;
      if (!failed) {
        if (!busy(part)) swap(request.response);
        showStatus("");
      } else if (out) {
        showStatus("Not up to date: you are no longer signed in. Reload the page.", true);
      } else {
        showStatus("Not up to date: the service is not responding correctly. Retrying.", true);
      }
      later();
    };
    request.send();
  };

  // Selecting in the list of messages.
  const prepare = () => {
    const form = document.getElementById("selection");
    const all = document.getElementById("select-all");
    if (!form || !all) return;
    all.hidden = false;
    const boxes = () => [...form.querySelectorAll('input[name="ref"]')];
    const showSelected = () => {
      const n = boxes().filter((box) => box.checked).length;
      document.getElementById("selected").textContent = n ? n + " selected" : "";
      const box = all.querySelector("input");
      box.checked = n > 0 && n === boxes().length;
      box.indeterminate = n > 0 && n < boxes().length;
    };
    all.querySelector("input").addEventListener("change", (event) => {
      for (const box of boxes()) box.checked = event.target.checked;
      showSelected();
    });
    form.addEventListener("change", showSelected);
    showSelected();
  };

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", switchTheme);
    prepare();
    later();
  });
  document.addEventListener("visibilitychange", () => { document.hidden ? clearTimeout(timer) : update(); });
})();
