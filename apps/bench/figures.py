"""Draws the figures of README.md from committed measurements: the tables of apps/bench/README.md, and the measured layouts of
tests/data/plan_validation/h200.tsv next to today's predictions of trireme-plan.

    python3 -B apps/bench/figures.py --bin build/release/bin [-o FOLDER]    default: apps/bench/figures
"""

import argparse
import html
import math
import pathlib
import re
import types

import plan_accuracy

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS, PEER, INK, GRID = "#1f6feb", "#9aa4b2", "#24292f", "#d0d7de"
PEAK = 989.4  # TFLOP/s of an H200 in bf16


class Drawing:
    """An SVG of a white page."""

    def __init__(self, width, height):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
                      f'font-family="sans-serif" font-size="12" fill="{INK}">', f'<rect width="{width}" height="{height}" fill="white"/>']

    def text(self, x, y, words, anchor="start", **more):
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{html.escape(str(words))}</text>')

    def bar(self, x, y, width, height, color):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}"/>')

    def line(self, x1, y1, x2, y2, color=GRID):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>')

    def dot(self, x, y, title, color=OURS):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}" fill-opacity="0.7"><title>{html.escape(title)}</title></circle>')

    def save(self, path):
        path.write_text("\n".join([*self.parts, "</svg>", ""]))


def table(page, column):
    """The rows of the table whose head has `column`, as dictionaries; columns of one name keep their first value."""
    lines = page.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("|") and f"| {column} |" in line)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[at:at + 30] if line.startswith("|")]
    head, rows = cells[0], []
    for line in cells[2:]:
        if len(line) != len(head):
            break
        row = {}
        for name, value in zip(head, line):
            row.setdefault(name, value)
            row[f"last {name}"] = value
        rows.append(row)
    return rows


def number(text):
    return float(re.match(r"[\d.]+", text.replace(",", ""))[0])


def speeds(page):
    """Pairs of a model, our TFLOP/s, a peer's and the peer's name."""
    found = []
    for row in table(page, "llm.c, same kind of GPU"):
        if row["llm.c, same kind of GPU"] != "–":
            found.append((f"GPT-2 {row['model'].split()[0]}", number(row["MFU"]) / 100 * PEAK,
                          number(row["llm.c, same kind of GPU"]) / 100 * PEAK, "llm.c"))
    for row in table(page, "sequence x batch"):
        found.append((f"BERT-Large, {row['sequence x batch']}", number(row["TFLOP/s"]), number(row["last TFLOP/s"]), "PyTorch, compiled"))
    start = page.index("Llama and Qwen, bf16")
    for row in table(page[start:], "sequence x batch"):
        if row["ratio"]:
            found.append((row["model"], number(row["TFLOP/s"]), number(row["last TFLOP/s"]), "PyTorch, compiled"))
    return found


def draw_speeds(rows, path):
    left, row_height, scale = 205, 40, 0.7
    drawing = Drawing(760, 60 + row_height * len(rows))
    drawing.text(12, 22, "Training on one H200 in bf16, TFLOP/s of the model's FLOPs", font_weight="bold")
    for i, (model, ours, peer, name) in enumerate(rows):
        y = 44 + row_height * i
        drawing.text(left - 8, y + 16, model, "end")
        for value, words, color, offset in [(ours, "Trireme", OURS, 0), (peer, name, PEER, 14)]:
            drawing.bar(left, y + offset, value * scale, 12, color)
            drawing.text(left + value * scale + 6, y + offset + 10, f"{value:.0f} {words}", font_size=11)
    drawing.save(path)


def predictions(bin_folder):
    """Rows of a layout's name, and its predicted and measured milliseconds and GiB."""
    options = types.SimpleNamespace(bin=bin_folder, cluster=ROOT / "inputs/clusters/h200x4.yaml")
    layouts = {row[0]: row for row in plan_accuracy.read_table(plan_accuracy.LAYOUTS)}
    rows = []
    for name, _, measured_ms, measured_bytes in plan_accuracy.read_table(ROOT / "tests/data/plan_validation/h200.tsv"):
        if name != "layout":
            ms, size, _ = plan_accuracy.predict(options, layouts[name][1], layouts[name][3])
            rows.append((name, ms, float(measured_ms), size / 2**30, float(measured_bytes) / 2**30))
    return rows


def draw_plan(rows, path):
    drawing = Drawing(760, 400)
    drawing.text(12, 22, f"{len(rows)} layouts of GPT-2 and BERT on one and two H200s: predicted before the run, and measured", font_weight="bold")
    for panel, (title, low, high, ticks, of) in enumerate([
            ("step, ms", 20, 250, (20, 50, 100, 200), lambda row: row[1:3]), ("memory of a GPU, GiB", 3, 40, (3, 5, 10, 20, 40), lambda row: row[3:5])]):
        left, top, size = 60 + 375 * panel, 44, 300

        def at(value, low=low, high=high, size=size):
            return size * math.log(value / low) / math.log(high / low)

        for tick in ticks:
            drawing.line(left + at(tick), top, left + at(tick), top + size)
            drawing.line(left, top + size - at(tick), left + size, top + size - at(tick))
            drawing.text(left + at(tick), top + size + 16, tick, "middle", font_size=11)
            drawing.text(left - 6, top + size - at(tick) + 4, tick, "end", font_size=11)
        drawing.line(left, top + size, left + size, top, PEER)
        errors = []
        for row in rows:
            predicted, measured = of(row)
            errors.append(abs(predicted / measured - 1))
            drawing.dot(left + at(measured), top + size - at(predicted), f"{row[0]}: predicted {predicted:.1f}, measured {measured:.1f}")
        drawing.text(left + size / 2, top + size + 34, f"measured {title}", "middle")
        drawing.text(left + 8, top + 16, f"predicted; mean error {100 * sum(errors) / len(errors):.1f} %, worst {100 * max(errors):.1f} %")
    drawing.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of the programs")
    parser.add_argument("-o", type=pathlib.Path, default=ROOT / "apps/bench/figures")
    words = parser.parse_args()
    words.o.mkdir(parents=True, exist_ok=True)
    draw_speeds(speeds((ROOT / "apps/bench/README.md").read_text()), words.o / "speed.svg")
    draw_plan(predictions(words.bin.resolve()), words.o / "plan.svg")


if __name__ == "__main__":
    main()
