"""Draws the picture of the README, light and dark: `python -m proof.pictures`.

Text is drawn in fonts that every system has; nothing is loaded, and nothing moves.
"""

from __future__ import annotations

from pathlib import Path
from string import Template

IMAGES = Path(__file__).parents[1] / "docs" / "images"

LIGHT = {
    "paper": "#ffffff", "ink": "#1f2328", "faint": "#656d76", "line": "#d0d7de", "box": "#f6f8fa",
    "good": "#1a7f37", "gone": "#9a6700", "mark": "#0969da",
}  # fmt: skip
DARK = {
    "paper": "#0d1117", "ink": "#e6edf3", "faint": "#8d96a0", "line": "#30363d", "box": "#161b22",
    "good": "#3fb950", "gone": "#d29922", "mark": "#4493f8",
}  # fmt: skip

ONCE = Template("""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 300" role="img" aria-label="Stripe delivered evt_1 twice. You charged once.">
<style>
text { font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 15px; fill: $ink }
.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 14px }
.faint { fill: $faint; font-size: 13px } .good { fill: $good } .gone { fill: $gone } .big { font-size: 21px; font-weight: 600 }
.box { fill: $box; stroke: $line } .card { fill: $paper; stroke: $line } .way { stroke: $mark; stroke-width: 2; fill: none }
.stop { stroke: $gone; stroke-width: 2; stroke-dasharray: 5 4; fill: none }
</style>
<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 10 5 0 10z" fill="$mark"/></marker></defs>
<rect width="860" height="300" rx="10" fill="$paper"/>
<text x="430" y="38" text-anchor="middle" class="big">Stripe delivered <tspan class="code" font-size="20">evt_1</tspan> twice. You charged once.</text>
<text x="86" y="84" text-anchor="middle" class="faint">delivered at least once</text>
<rect x="22" y="100" width="128" height="42" rx="8" class="card"/><text x="86" y="126" text-anchor="middle" class="code">evt_1</text>
<rect x="22" y="158" width="128" height="42" rx="8" class="card"/><text x="86" y="184" text-anchor="middle" class="code">evt_1 again</text>
<rect x="250" y="66" width="588" height="190" rx="12" class="box"/>
<text x="544" y="88" text-anchor="middle" class="faint">your database: one commit</text>
<path d="M152 121H276" class="way" marker-end="url(#tip)"/><path d="M152 179H262" class="stop"/>
<text x="207" y="204" text-anchor="middle" class="gone" font-size="13">duplicate</text>
<rect x="280" y="100" width="152" height="100" rx="8" class="card"/>
<text x="356" y="126" text-anchor="middle">ledger</text>
<text x="356" y="152" text-anchor="middle" class="code">stripe, evt_1</text>
<text x="356" y="182" text-anchor="middle" class="faint">knows evt_1</text>
<path d="M434 121H474" class="way" marker-end="url(#tip)"/>
<rect x="478" y="100" width="152" height="100" rx="8" class="card"/>
<text x="554" y="126" text-anchor="middle">your handler</text>
<text x="554" y="152" text-anchor="middle" class="code" font-size="13">book(message, tx)</text>
<text x="554" y="182" text-anchor="middle" class="faint">killed? rolled back</text>
<path d="M632 121H672" class="way" marker-end="url(#tip)"/>
<rect x="676" y="100" width="140" height="100" rx="8" class="card"/>
<text x="746" y="126" text-anchor="middle">payments</text>
<text x="746" y="152" text-anchor="middle" class="code good">pi_1  19.00</text>
<text x="746" y="182" text-anchor="middle" class="faint">exactly one row</text>
<text x="544" y="234" text-anchor="middle" class="faint">id, rows and "done" are committed together, or not at all</text>
<text x="430" y="284" text-anchor="middle" class="faint">webhooks, Kafka, RabbitMQ, SQS, Pub/Sub, NATS, Redis, MQTT, polled APIs, your own code</text>
</svg>
""")


def drawn() -> dict[str, str]:
    """Each file with its content."""
    return {"once.svg": ONCE.substitute(LIGHT), "once-dark.svg": ONCE.substitute(DARK)}


def main() -> None:
    """Write them."""
    for name, content in drawn().items():
        (IMAGES / name).write_text(content)


if __name__ == "__main__":
    main()
