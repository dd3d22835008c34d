"""A recording as one page for a browser: bytes of each tier, and what each stream did; it needs no network.

Drag over the drawing to look closer, double click to see all again; what is under the pointer is said below it.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from ctrlgrad.memory.profile.plot import COLORS
from ctrlgrad.memory.profile.records import Recording
from ctrlgrad.memory.profile.trace import timeline
from ctrlgrad.memory.profile.usage import usages
from ctrlgrad.memory.sizes import show_size

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>TITLE</title>
<style>
body{font:13px/1.5 system-ui,sans-serif;margin:1.5em;color:#1c2430;background:#fff}
h1{font-size:1.2em}svg{display:block;width:100%;cursor:crosshair;user-select:none}
svg text{font-size:12px;fill:#1c2430}.axis{stroke:#c9d1da}.limit{stroke:#111;stroke-dasharray:5 4}
#said{white-space:pre-wrap;font-family:ui-monospace,Menlo,Consolas,monospace;min-height:4em}
.key{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em;vertical-align:-.1em}
</style>
<h1>TITLE</h1>
<svg id="drawing" xmlns="http://www.w3.org/2000/svg"></svg>
<p id="keys"></p>
<p id="said">Drag to look closer, double click to see all again.</p>
<script>
const data = DATA;
const svg = document.getElementById('drawing'), said = document.getElementById('said');
const LEFT = 110, RIGHT = 20, TIER = 130, ROW = 26, GAP = 34;
let from = 0, to = data.end, begun = null;
const height = data.tiers.length * (TIER + GAP) + data.rows.length * ROW + 50;
const unit = s => s === 0 ? '0' : s >= 1 ? s.toPrecision(4) + ' s' : s >= 1e-3 ? (s * 1e3).toPrecision(4) + ' ms' :
  (s * 1e6).toPrecision(4) + ' us';
const size = n => { let i = 0; while (n >= 1024 && i < 4) { n /= 1024; i++; }
  return +n.toPrecision(4) + ' ' + ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'][i]; };
const safe = text => String(text).replace(/[&<>"]/g, c => '&#' + c.charCodeAt(0) + ';');
const width = () => svg.getBoundingClientRect().width - LEFT - RIGHT;
const x = t => LEFT + (t - from) / (to - from) * width();
const time = px => from + Math.min(Math.max((px - LEFT) / width(), 0), 1) * (to - from);
function at(samples, t) {
  let n = 0;
  for (const [when, bytes] of samples) { if (when > t) break; n = bytes; }
  return n;
}
function draw() {
  svg.setAttribute('height', height);
  let text = '', y = 20;
  for (const tier of data.tiers) {
    const shown = tier.limit !== null && tier.limit < 4 * tier.peak;
    const top = Math.max(tier.peak, shown ? tier.limit : 0) * 1.05;
    const h = n => y + TIER - n / top * TIER;
    let path = `M${LEFT} ${h(at(tier.samples, from))}`;
    for (const [t, n] of tier.samples) if (t >= from && t <= to) path += `H${x(t)}V${h(n)}`;
    path += `H${x(to)}`;
    text += `<path class="tier" d="${path}V${y + TIER}H${LEFT}Z" fill="#4878a8" opacity=".3"/>` +
      `<path d="${path}" fill="none" stroke="#4878a8"/>` +
      `<line class="axis" x1="${LEFT}" x2="${x(to)}" y1="${y + TIER}" y2="${y + TIER}"/>` +
      `<text x="${LEFT}" y="${y - 6}">${safe(tier.title)}</text>` +
      `<text x="${LEFT - 6}" y="${h(tier.peak) + 4}" text-anchor="end">${size(tier.peak)}</text>`;
    if (shown) text += `<line class="limit" x1="${LEFT}" x2="${x(to)}" y1="${h(tier.limit)}" y2="${h(tier.limit)}"/>`;
    y += TIER + GAP;
  }
  data.rows.forEach((row, i) => {
    text += `<text x="${LEFT - 6}" y="${y + i * ROW + 16}" text-anchor="end">${safe(row)}</text>`;
  });
  data.parts.forEach((part, i) => {
    if (part.end < from || part.start > to) return;
    const a = x(Math.max(part.start, from)), b = x(Math.min(part.end, to));
    text += `<rect class="part" data-part="${i}" x="${a}" y="${y + data.rows.indexOf(part.row) * ROW + 2}" ` +
      `width="${Math.max(b - a, .5)}" height="${ROW - 6}" fill="${data.colors[part.category]}"/>`;
  });
  y += data.rows.length * ROW + 16;
  for (let i = 0; i <= 4; i++) {
    const t = from + (to - from) * i / 4;
    text += `<text x="${x(t)}" y="${y}" text-anchor="${i === 4 ? 'end' : i ? 'middle' : 'start'}">${unit(t)}</text>`;
  }
  svg.innerHTML = text + '<rect id="chosen" y="0" height="' + height + '" width="0" fill="#fdd835" opacity=".35"/>';
}
const place = event => event.clientX - svg.getBoundingClientRect().left;
svg.addEventListener('mousedown', event => { begun = place(event); });
svg.addEventListener('mousemove', event => {
  const px = place(event), t = time(px), part = data.parts[event.target.dataset.part];
  const bytes = data.tiers.map(tier => `${tier.name}: ${size(at(tier.samples, t))}`).join(', ');
  said.textContent = `${unit(t)}   ${bytes}` +
    (part ? `\\n${part.name}, ${part.category}: ${unit(part.start)} to ${unit(part.end)}\\n${part.details}` : '');
  if (begun !== null) {
    const chosen = document.getElementById('chosen');
    chosen.setAttribute('x', Math.min(begun, px)); chosen.setAttribute('width', Math.abs(px - begun));
  }
});
svg.addEventListener('mouseup', event => {
  const a = time(Math.min(begun, place(event))), b = time(Math.max(begun, place(event)));
  if (begun !== null && Math.abs(place(event) - begun) > 4 && b > a) { from = a; to = b; draw(); }
  begun = null;
});
svg.addEventListener('dblclick', () => { from = 0; to = data.end; draw(); });
addEventListener('resize', draw);
document.getElementById('keys').innerHTML = Object.keys(data.colors)
  .filter(category => data.parts.some(part => part.category === category))
  .map(category => `<span class="key" style="background:${data.colors[category]}"></span>${safe(category)}`).join('');
draw();
</script>
</html>
"""


def format_page(recording: Recording) -> str:
    """The text of the page."""
    title = escape(f"Memory: {', '.join(dict.fromkeys(recording.devices.values())) or 'nothing was recorded'}")
    # Within a script "</script" would end it, and "<!--" before a "<script" would keep it from ending.
    data = json.dumps(_data(recording)).replace("<", "\\u003c")
    # In one step: a name in the title may read DATA.
    return re.sub("TITLE|DATA", lambda found: {"TITLE": title, "DATA": data}[found[0]], PAGE)


def write_page(recording: Recording, path: Path) -> None:
    """Write the page."""
    path.write_text(format_page(recording), encoding="utf-8")


def _data(recording: Recording) -> dict[str, Any]:
    drawn = timeline(recording)
    tiers = [usage for usage in usages(recording) if usage.peak]
    ends = [part.end for part in drawn.parts] + [usage.samples[-1].time for usage in tiers]
    return {
        "end": max(max(ends, default=drawn.start) - drawn.start, 1e-9),
        "rows": drawn.rows(),
        "colors": COLORS,
        "tiers": [
            {
                "name": usage.name,
                "title": f"{usage.name}: at most {show_size(usage.peak)}, "
                + ("no limit" if usage.limit is None else f"limit {show_size(usage.limit)}"),
                "limit": usage.limit,
                "peak": usage.peak,
                "samples": [(sample.time - drawn.start, sample.nbytes) for sample in usage.samples],
            }
            for usage in tiers
        ],
        "parts": [
            {
                "row": part.row,
                "start": part.start - drawn.start,
                "end": part.end - drawn.start,
                "name": part.name,
                "category": part.category,
                "details": ", ".join(f"{key}: {value}" for key, value in part.details.items()),
            }
            for part in drawn.parts
        ],
    }


__all__ = ["format_page", "write_page"]
