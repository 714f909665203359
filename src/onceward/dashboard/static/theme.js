// The chosen theme, before the page is drawn; then keys and the switch.
(function () {
  "use strict";
  var page = document.documentElement;
  var chosen = null;
  try { chosen = localStorage.getItem("onceward-theme"); } catch (error) { /* private windows may refuse */ }
  if (chosen === "light" || chosen === "dark") page.dataset.theme = chosen;
  document.addEventListener("DOMContentLoaded", function () {
    var button = document.getElementById("theme");
    button.addEventListener("click", function () {
      var dark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      page.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("onceward-theme", page.dataset.theme); } catch (error) { /* as above */ }
    });
    document.addEventListener("keydown", function (event) {
      var field = document.getElementById("q");
      var typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
      if (event.key === "/" && field && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        field.focus();
      }
    });
  });
})();
