#!/usr/bin/env python3
"""PyTorch peer of `quern bench collectives`: the same table, or with --json the same lines, from torch.distributed.

  torch_collectives.py --gpus 2 [--sizes 1024,4096] [--collectives all_reduce,exchange] [--way eager] [--json]

One process a GPU (torch.multiprocessing), NCCL between them; Gloo with --device cpu. As in Quern, FP32 data, in place
and out of place as far as torch.distributed can, each result checked on random values before it is timed. `exchange` is
all_to_all_single. --way graph (the default on GPUs) times replays of a CUDA graph, which holds 10 calls up to 1 MiB and
else one, as Quern does; --way eager times single calls. Times are medians of rank 0's events, on the CPU of its clock.
Bus bandwidth is that of nccl-tests: bytes / time x 2 (n - 1) / n for all_reduce, 1 for broadcast, else (n - 1) / n."""
import argparse, json, os, socket, statistics, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

SHORT, CALLS_OF_SHORT = 1 << 20, 10
CHECKED = 1 << 22  # elements that are compared, at most


def values(rank, n):
    """This rank's data, which every rank can compute."""
    g = torch.Generator().manual_seed(1000 + rank)
    return torch.rand(min(n, 249989), generator=g).repeat(-(-n // 249989))[:n] * 2 - 1


class Case:
    """One collective of n elements a rank; as many a slice."""

    def __init__(self, name, place, n, dev):
        self.name, self.n, self.rank, self.size = name, n, dist.get_rank(), dist.get_world_size()
        self.x = torch.empty(n, device=dev)
        each = n // self.size
        self.own = slice(self.rank * each, (self.rank + 1) * each)
        self.y = self.x  # the result
        if place == "out": self.y = torch.empty(each if name == "reduce_scatter" else n, device=dev)
        elif name == "reduce_scatter": self.y = self.x[self.own]

    def prepare(self):
        self.x.fill_(float("nan"))
        if self.name == "all_gather": self.x[self.own] = values(self.rank, self.n)[self.own].to(self.x.device)
        elif self.name != "broadcast" or self.rank == 0: self.x.copy_(values(self.rank, self.n))

    def call(self):
        x = self.x
        if self.name == "all_reduce": dist.all_reduce(x)
        elif self.name == "reduce_scatter": dist.reduce_scatter_tensor(self.y, x)
        elif self.name == "all_gather": dist.all_gather_into_tensor(self.y, x[self.own])
        elif self.name == "broadcast": dist.broadcast(x, 0)
        else: dist.all_to_all_single(self.y, x)

    def check(self):
        of = [values(r, self.n) for r in range(self.size)]
        if self.name == "all_reduce": want = sum(of)
        elif self.name == "reduce_scatter": want = sum(of)[self.own]
        elif self.name == "all_gather": want = torch.cat([v.chunk(self.size)[r] for r, v in enumerate(of)])
        elif self.name == "broadcast": want = of[0]
        else: want = torch.cat([v[self.own] for v in of])
        torch.testing.assert_close(self.y[:CHECKED].cpu(), want[:CHECKED], rtol=0, atol=self.size * 1e-6)


# all_reduce and broadcast are only in place.
PLACES = {"all_reduce": ["in"], "reduce_scatter": ["in", "out"], "all_gather": ["in", "out"], "broadcast": ["in"],
          "exchange": ["out"]}


def factor(name, n):
    return 2 * (n - 1) / n if name == "all_reduce" else 1.0 if name == "broadcast" else (n - 1) / n


def time_calls(case, args):
    """Milliseconds a call, of each step."""
    case.x.zero_(); dist.barrier()
    if args.device == "cpu":
        ms = []
        for i in range(args.warmup + args.steps):
            begin = time.perf_counter(); case.call(); ms.append((time.perf_counter() - begin) * 1e3)
        return ms[args.warmup:]
    calls = CALLS_OF_SHORT if args.way == "graph" and 4 * case.n <= SHORT else 1
    step = case.call
    if args.way == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            for _ in range(calls): case.call()
        step = graph.replay
    for _ in range(args.warmup): step()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
    marks[0].record()
    for mark in marks[1:]: step(); mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / calls for a, b in zip(marks, marks[1:])]


def run(rank, args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    gpu = args.device == "cuda"
    if gpu: torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=args.gpus)
    dev = torch.device("cuda", rank) if gpu else torch.device("cpu")
    engine = "NCCL " + ".".join(map(str, torch.cuda.nccl.version())) if gpu else "Gloo"
    if rank == 0 and not args.json:
        print(f"torch {torch.__version__}, {engine}, {args.gpus} ranks, {args.way if gpu else 'eager'}")
        print(f"{'collective':22} {'place':5} {'bytes':>11} {'us':>12} {'std us':>10} {'GB/s':>9} {'bus GB/s':>9}", flush=True)
    for name, place in [(name, place) for name in args.collectives for place in PLACES[name]]:
        for size in args.sizes:
            case = Case(name, place, size // 4, dev)
            try:
                case.prepare(); case.call(); case.check()
                ms = time_calls(case, args)
            except (RuntimeError, NotImplementedError) as error:  # Gloo lacks some
                if gpu: raise
                row = dict(peer="torch-" + torch.__version__, collective=name, place=place, engine=engine, error=str(error)[:100])
                if rank == 0: print(json.dumps(row) if args.json else f"{name:22} {place:5} {row['error']}", flush=True)
                break
            us, std = statistics.median(ms) * 1e3, statistics.pstdev(ms) * 1e3
            alg = size / us / 1e3
            row = dict(peer="torch-" + torch.__version__, collective=name, place=place, engine=engine, ranks=args.gpus, bytes=size, us=round(us, 2),
                       std_us=round(std, 2), algbw_gb_s=round(alg, 3), busbw_gb_s=round(alg * factor(name, args.gpus), 3), way=args.way)
            if rank == 0:
                print(json.dumps(row) if args.json else f"{name:22} {place:5} {size:11} {us:12.2f} {std:10.2f} {alg:9.3f} {row['busbw_gb_s']:9.3f}", flush=True)
            del case
    dist.destroy_process_group()


def main():
    names = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "exchange"]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gpus", type=int, default=0, help="ranks; by default one a GPU, on the CPU 2")
    p.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    p.add_argument("--sizes", default="", help="bytes of a rank's data; by default 1 KiB to 1 GiB, on the CPU to 16 MiB")
    p.add_argument("--collectives", default=",".join(names))
    p.add_argument("--way", choices=["graph", "eager"], default="graph")
    p.add_argument("--warmup", type=int, default=5)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    if args.device == "cpu": args.way = "eager"
    args.gpus = args.gpus or (torch.cuda.device_count() if args.device == "cuda" else 2)
    last = 30 if args.device == "cuda" else 24
    args.sizes = [int(s) for s in args.sizes.split(",") if s] or [1 << k for k in range(10, last + 1, 2)]
    args.collectives = args.collectives.split(",")
    for name in args.collectives:
        if name not in names: p.error(f"--collectives has {name}, expected some of {', '.join(names)}")
    for size in args.sizes:
        if size < 1 or size % (4 * args.gpus): p.error(f"--sizes has {size}, expected a multiple of {4 * args.gpus}")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)); args.port = s.getsockname()[1]
    mp.spawn(run, (args,), args.gpus)


if __name__ == "__main__":
    main()
