"""What the comparisons with PyTorch share: options, timing a step of either program, the printed rows."""
import json
import subprocess
import sys
import time


def add_options(parser):
    parser.add_argument("--bench", default="trireme-bench", help="the program trireme-bench")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=150, help="seconds of a trireme-bench")
    parser.add_argument("--micro-batches", type=int, default=1, help="of a step, on each GPU")
    parser.add_argument("--only", choices=["trireme", "pytorch"])


def trireme_step(options, deck, overrides=(), launcher=()):
    """Milliseconds of a step of `deck`, by trireme-bench step."""
    command = [*launcher, options.bench, "step", deck, *overrides, "--repeats", str(options.repeats), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=options.timeout)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)["ms"]


def pytorch_step(options, model, loss_of, learning_rate):
    """Milliseconds of a step of `model`: micro-batches forward and backward, AdamW; loss_of(), compiled, is a loss."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, fused=True)

    def step():
        for _ in range(options.micro_batches):
            (loss_of() / options.micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(4):
        step()
    times = []
    for _ in range(options.repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[len(times) // 2]


def measure(options, trireme, pytorch):
    """Milliseconds of a step by program: of `trireme` and `pytorch`, as far as the options ask for them."""
    found = {}
    if options.only != "pytorch":
        found["Trireme"] = trireme()
    if options.only != "trireme":
        import torch

        torch.manual_seed(1234)
        torch.set_float32_matmul_precision("high")
        found["PyTorch"] = pytorch()
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    return found


def print_ratio(found, width):
    """How many steps of Trireme one of PyTorch takes, below rows whose first `width` characters name the shape."""
    if len(found) == 2:
        print(f"{'':{width}}  ratio    {found['PyTorch'] / found['Trireme']:8.2f}", flush=True)
