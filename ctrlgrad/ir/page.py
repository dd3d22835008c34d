"""A graph as one page for a browser: blocks that open and close, and lines from pushes to pops. It needs no network."""

from __future__ import annotations

from html import escape

from ctrlgrad.ir.graph import Graph
from ctrlgrad.ir.svg import COLORS, STACKS, Block, Line, columns, outline, place

STYLE = """
body{font:13px/1.5 ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;margin:1.5em;color:#1c2430;background:#fff}
h1{font-size:1.15em}
#graph{position:relative;display:flex;align-items:flex-start;gap:7em;width:max-content;padding:1em 6em 1em 0}
#threads{position:absolute;left:0;top:0;width:100%;height:100%;pointer-events:none;overflow:visible}
details{border:1px solid;border-radius:6px;margin:.4em 0;padding:.2em .8em}
details>summary{cursor:pointer;font-weight:bold}
summary small{float:right;font-weight:normal;color:#6b7785;margin-left:3em}
.line{white-space:pre;color:#1c2430}.start{color:#6b7785}.condition{font-weight:bold}.result{font-style:italic}
.push,.pop{font-weight:bold;cursor:help}.lit{background:#fff3b0}
""" + "\n".join(f".order{i}{{border-color:{edge};background:{fill}88}}" for i, (edge, fill) in enumerate(COLORS))

SCRIPT = """
const graph = document.getElementById('graph'), threads = document.getElementById('threads');
const colors = COLORS, all = kind => [...graph.querySelectorAll('.' + kind)];
const stacks = [...new Set(all('push').concat(all('pop')).map(line => line.dataset.stack))];
const color = stack => colors[stacks.indexOf(stack) % colors.length];
// Where a line is shown: itself, or the closed block that it is in.
function shown(line) {
  let place = line;
  for (let box = line.closest('details'); box; box = box.parentElement.closest('details'))
    if (!box.open) place = box.querySelector('summary');
  const origin = graph.getBoundingClientRect(), at = place.getBoundingClientRect();
  const y = at.top + at.height / 2 - origin.top;
  return {left: at.left - origin.left, right: at.right - origin.left, y: y, place: place};
}
function draw() {
  let text = '';
  for (const push of all('push')) for (const pop of all('pop')) {
    if (push.dataset.stack !== pop.dataset.stack) continue;
    const a = shown(push), b = shown(pop);
    if (a.place === b.place) continue;
    const beside = b.left > a.right, x = beside ? b.left - 3 : b.right + 3, bend = beside ? (x - a.right) / 2 : 60;
    const path = `M${a.right + 3} ${a.y}C${a.right + bend} ${a.y} ${beside ? x - bend : x + bend} ${b.y} ${x} ${b.y}`;
    text += `<path d="${path}" fill="none" stroke="${color(push.dataset.stack)}" stroke-width="1.6"/>`;
  }
  threads.innerHTML = text;
}
for (const line of all('push').concat(all('pop'))) {
  line.style.color = color(line.dataset.stack);
  const light = on => [...all('push'), ...all('pop')].filter(other => other.dataset.stack === line.dataset.stack)
    .forEach(other => other.classList.toggle('lit', on));
  line.addEventListener('mouseenter', () => light(true));
  line.addEventListener('mouseleave', () => light(false));
}
function setAll(open) { for (const box of graph.querySelectorAll('details')) box.open = open; }
document.getElementById('open').onclick = () => setAll(true);
document.getElementById('close').onclick = () => setAll(false);
graph.addEventListener('toggle', draw, true);
addEventListener('resize', draw);
draw();
""".replace("COLORS", str(list(STACKS)))


def format_page(graph: Graph) -> str:
    """The text of an HTML page on a graph."""
    whole = outline(graph)
    texts = [[text for part in column for text in _html(part)] for column in columns(whole)]
    drawn = "\n".join("\n".join(["<div>", *column, "</div>"]) for column in texts)
    title = escape(whole.title)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>{STYLE}</style>
<h1>{title}</h1>
<p><button id="open">open all</button> <button id="close">close all</button></p>
<div id="graph"><svg id="threads" xmlns="http://www.w3.org/2000/svg"></svg>
{drawn}
</div>
<script>{SCRIPT}</script>
</html>
"""


def _html(part: Line | Block) -> list[str]:
    if isinstance(part, Line):
        stack = (
            "" if part.stack is None else f' data-stack="{escape(part.stack)}" title="the stack {escape(part.stack)}"'
        )
        return [f'<div class="line {part.role}"{stack}>{escape(part.text)}</div>']
    source = "" if part.source is None else f"<small>{escape(place(part.source))}</small>"
    is_open = "" if part.is_folded else " open"
    inside = [text for inner in part.parts for text in _html(inner)]
    order = min(part.order, len(COLORS) - 1)
    return [
        f'<details class="order{order}"{is_open}><summary>{escape(part.title)}{source}</summary>',
        *inside,
        "</details>",
    ]
