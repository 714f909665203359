"""Records the demo as an animated picture for the README: `python -m proof.recording` (a quarter of a minute).

The picture is SVG with an animation in CSS: each frame is visible for the time it was on the screen. Nothing is loaded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from onceward.demo.screen import Line, picture, summary
from onceward.demo.show import Plan, Scene, play

FILE = Path(__file__).parents[1] / "docs" / "images" / "demo.svg"
WIDTH, LINE, TOP, LEFT = 780, 20, 46, 20
LAST_SECONDS, FRAME_SECONDS = 6.0, 0.4
STYLES = {"good": "#3fb950", "bad": "#ff7b72", "dim": "#8b949e", "bold": "#ffffff"}
Frame = tuple[float, Sequence[Line]]


def recorded(plan: Plan) -> list[Frame]:
    """What the demo shows, and when."""
    frames: list[Frame] = []

    def show(scene: Scene) -> None:
        if not frames or scene.seconds - frames[-1][0] >= FRAME_SECONDS:
            frames.append((scene.seconds, picture(plan, scene)))

    with tempfile.TemporaryDirectory() as folder:
        result = play(plan, Path(folder), show)
    seconds, lines = frames[-1]
    frames.append((seconds + FRAME_SECONDS, [*lines, [], *summary(plan, result), [(result.verdict.line, "")]]))
    return frames


def drawn(frames: Sequence[Frame]) -> str:
    """The frames as one picture."""
    ends = [*(start for start, _ in frames[1:]), frames[-1][0] + LAST_SECONDS]
    total = ends[-1] - frames[0][0]
    height = TOP + LINE * max(len(lines) for _, lines in frames) + 10
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'aria-label="The demo: a careless consumer books payments twice, onceward does not">'
        ),
        "<style>text{font:13.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#c9d1d9;white-space:pre}",
        ".f{opacity:0}",
    ]
    for number, ((start, _), end) in enumerate(zip(frames, ends, strict=True)):
        begin, stop = (100 * (moment - frames[0][0]) / total for moment in (start, end))
        steps = f"0%{{opacity:0}}{begin:.2f}%{{opacity:1}}{stop:.2f}%{{opacity:{int(stop >= 100)}}}"  # noqa: PLR2004 - percent
        parts.append(f"@keyframes k{number}{{{steps if begin else steps.removeprefix('0%{opacity:0}')}}}")
        parts.append(f"#f{number}{{animation:k{number} {total:.1f}s step-end infinite}}")
    # Where nothing moves, such as on paper, the end is shown.
    parts.append(
        f"@media (prefers-reduced-motion:reduce){{.f{{animation:none!important}}#f{len(frames) - 1}{{opacity:1}}}}"
    )
    parts.append(f'</style><rect width="{WIDTH}" height="{height}" rx="10" fill="#0d1117"/>')
    parts += [
        f'<circle cx="{20 + 18 * n}" cy="18" r="5.5" fill="{c}"/>'
        for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    ]
    parts.append(f'<text x="{WIDTH / 2}" y="23" text-anchor="middle">$ make demo</text>')
    for number, (_, lines) in enumerate(frames):
        rows = "".join(_row(place, line) for place, line in enumerate(lines) if line)
        parts.append(f'<g id="f{number}" class="f">{rows}</g>')
    return "\n".join(parts) + "</svg>\n"


def _row(place: int, line: Line) -> str:
    spans = "".join(
        f'<tspan fill="{STYLES[style]}">{escape(text)}</tspan>' if style else escape(text) for text, style in line
    )
    return f'<text x="{LEFT}" y="{TOP + LINE * place + 8}" xml:space="preserve">{spans}</text>'


def main() -> None:
    """Record it."""
    FILE.write_text(drawn(recorded(Plan())))


if __name__ == "__main__":
    main()
