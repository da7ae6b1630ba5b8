"""Curves as an SVG, small enough to keep in the repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 380, 70, 50, 44, 20
LETTER = 6.6  # about as wide as one
COLOURS = ("#1b6ca8", "#c1440e", "#4c8c2b", "#7a4ca0")


def curves(at: Sequence[float], series: Mapping[str, Sequence[float]], *, x: str, y: str) -> str:
    """One curve for each series over the same points; ``x`` and ``y`` say what the axes are."""
    most = max(max(values) for values in series.values())

    def place(across: float, up: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP
        return LEFT + wide * across / max(at), HEIGHT - BOTTOM - high * up / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tick in range(5):
        _, height = place(0, most * tick / 4)
        parts.append(f'<path d="M{LEFT} {height:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        value = f"{most * tick / 4:.3g}"
        parts.append(f'<text x="{LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{value}</text>')
        across, floor = place(max(at) * tick / 4, 0)
        value = f"{max(at) * tick / 4:.4g}"
        parts.append(f'<text x="{across:.1f}" y="{floor + 18:.1f}" text-anchor="middle">{value}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{x}</text>')
    centre = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text transform="translate(16 {centre}) rotate(-90)" text-anchor="middle">{y}</text>')
    label_at = float(LEFT)
    for number, (name, values) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [place(*point) for point in zip(at, values, strict=True)]
        line = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3" fill="{colour}"/>' for across, up in points]
        parts.append(f'<text x="{label_at:.0f}" y="{TOP - 22}" fill="{colour}">{name}</text>')
        label_at += LETTER * (len(name) + 3)
    return "\n".join([*parts, "</svg>\n"])
