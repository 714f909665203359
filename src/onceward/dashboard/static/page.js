// What every page does beyond being read: times in this place's zone, lists that stay fresh, plots that can be read with
// a pointer or the arrow keys, boxes that are ticked together. Everything is set as text, or taken from our own pages.
(function () {
  "use strict";

  // Times

  var zones = { local: undefined, UTC: "UTC" };
  var zone = "local";
  try { zone = localStorage.getItem("onceward-zone") in zones ? localStorage.getItem("onceward-zone") : "local"; } catch (error) { /* private windows may refuse */ }

  function pad(number) { return (number < 10 ? "0" : "") + number; }

  function written(moment, form) {
    var utc = zone === "UTC" || form === "day"; // days are those of UTC
    var read = function (name) { return moment["get" + (utc ? "UTC" : "") + name](); };
    var day = read("FullYear") + "-" + pad(read("Month") + 1) + "-" + pad(read("Date"));
    var clock = pad(read("Hours")) + ":" + pad(read("Minutes"));
    if (form === "day") return day.slice(5);
    if (form === "clock") return clock;
    if (form === "date") return day.slice(5) + " " + clock;
    return day + " " + clock + ":" + pad(read("Seconds")) + (utc ? " UTC" : "");
  }

  function writeTimes() {
    document.querySelectorAll("time[datetime]").forEach(function (one) {
      var moment = new Date(one.dateTime);
      if (one.dataset.form) one.textContent = written(moment, one.dataset.form);
      var other = moment.toISOString().slice(0, 19).replace("T", " ") + " UTC";
      if (one.dataset.form !== "day") one.title = written(moment, "exact") + (zone === "UTC" ? "" : " here, " + other);
    });
    var button = document.getElementById("zone");
    button.textContent = zone === "UTC" ? "UTC" : "Local";
    button.setAttribute("aria-label", zone === "UTC" ? "Times are UTC; switch to local" : "Times are local; switch to UTC");
  }

  document.getElementById("zone").addEventListener("click", function () {
    zone = zone === "UTC" ? "local" : "UTC";
    try { localStorage.setItem("onceward-zone", zone); } catch (error) { /* as above */ }
    writeTimes();
  });

  // Boxes

  function count(form) {
    var place = form.querySelector("[data-count]");
    if (!place) return;
    var chosen = Array.prototype.filter.call(form.elements, function (one) { return one.type === "checkbox" && one.name && one.checked; });
    place.textContent = chosen.length ? chosen.length + " chosen" : "";
  }

  document.addEventListener("change", function (event) {
    var box = event.target, form = box.form;
    if (box.type !== "checkbox" || !form) return;
    if ("all" in box.dataset) {
      form.querySelectorAll("tbody input[type=checkbox]").forEach(function (one) { one.checked = box.checked; });
    }
    count(form);
  });

  document.addEventListener("submit", function (event) {
    var pick = event.target.querySelector(".pick");
    var chosen = event.target.querySelector("tbody input[type=checkbox]:checked");
    if (!pick || chosen) return;
    event.preventDefault();
    event.target.querySelector("[data-count]").textContent = "Choose at least one first";
  });

  // Plots

  var SIZES = { W: 600, H: 120 };

  function words(value, unit) {
    if (value === null) return "none";
    if (unit !== "time") return value.toLocaleString("en");
    if (value < 0.01) return (value * 1000).toFixed(1) + " ms";
    if (value < 1) return Math.round(value * 1000) + " ms";
    if (value < 60) return value.toFixed(1) + " s";
    if (value < 3600) return (value / 60).toFixed(1) + " min";
    return value < 86400 ? (value / 3600).toFixed(1) + " h" : (value / 86400).toFixed(1) + " d";
  }

  function read(figure, index) {
    var plots = document.getElementById("plots"), times = JSON.parse(plots.dataset.times);
    var last = times.length - 1, at = Math.max(0, Math.min(last, index));
    var lines = JSON.parse(figure.dataset.lines), now = figure.querySelector(".now");
    if (!("before" in now.dataset)) now.dataset.before = now.textContent;
    now.textContent = written(new Date(times[at]), plots.dataset.form) + " " + lines.map(function (line) {
      return line[0] + " " + words(line[1][at], figure.dataset.unit);
    }).join(", ");
    var x = last ? SIZES.W * at / last : 0;
    figure.querySelector(".cursor").setAttribute("d", "M" + x.toFixed(1) + " 0V" + SIZES.H);
    figure.dataset.index = at;
  }

  function forget(figure) {
    var now = figure.querySelector(".now");
    if ("before" in now.dataset) { now.textContent = now.dataset.before; delete now.dataset.before; }
    figure.querySelector(".cursor").setAttribute("d", "");
    delete figure.dataset.index;
  }

  function plotOf(event) { return event.target.closest ? event.target.closest(".frame") : null; }

  document.addEventListener("pointermove", function (event) {
    var frame = plotOf(event);
    document.querySelectorAll(".plot[data-index]").forEach(function (figure) {
      if ((!frame || !figure.contains(frame)) && !figure.contains(document.activeElement)) forget(figure);
    });
    if (!frame) return;
    var place = frame.getBoundingClientRect(), count = JSON.parse(document.getElementById("plots").dataset.times).length;
    read(frame.closest(".plot"), Math.round((event.clientX - place.left) / place.width * (count - 1)));
  });

  document.addEventListener("keydown", function (event) {
    var frame = plotOf(event), step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!frame || !step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    var figure = frame.closest(".plot");
    read(figure, (figure.dataset.index === undefined ? 1e9 : Number(figure.dataset.index)) + step);
  });

  document.addEventListener("focusout", function (event) {
    var frame = plotOf(event);
    if (frame) forget(frame.closest(".plot"));
  });

  // Fresh lists

  var EVERY = 5000;
  var shown = {}; // the parts as they came
  var pulse = document.getElementById("pulse");

  function isBusy(part) {
    var chosen = document.getSelection();
    return part.contains(document.activeElement) || part.querySelector("input:checked, details[open], .plot[data-index]") ||
      (chosen && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  }

  function names(page) {
    return Array.prototype.map.call(page.querySelectorAll("[data-live]"), function (one) { return one.id; });
  }

  function take(text) {
    var fresh = new DOMParser().parseFromString(text, "text/html");
    if (names(fresh).join() !== names(document).join()) {
      var main = document.getElementById("main");
      if (!isBusy(main)) main.replaceWith(document.importNode(fresh.getElementById("main"), true));
    } else {
      names(document).forEach(function (id) {
        var old = document.getElementById(id), other = fresh.getElementById(id);
        if (isBusy(old) || shown[id] === other.outerHTML) return;
        var left = old.scrollLeft, made = document.importNode(other, true);
        shown[id] = other.outerHTML;
        old.replaceWith(made);
        made.scrollLeft = left;
      });
    }
    pulse = document.getElementById("pulse");
    writeTimes();
  }

  function say(text, isAway) {
    if (!pulse || pulse.textContent === text) return;
    pulse.textContent = text;
    pulse.classList.toggle("away", isAway);
  }

  function ask() {
    if (document.hidden) { setTimeout(ask, EVERY); return; }
    fetch(location.href, { credentials: "same-origin", headers: { accept: "text/html" } }).then(function (answer) {
      if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
      return answer.text();
    }).then(function (text) {
      take(text);
      say("live", false);
    }).catch(function () {
      say("no answer", true);
    }).then(function () {
      setTimeout(ask, EVERY);
    });
  }

  writeTimes();
  var here = document.querySelector(".side [aria-current]");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - (here.parentElement.clientWidth - here.offsetWidth) / 2;
  if (pulse) { say("live", false); setTimeout(ask, EVERY); }
})();
