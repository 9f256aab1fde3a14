"""Draws the figures of the pages from committed measurements: speed.svg and scaling.svg from the tables of apps/bench/README.md, plan.svg
from the measured layouts of tests/data/plan_validation/h200.tsv next to today's predictions of trireme-plan, losses.svg from losses.csv
(tests/regression/training/pytorch_curve.py); schedules.svg has the steps that trireme-plan simulates.

    python3 -B apps/bench/figures.py --bin build/release/bin [-o FOLDER]    default: apps/bench/figures
"""

import argparse
import csv
import html
import itertools
import json
import math
import pathlib
import re
import subprocess
import tempfile
import types

import plan_accuracy

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS, PEER, INK, GRID = "#1f6feb", "#9aa4b2", "#24292f", "#d0d7de"
COLORS = ["#1f6feb", "#d1242f", "#2da44e", "#bf8700", "#8250df", "#0a7ea4"]
PASSES = {"forward-compute": "#79b8ff", "backward-compute": "#1f6feb", "input-gradient": "#1f6feb", "weight-gradient": "#0b3d91"}
PIPELINE = ROOT / "inputs/gpt2-345m-pipeline.yaml"
SCHEDULES = [("1f1b", ["parallel.schedule=1f1b", "parallel.interleave=1"]), ("interleaved, 3 chunks of layers a stage", []),
             ("zero-bubble", ["parallel.schedule=zero-bubble", "parallel.interleave=1"])]
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

    def curve(self, points, color, dash=None):
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.5"{more}/>')

    def dot(self, x, y, title, color=OURS):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}" fill-opacity="0.7"><title>{html.escape(title)}</title></circle>')

    def save(self, path):
        path.write_text("\n".join([*self.parts, "</svg>", ""]))


def table(page, column):
    """The rows of the table whose head has `column`, as dictionaries; columns of one name keep their first value."""
    lines = page.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("|") and f"| {column} |" in line)
    own = itertools.takewhile(lambda line: line.startswith("|"), lines[at:])
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in own]
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
        if row["llm.c, same kind of GPU"][:1].isdigit():
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
    drawing.text(12, 22, f"{len(rows)} layouts of GPT-2 and BERT on one and two H200s: predicted by trireme-plan, and measured", font_weight="bold")
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


def scalings(page):
    """Rows of what runs, on how many GPUs, and its rate per GPU in percent of one GPU's."""
    return [(row["run"], row["GPUs"], number(row["rate per GPU, of one GPU's"]), row["by"]) for row in table(page, "rate per GPU, of one GPU's")]


def draw_scaling(rows, path):
    left, row_height, scale = 330, 26, 3.2
    drawing = Drawing(760, 50 + row_height * len(rows))
    drawing.text(12, 22, "Rate per GPU, percent of one GPU's", font_weight="bold")
    for i, (run, gpus, percent, name) in enumerate(rows):
        y = 38 + row_height * i
        drawing.text(left - 8, y + 13, f"{run}: {gpus} GPUs", "end", font_size=11)
        drawing.bar(left, y, percent * scale, 18, OURS if name == "Trireme" else PEER)
        drawing.text(left + percent * scale + 6, y + 13, f"{percent:g} {'' if name == 'Trireme' else name}", font_size=11)
    drawing.save(path)


def draw_losses(path):
    with (ROOT / "apps/bench/figures/losses.csv").open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    names = [name for name in rows[0] if name not in ("iteration", "serial")]
    drawing = Drawing(760, 400)
    drawing.text(12, 22, "A small GPT-2 in fp32 from the same weights and batches: PyTorch, one rank, layouts of ranks", font_weight="bold")
    last = rows[-1]["iteration"]
    for panel, title in enumerate(["loss", "difference from one rank, relative"]):
        left, top, size = 60 + 375 * panel, 44, 300
        ticks = (5, 6, 7) if panel == 0 else (-9, -8, -7, -6, -5)

        def at(row, value, left=left, top=top, size=size, low=ticks[0], high=ticks[-1] + 1):
            return left + size * row["iteration"] / last, top + size - size * (value - low) / (high - low)

        for tick in ticks:
            y = at(rows[0], tick)[1]
            drawing.line(left, y, left + size, y)
            drawing.text(left - 6, y + 4, tick if panel == 0 else f"1e{tick}", "end", font_size=11)
        for tick in range(0, int(last) + 1, int(last) // 4):
            drawing.text(left + size * tick / last, top + size + 16, tick, "middle", font_size=11)
        drawing.text(left + size / 2, top + size + 34, f"iteration ({title})", "middle")
        if panel == 0:
            for i, name in enumerate(["serial", *names]):
                drawing.curve([at(row, row[name]) for row in rows[::5]], ([INK] + COLORS)[i], f"{3 + 2 * i} {3 + i}" if i else None)
            continue
        # The largest difference of each twentieth of the run: single iterations may agree in all bits.
        width = max(len(rows) // 20, 1)
        for i, name in enumerate(names):
            points = []
            for start in range(0, len(rows) - width + 1, width):
                part = rows[start:start + width]
                apart = max(abs(row[name] / row["serial"] - 1) for row in part)
                points.append(at(part[-1], max(math.log10(apart), ticks[0]) if apart else ticks[0]))
            drawing.curve(points, COLORS[i])
            largest = max(abs(row[name] / row["serial"] - 1) for row in rows)
            drawing.text(left + 8, top + 12 + 14 * i, f"{name.replace('parallel.', '').replace(',', ', ')}: at most {largest:.0e}", font_size=10, fill=COLORS[i])
    drawing.save(path)


def simulated(bin_folder, words, path):
    """The passes of a simulated step, and its bubble in percent."""
    command = [bin_folder / "trireme-plan", PIPELINE, "run.device=cuda", "parallel.data=1", "batch.global=32", *words,
               "--cluster", ROOT / "inputs/clusters/h200x4.yaml", "--timeline", path]
    subprocess.run([*map(str, command)], stdout=subprocess.DEVNULL, check=True)
    trace = json.loads(path.read_text())
    return [event for event in trace["traceEvents"] if event.get("ph") == "X"], 100 * trace["otherData"]["bubble"]


def draw_schedules(bin_folder, path):
    with tempfile.TemporaryDirectory() as folder:
        steps = [(name, *simulated(bin_folder, words, pathlib.Path(folder) / "trace.json")) for name, words in SCHEDULES]
    drawing = Drawing(760, 60 + 118 * len(steps))
    drawing.text(12, 22, "A step of GPT-2 345M on four pipeline stages, 8 micro-batches of 4 x 1024 tokens, as simulated for H200s", font_weight="bold")
    longest = max(event["ts"] + event["dur"] for _, passes, _ in steps for event in passes)
    scale = 690 / longest
    for i, (name, passes, bubble) in enumerate(steps):
        top = 52 + 118 * i
        end = max(event["ts"] + event["dur"] for event in passes)
        drawing.text(60, top, f"{name}: {end / 1e3:.1f} ms, bubble {bubble:.1f} %")
        for stage in range(4):
            drawing.text(52, top + 20 + 21 * stage, f"stage {stage}", "end", font_size=11)
        for event in passes:
            drawing.bar(60 + event["ts"] * scale, top + 7 + 21 * event["pid"], max(event["dur"] * scale - 0.4, 0.3), 18, PASSES[event["name"]])
    for x, words, kind in [(60, "forward", "forward-compute"), (180, "backward, or its gradient of the input", "input-gradient"),
                           (440, "gradient of the weights", "weight-gradient")]:
        drawing.bar(x, 34 + 118 * len(steps), 12, 12, PASSES[kind])
        drawing.text(x + 18, 44 + 118 * len(steps), words, font_size=11)
    drawing.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of the programs")
    parser.add_argument("-o", type=pathlib.Path, default=ROOT / "apps/bench/figures")
    words = parser.parse_args()
    words.o.mkdir(parents=True, exist_ok=True)
    page = (ROOT / "apps/bench/README.md").read_text()
    draw_speeds(speeds(page), words.o / "speed.svg")
    draw_scaling(scalings(page), words.o / "scaling.svg")
    draw_losses(words.o / "losses.svg")
    draw_plan(predictions(words.bin.resolve()), words.o / "plan.svg")
    draw_schedules(words.bin.resolve(), words.o / "schedules.svg")


if __name__ == "__main__":
    main()
