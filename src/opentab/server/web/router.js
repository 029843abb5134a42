// Which view an address means. Moving between them loads nothing anew, and every one can be linked to.

/** Show what the address says, now and whenever it changes. */
export function route(show) {
  addEventListener("popstate", () => show(new URL(location.href)));
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || link.target || url.pathname.startsWith("/v1/")) return;
    if (url.hash) return; // a place on this page
    event.preventDefault();
    go(url.href, show);
  });
}

/** Go to an address. */
export function go(href, show) {
  if (href !== location.href) history.pushState(null, "", href);
  show(new URL(location.href));
}
