// Draws the plots of the overview and keeps the numbers fresh. Everything is set as text or as an attribute.
(function () {
  "use strict";
  var SVG = "http://www.w3.org/2000/svg";
  var W = 320, H = 96, PAD = 4;
  var place = document.getElementById("plots");
  var pulse = document.getElementById("pulse");
  var root = place.dataset.root;

  function element(name, attributes) {
    var made = document.createElementNS(SVG, name);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    return made;
  }

  function words(value) {
    return value >= 1000 ? Math.round(value).toLocaleString("en") : String(Math.round(value * 10) / 10);
  }

  function seconds(value) {
    if (value < 60) return words(value) + " s";
    if (value < 3600) return words(value / 60) + " min";
    return words(value / 3600) + " h";
  }

  function points(values, top, times) {
    var first = times ? times[0] : 0, last = times ? times[times.length - 1] : values.length - 1;
    return values.map(function (value, index) {
      var part = last > first ? ((times ? times[index] : index) - first) / (last - first) : index;
      return [PAD + part * (W - 2 * PAD), H - PAD - (H - 2 * PAD - 10) * (top ? value / top : 0)];
    });
  }

  function draw(name, lines, format, times) {
    var figure = document.querySelector('[data-plot="' + name + '"]');
    var svg = figure.querySelector("svg");
    var top = Math.max.apply(null, lines.map(function (line) { return Math.max.apply(null, line.concat([0])); }));
    svg.setAttribute("viewBox", "0 0 " + W + " " + H);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.replaceChildren();
    [0.25, 0.5, 0.75].forEach(function (part) {
      svg.append(element("line", { x1: 0, x2: W, y1: H * part, y2: H * part, "class": "grid" }));
    });
    lines.forEach(function (line, index) {
      var known = line.length === 1 ? [line[0], line[0]] : line;
      var path = points(known, top, line.length === 1 ? null : times).map(function (point, at) {
        return (at ? "L" : "M") + point[0].toFixed(1) + " " + point[1].toFixed(1);
      }).join("");
      if (index === lines.length - 1) {
        svg.append(element("path", { d: path + "L" + (W - PAD) + " " + H + "L" + PAD + " " + H + "Z", "class": "area a" + (index + 1) }));
      }
      svg.append(element("path", { d: path, "class": "line l" + (index + 1), "vector-effect": "non-scaling-stroke" }));
    });
    var last = lines[lines.length - 1];
    var now = last.length ? format(last[last.length - 1]) : "";
    figure.querySelector(".now").textContent = now + (top ? "  ·  top " + format(top) : "");
    svg.setAttribute("aria-label", figure.querySelector("figcaption").firstChild.textContent.trim() + ": " + now + " now, " + format(top) + " at most");
  }

  function column(found, name) {
    var index = found.series.indexOf(name);
    return found.samples.map(function (sample) { return sample[index]; });
  }

  function show(found) {
    Object.keys(found.stats).forEach(function (name) {
      var cell = document.querySelector('[data-stat="' + name + '"]');
      if (!cell) return;
      cell.textContent = Math.round(found.stats[name]).toLocaleString("en");
      cell.parentElement.classList.toggle("zero", !found.stats[name]);
    });
    var due = column(found, "due"), waiting = column(found, "waiting"), retrying = column(found, "retrying");
    var copies = column(found, "duplicates"), times = column(found, "at");
    draw("traffic", [1, 2].map(function (at) { return found.traffic.map(function (row) { return row[at]; }); }), words);
    draw("failed", [found.traffic.map(function (row) { return row[3]; })], words);
    draw("backlog", [due.map(function (value, at) { return value + waiting[at] + retrying[at]; })], words, times);
    draw("age", [column(found, "oldest_due_seconds")], seconds, times);
    draw("duplicates", [copies.map(function (value) { return value - copies[0]; })], words, times);
    draw("dead", [column(found, "dead")], words, times);
  }

  function ask() {
    fetch(root + "/live.json", { credentials: "same-origin" }).then(function (answer) {
      if (!answer.ok) throw new Error(String(answer.status));
      return answer.json();
    }).then(function (found) {
      show(found);
      pulse.textContent = "live";
      pulse.classList.remove("away");
    }).catch(function () {
      pulse.textContent = "no answer";
      pulse.classList.add("away");
    }).then(function () {
      setTimeout(ask, document.hidden ? 15000 : 2000);
    });
  }
  ask();
})();
