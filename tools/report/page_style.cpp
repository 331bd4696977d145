// Style sheet and script of the page. Colours of the categories are those of M. Okabe and K. Ito
// (Color Universal Design, 2008) and, where their eight run out, of P. Tol's muted scheme: both can
// be told apart with any common colour vision. No meaning hangs on colour alone.
#include "tools/report/pictures.h"

namespace snug {

const char* page_style() {
  return R"css(
:root{color-scheme:light dark;--page:#fcfcfa;--panel:#f1f1ee;--ink:#1c1c1a;--soft:#5c5c57;
--rule:#d6d6d0;--grid:#e2e2dd;--good:#00694e;--bad:#a63c00;
--c0:#0072b2;--c1:#56b4e9;--c2:#e69f00;--c3:#009e73;--c4:#777777;--c5:#aaaaaa;--c6:#44aa99;
--c7:#cc79a7;--c8:#882255;--c9:#d55e00;--c10:#f0e442;--c11:#332288;--c12:#8a5a14;
--s0:#0072b2;--s1:#d55e00;--s2:#00805d;--s3:#a3457a}
@media (prefers-color-scheme:dark){:root{--page:#171716;--panel:#232321;--ink:#ececea;
--soft:#a9a9a3;--rule:#454541;--grid:#30302d;--good:#4fcfa5;--bad:#ff9a5c;
--c0:#2a8fd0;--c4:#8c8c8c;--c8:#b8507f;--c11:#7f70d8;--c12:#b98334;
--s0:#56b4e9;--s1:#ff8a3d;--s2:#3fc79d;--s3:#e39bc3}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 20px 64px;max-width:1160px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:24px;line-height:1.25;margin:0 0 4px}
h2{font-size:18px;margin:44px 0 4px}
p{margin:6px 0}
.lead{font-size:17px;margin:0 0 12px}
.note,.axis,.sub{color:var(--soft);font-size:13px}
.axis{text-align:center;margin:28px 0 6px}
.sub{margin:0 0 12px;max-width:80ch}
.verdict{border-left:4px solid var(--soft);background:var(--panel);padding:8px 14px;margin:12px 0;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.verdict.good{border-color:var(--good)}.verdict.bad{border-color:var(--bad)}
.verdict b{color:var(--soft)}.verdict.good b{color:var(--good)}.verdict.bad b{color:var(--bad)}
.plot{position:relative;margin:12px 8px 34px 78px}
.plot svg{position:absolute;left:0;top:0;width:100%;height:100%;overflow:visible}
.plot.stack{margin-top:76px;cursor:crosshair}
.plot.map svg{background:var(--panel)}
.plot:focus-visible{outline:2px solid var(--s0);outline-offset:3px}
.grid{stroke:var(--grid);stroke-width:1;vector-effect:non-scaling-stroke}
.yt,.xt,.seg,.lv,.name,.peak{position:absolute;font-size:12px;line-height:16px;white-space:nowrap;
color:var(--soft);pointer-events:none}
.yt{right:100%;margin-right:8px;transform:translateY(-50%)}
.xt{top:100%;margin-top:6px;transform:translateX(-50%)}
.seg{top:100%;margin-top:6px;text-align:center;overflow:hidden;text-overflow:ellipsis;padding:0 4px;
color:var(--ink);pointer-events:auto}
.lv{color:var(--ink);background:var(--page);padding:0 4px;transform:translateY(-100%);opacity:.92}
.lv.at-right{right:0}.lv.at-left{left:0}.lv.at-middle{left:42%}.lv.below{transform:none}
.name{left:8px;transform:translateY(-50%);color:#fff;text-shadow:0 0 3px #000,0 0 2px #000}
.peak{bottom:100%;margin-bottom:8px;color:var(--ink);white-space:normal;max-width:100%}
.peak.left{text-align:right;padding-left:20px}
.level,.cut,.peakline,.cursor{vector-effect:non-scaling-stroke;stroke-width:1.5;stroke:var(--ink);
pointer-events:none}
.level.budget{stroke:var(--bad);stroke-dasharray:8 4}
.level.bound{stroke-dasharray:2 3}
.cut{stroke:var(--page);stroke-width:2}
.peakline{stroke-dasharray:4 3}
.cursor{stroke-width:1;visibility:hidden}
.odd{fill-opacity:.72}
.edge{stroke:var(--page);stroke-width:1;vector-effect:non-scaling-stroke}
rect:hover{fill-opacity:.7}
.plot.map:focus-visible,.plot.stack:focus-visible{outline-width:3px}
.mark{fill:none;stroke:var(--ink);stroke-width:2.5;vector-effect:non-scaling-stroke;
visibility:hidden;pointer-events:none;paint-order:stroke}
.about{min-height:112px;background:var(--panel);border-left:4px solid var(--rule);padding:8px 14px;
margin:0 0 12px;font-size:13.5px;white-space:pre-line;overflow-wrap:anywhere;
font-variant-numeric:tabular-nums}
.about::first-line{font-weight:600}
.lane0{fill:var(--s0)}.lane1{fill:var(--s1)}.lane2{fill:var(--s2)}.lane3{fill:var(--s3)}
.dot.here{background:var(--s1);width:11px;height:11px;margin:-5.5px 0 0 -5.5px}
.lv.here{background:none;font-weight:600}
.curve{fill:none;stroke-width:2;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s2{stroke:var(--s2)}.s3{stroke:var(--s3)}
.dot{position:absolute;width:7px;height:7px;margin:-3.5px 0 0 -3.5px;border-radius:50%}
.dot.s0,.line.s0{background:var(--s0)}.dot.s1,.line.s1{background:var(--s1)}
.dot.s2,.line.s2{background:var(--s2)}.dot.s3,.line.s3{background:var(--s3)}
.legline{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:5 4;vector-effect:non-scaling-stroke}
.leg{display:inline-block;height:13px;border-left:2px dashed var(--soft);margin:0 8px 0 4px;
vertical-align:middle}
.ring{position:absolute;width:15px;height:15px;margin:-7.5px 0 0 -7.5px;border-radius:50%;
border:2.5px solid var(--ink)}
.ring.still{display:inline-block;position:static;margin:0 6px 0 0;vertical-align:middle}
.d1{stroke-dasharray:9 4}.d2{stroke-dasharray:3 3}.d3{stroke-dasharray:12 3 3 3}
.line.d1,.line.d2,.line.d3{background:none;border-top:3px dashed}
.line.d2{border-top-style:dotted}.line.d3{border-top-style:double}
.line.s0{border-color:var(--s0)}.line.s1{border-color:var(--s1)}
.line.s2{border-color:var(--s2)}.line.s3{border-color:var(--s3)}
.key{display:inline-block;margin-left:14px;font-weight:normal;font-size:13px}
.line{display:inline-block;width:18px;height:3px;margin-right:6px;vertical-align:middle}
.chart{margin:18px 0 0}
figcaption{font-weight:600;font-size:14px}
.small{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:0 20px}
.readout{margin:4px 0 20px}
.readout p{font-size:14px;min-height:21px;overflow-wrap:anywhere}
.readout ul{list-style:none;margin:6px 0;padding:0;display:grid;
grid-template-columns:repeat(auto-fill,minmax(230px,1fr));gap:2px 24px}
.readout li{display:grid;grid-template-columns:14px 1fr auto;gap:8px;align-items:center;
font-size:14px;border-bottom:1px solid var(--grid)}
.sw{width:14px;height:14px;border-radius:2px}
.sum{font-weight:600}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;margin:8px 0}
caption{text-align:left;color:var(--soft);font-size:13px;padding-bottom:4px}
th,td{padding:4px 14px 4px 0;border-bottom:1px solid var(--grid);text-align:left;
vertical-align:baseline;font-weight:normal}
thead th{color:var(--soft);font-size:13px;border-color:var(--rule);vertical-align:bottom}
th.num,td.num{text-align:right}
tr.sum th,tr.sum td{font-weight:600}
.words{min-width:180px}
.bar{white-space:nowrap;min-width:130px}
.fill{display:inline-block;height:11px;margin-right:6px;background:var(--soft);border-radius:0 2px 2px 0}
details{margin:10px 0}
summary{cursor:pointer;font-size:14px;color:var(--soft)}
pre{background:var(--panel);padding:12px 14px;white-space:pre-wrap;overflow-wrap:anywhere;
font:13px/1.5 ui-monospace,"Cascadia Mono",Menlo,Consolas,monospace}
footer{margin-top:48px;color:var(--soft);font-size:13px;overflow-wrap:anywhere}
.c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}.c4{fill:var(--c4)}
.c5{fill:var(--c5)}.c6{fill:var(--c6)}.c7{fill:var(--c7)}.c8{fill:var(--c8)}.c9{fill:var(--c9)}
.c10{fill:var(--c10)}.c11{fill:var(--c11)}.c12{fill:var(--c12)}
.sw.c0,.fill.c0{background:var(--c0)}.sw.c1,.fill.c1{background:var(--c1)}
.sw.c2,.fill.c2{background:var(--c2)}.sw.c3,.fill.c3{background:var(--c3)}
.sw.c4,.fill.c4{background:var(--c4)}.sw.c5,.fill.c5{background:var(--c5)}
.sw.c6,.fill.c6{background:var(--c6)}.sw.c7,.fill.c7{background:var(--c7)}
.sw.c8,.fill.c8{background:var(--c8)}.sw.c9,.fill.c9{background:var(--c9)}
.sw.c10,.fill.c10{background:var(--c10)}.sw.c11,.fill.c11{background:var(--c11)}
.sw.c12,.fill.c12{background:var(--c12)}
@media (max-width:760px){body{padding:16px 12px 48px}.plot{margin-left:70px}
.plot.stack{margin-top:112px}.peak{left:0!important;right:0!important;text-align:left;padding:0}
.lv.at-left,.lv.at-middle{left:auto;right:0;transform:none}
.lv.below{left:0;right:auto;margin-top:16px}.peak.left{text-align:left}
.words,.scroll td:last-child:not(.num){min-width:240px}}
@media (max-width:460px){.plot.stack{margin-top:176px}}
@media print{.plot,tr{break-inside:avoid}}
)css";
}

const char* page_script() {
  // First: moves a cursor over the step and fills the readout: pointer, arrow keys, Page Up and
  // Down, Home and End; Escape returns to the peak. Second: walks from tensor to tensor in the map.
  // The nearest box in the direction of the key is the next, one that lies beside it before others.
  return R"js(
(function () {
  var source = document.getElementById("step"), stack = document.getElementById("stack");
  if (!source || !stack) return;
  var data = JSON.parse(source.textContent);
  var cursors = Array.prototype.slice.call(document.querySelectorAll(".cursor"));
  var where = document.getElementById("where"), sumCell = document.getElementById("vsum");
  var runs = data.runs, at = data.peak;
  var atPeak = {where: where.textContent, sum: sumCell.textContent, cells: []};
  data.cats.forEach(function (c) {
    atPeak.cells.push(document.getElementById("v" + c).textContent);
  });
  function human(b) {
    var units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], u = 0;
    while (b >= 1024 && u < 5) { b /= 1024; ++u; }
    return (u ? b.toFixed(2) : b) + " " + units[u];
  }
  function runAt(column) {
    var low = 0, high = runs.length - 1;
    while (low < high) {
      var middle = (low + high + 1) >> 1;
      if (runs[middle][0] <= column) low = middle; else high = middle - 1;
    }
    return runs[low];
  }
  function show(column) {
    at = Math.max(0, Math.min(data.n - 1, column));
    var run = runAt(at), sum = 0, x = String((at + 0.5) * 1000 / data.n);
    data.cats.forEach(function (c, i) {
      sum += run[i + 2];
      document.getElementById("v" + c).textContent = human(run[i + 2]);
    });
    sumCell.textContent = human(sum);
    where.textContent = "At the cursor: " + data.names[run[1]];
    cursors.forEach(function (cursor) {
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
    });
    stack.setAttribute("aria-valuenow", String(at));
    stack.setAttribute("aria-valuetext", data.names[run[1]] + ", " + human(sum));
  }
  function rest() {
    at = data.peak;
    cursors.forEach(function (cursor) { cursor.style.visibility = "hidden"; });
    where.textContent = atPeak.where;
    sumCell.textContent = atPeak.sum;
    data.cats.forEach(function (c, i) {
      document.getElementById("v" + c).textContent = atPeak.cells[i];
    });
    stack.setAttribute("aria-valuenow", String(at));
    stack.setAttribute("aria-valuetext", atPeak.where + ", " + atPeak.sum);
  }
  stack.tabIndex = 0;
  stack.setAttribute("role", "slider");
  stack.setAttribute("aria-label", "moment of the step");
  stack.setAttribute("aria-valuemin", "0");
  stack.setAttribute("aria-valuemax", String(data.n - 1));
  rest();
  stack.addEventListener("pointermove", function (event) {
    var box = stack.getBoundingClientRect();
    show(Math.floor((event.clientX - box.left) / box.width * data.n));
  });
  stack.addEventListener("pointerleave", rest);
  stack.addEventListener("blur", rest);
  stack.addEventListener("keydown", function (event) {
    var moves = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -20, PageUp: 20};
    if (event.key in moves) show(at + moves[event.key]);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(data.n - 1);
    else if (event.key === "Escape") rest();
    else return;
    event.preventDefault();
  });
})();
(function () {
  var map = document.getElementById("map"), about = document.getElementById("about");
  var mark = document.getElementById("mark");
  if (!map || !about || !mark) return;
  var boxes = [], at = -1, rest = about.textContent;
  Array.prototype.forEach.call(map.querySelectorAll("rect"), function (rect) {
    var title = rect.querySelector("title");
    if (!title) return;
    rect.box = boxes.length;
    boxes.push({text: title.textContent, x: +rect.getAttribute("x"), y: +rect.getAttribute("y"),
      w: +rect.getAttribute("width"), h: +rect.getAttribute("height")});
    rect.removeChild(title);
  });
  if (!boxes.length) return;
  function choose(i) {
    var b = boxes[at = i];
    about.textContent = b.text;
    mark.setAttribute("x", b.x);
    mark.setAttribute("y", b.y);
    mark.setAttribute("width", b.w);
    mark.setAttribute("height", b.h);
    mark.style.visibility = "visible";
  }
  function leave() {
    at = -1;
    about.textContent = rest;
    mark.style.visibility = "hidden";
  }
  function gap(a, la, b, lb) { return Math.max(0, b - (a + la), a - (b + lb)); }
  function next(dx, dy) {
    var c = boxes[at], best = -1, least = Infinity;
    boxes.forEach(function (b, i) {
      if (i === at) return;
      var ahead = dx > 0 ? b.x - (c.x + c.w) : dx < 0 ? c.x - (b.x + b.w)
        : dy > 0 ? b.y - (c.y + c.h) : c.y - (b.y + b.h);
      if (ahead < -0.05) return;
      var aside = dx ? gap(c.y, c.h, b.y, b.h) : gap(c.x, c.w, b.x, b.w);
      var cost = ahead + 4 * aside;
      if (cost < least) { least = cost; best = i; }
    });
    return best;
  }
  map.tabIndex = 0;
  map.setAttribute("role", "application");
  map.setAttribute("aria-roledescription", "map of tensors");
  map.setAttribute("aria-label", "address map: arrow keys walk from tensor to tensor, Home the " +
    "largest, Escape leaves");
  map.setAttribute("aria-describedby", "about");
  map.addEventListener("pointermove", function (event) {
    var i = event.target.box;
    if (i !== undefined && i !== at) choose(i);
  });
  map.addEventListener("pointerleave", function () {
    if (document.activeElement !== map) leave();
  });
  map.addEventListener("focus", function () { if (at < 0) choose(0); });
  map.addEventListener("blur", leave);
  map.addEventListener("keydown", function (event) {
    var moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    if (event.key in moves) {
      var i = at < 0 ? 0 : next(moves[event.key][0], moves[event.key][1]);
      if (i >= 0) choose(i);
    } else if (event.key === "Home") choose(0);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  });
})();
)js";
}

}  // namespace snug
