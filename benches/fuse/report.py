"""Statistics, the table, and the JSON document."""

import math
import statistics

CONFIDENCE = 0.95


def interval(values):
    """Returns the exact 95 % interval of the median (order statistics); the range if there are
    fewer than 6 values."""
    ordered, n = sorted(values), len(values)
    below = 0.0
    at = 0
    for at in range(n // 2):
        below += math.comb(n, at) / 2**n
        if 1 - 2 * below < CONFIDENCE:
            break
    first = max(at - 1, 0)
    return ordered[first], ordered[n - 1 - first]


def summary(runs, requests, base):
    """Returns one entry for each row and side, from the runs of one setting.

    The ratio to the side `base` is that of runs of the same round: its median and interval."""
    rows, sides = {}, {}
    for run in runs:
        rows.setdefault(run["row"])
        sides.setdefault(run["side"])
    by_place = {(run["row"], run["side"], run["round"]): run for run in runs}
    rounds = sorted({run["round"] for run in runs})
    entries = []
    for row in rows:
        for side in sides:
            own = [by_place.get((row, side, r)) for r in rounds]
            other = [by_place.get((row, base, r)) for r in rounds]
            measured = [run for run in own if run]
            if not measured:
                continue
            pairs = [a["seconds"] / b["seconds"] for a, b in zip(own, other) if a and b]
            seconds = [run["seconds"] for run in measured]
            names = measured[0]["names"]
            counted = requests.get((row, side))
            entries.append(
                {
                    "row": row,
                    "side": side,
                    "names": names,
                    "seconds_min": min(seconds),
                    "seconds_median": statistics.median(seconds),
                    "client_cpu_median": statistics.median(r["client_cpu"] for r in measured),
                    "server_cpu_median": statistics.median(r["server_cpu"] for r in measured),
                    "requests_per_name": sum(counted.values()) / names if counted else None,
                    "requests": counted,
                    "ratio": statistics.median(pairs) if pairs else None,
                    "ratio_interval": list(interval(pairs)) if pairs else None,
                }
            )
    return entries


def number(value, digits):
    return "" if value is None else f"{value:.{digits}f}"


def table(entries, base):
    """Returns the summary of one setting as a Markdown table."""
    heads = ["row", "side", "names", "seconds: min", "median", f"over `{base}`"]
    heads += ["client CPU s", "server CPU s", "requests per name"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for e in entries:
        ratio = ""
        if e["ratio"] is not None and e["side"] != base:
            low, high = e["ratio_interval"]
            ratio = f"{e['ratio']:.2f} [{low:.2f}, {high:.2f}]"
        cells = [
            e["row"],
            e["side"],
            str(e["names"]),
            number(e["seconds_min"], 4),
            number(e["seconds_median"], 4),
            ratio,
            number(e["client_cpu_median"], 4),
            number(e["server_cpu_median"], 4),
            number(e["requests_per_name"], 2),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
