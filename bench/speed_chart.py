# SPDX-License-Identifier: MIT
"""The chart of README, docs/speed.svg: how much of its speed a trainer keeps over slower links.

    bench/torch.sh chart > speed.jsonl && python3 bench/speed_chart.py speed.jsonl > docs/speed.svg

`make chart` is these two. A point is the ratio of a line of bench/torch.sh; its bar goes from the
least to the greatest ratio of a single pair. The last of LABELS is the lowest in the chart."""

import json
import math
import sys

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 540, 56, 284
MOST = 1.2      # the ratio at the top
LINE = 16       # from one label to the next
LABELS = {"ranks": ("Descant, shadow-easgd", "#0b6e4f"), "local": ("PyTorch local SGD, every 8", "#b8860b"),
          "ddp": ("PyTorch DDP", "#b03a2e")}


def bits(link):
    """Bits a second of 100mbit."""
    scale = {"k": 1e3, "m": 1e6, "g": 1e9}[link[-4]]
    return float(link[:-4]) * scale


def name_of(rate):
    return f"{rate / 1e9:g} Gb/s" if rate >= 1e9 else f"{rate / 1e6:g} Mb/s"


def element(name, text=None, **attributes):
    inside = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in attributes.items())
    return f"<{name}{inside}/>" if text is None else f"<{name}{inside}>{text}</{name}>"


def text(x, y, words, **attributes):
    return element("text", words, x=round(x, 1), y=round(y, 1), **attributes)


def chart(lines):
    rates = sorted({bits(line["link"]) for line in lines}, reverse=True)
    first, last = math.log(rates[0]), math.log(rates[-1])

    def x_of(rate):
        return LEFT + 20 + (RIGHT - LEFT - 40) * (math.log(rate) - first) / (last - first)

    def y_of(ratio):
        return BOTTOM - (BOTTOM - TOP) * min(ratio, MOST) / MOST

    parts = [element("rect", width=WIDTH, height=HEIGHT, fill="white"),
             text(LEFT - 36, 24, "Speed kept over slower links", font_size=16, font_weight="bold"),
             text(LEFT - 36, 42, "steps/s beside the same trainer alone; a DLRM, 2 hosts of one core",
                  fill="#555")]
    for percent in range(0, 101, 25):
        y = y_of(percent / 100)
        parts += [element("line", x1=LEFT, x2=RIGHT, y1=round(y, 1), y2=round(y, 1), stroke="#ddd"),
                  text(LEFT - 8, y + 4, f"{percent} %", text_anchor="end", fill="#555")]
    parts += [text(x_of(rate), BOTTOM + 20, name_of(rate), text_anchor="middle", fill="#555")
              for rate in rates]
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, "rate of the link between the hosts",
                      text_anchor="middle", fill="#555"))
    label_y = 0
    for part, (label, colour) in LABELS.items():
        points = sorted((line for line in lines if line["part"] == part),
                        key=lambda line: -bits(line["link"]))
        at = [(x_of(bits(line["link"])), y_of(line["ratio"])) for line in points]
        for (x, y), line in zip(at, points):
            parts += [element("line", x1=round(x, 1), x2=round(x, 1), stroke=colour,
                              y1=round(y_of(line["ratio_least"]), 1),
                              y2=round(y_of(line["ratio_most"]), 1)),
                      element("circle", cx=round(x, 1), cy=round(y, 1), r=3.5, fill=colour)]
        label_y = max(label_y + LINE, at[-1][1] + 4)
        parts += [element("polyline", fill="none", stroke=colour, stroke_width=2,
                          points=" ".join(f"{x:.1f},{y:.1f}" for x, y in at)),
                  text(RIGHT + 2, label_y, f"{label}: {100 * points[-1]['ratio']:.0f} %",
                       fill=colour)]
    return element("svg", "\n" + "\n".join(parts) + "\n", xmlns="http://www.w3.org/2000/svg",
                   viewBox=f"0 0 {WIDTH} {HEIGHT}", font_family="sans-serif", font_size=12,
                   role="img", width=WIDTH, height=HEIGHT)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print(chart([json.loads(line) for line in file]))
