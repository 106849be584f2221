"""Two runs of the same jobs: what has become slower, or faster, by more than either measurement can tell."""

from __future__ import annotations

from sparsegen.batch.summary import TIE, Run, gain, product, spread

TIMELESS = (
    "key", "matrix", "op", "k", "asked", "fault", "shape", "nnz", "dtype", "facts", "statistics", "spy",
    "seed", "device",
)  # fmt: skip


def of(after: Run, before: Run) -> dict:
    """Changes from `before` to `after`: ratios of times, old over new, and which of them are beyond the noise.

    Of runs on other devices, gains over the best library are compared instead, as times say nothing there.
    """
    old = {each["key"]: each for each in before.measured}
    pairs = [(each, old[each["key"]]) for each in after.measured if each["key"] in old]
    same = all(new["device"] == was["device"] for new, was in pairs)
    rows = []
    for new, was in pairs:
        ratio = was["measured_us"] / new["measured_us"]
        if not same:
            ratio = (gain(new) or 1.0) / (gain(was) or 1.0)
        noise = noise_of(new, was)
        rows.append({"key": new["key"], "ratio": ratio, "noise": noise, "was": was["kernel"], "now": new["kernel"]})
    slower = sorted((row for row in rows if row["ratio"] < 1 - row["noise"]), key=lambda row: row["ratio"])
    faster = sorted((row for row in rows if row["ratio"] > 1 / (1 - row["noise"])), key=lambda row: -row["ratio"])
    faults = {key: each["fault"] for key, each in after.records.items() if each["fault"] and key in old}
    whole = spread([row["ratio"] for row in rows], [row["key"] for row in rows]) if rows else None
    names = dict.fromkeys(product(new) for new, _ in pairs)
    return {
        "runs": list(before.folders), "compared": len(rows), "by": "times" if same else "gains over the best library",
        "products": list(names), "ratio": whole, "slower": slower, "faster": faster,
        "missing": sorted(set(old) - set(after.records)), "new_faults": faults,
    }  # fmt: skip


def differences(one: Run, other: Run) -> list[str]:
    """In what two runs of the same jobs differ that no clock has a part in; of candidates, those that both tried."""
    found = [f"{key}: in one run alone" for key in sorted(set(one.records) ^ set(other.records))]
    for key in sorted(set(one.records) & set(other.records)):
        first, second = one.records[key], other.records[key]
        found += [
            f"{key}: {name} is {first.get(name)!r} and {second.get(name)!r}"
            for name in TIMELESS
            if first.get(name) != second.get(name)
        ]
        verdicts = [{each["label"]: _verdict(each) for each in run.get("candidates", ())} for run in (first, second)]
        for label in verdicts[0].keys() & verdicts[1].keys():
            if verdicts[0][label] != verdicts[1][label]:
                found.append(f"{key}: {label} is {verdicts[0][label]} and {verdicts[1][label]}")
    return found


def _verdict(tried: dict) -> str:
    """That of a candidate; whether it was raced is a matter of time."""
    return tried["fault"] or ("CORRECT" if tried["level"] == "TIMED" else tried["level"])


def noise_of(*records: dict) -> float:
    """The share of a time that two records cannot tell apart: each one's resolution and half its p20 to p80."""
    total = 0.0
    for each in records:
        low, high = each.get("measured_p20_us"), each.get("measured_p80_us")
        width = (high - low) / 2 / each["measured_us"] if low and high else TIE
        total += max(each["resolution"] or 0.0, TIE, width) ** 2
    return min(total**0.5, 0.9)


def text(found: dict) -> str:
    row = found["ratio"]
    mean = f", geometric mean {row['geomean']:.3f}" if row else ""
    lines = ["", "", f"against {', '.join(found['runs'])}: {found['compared']} compared by {found['by']}{mean}"]
    for label in ("slower", "faster"):
        lines.append(f"{len(found[label])} {label} by more than their noise")
        lines += [
            f"  {each['key']}: {each['ratio']:.2f} (noise {each['noise']:.0%}), {each['was']} -> {each['now']}"
            for each in found[label][:20]
        ]
    if found["missing"]:
        lines.append(f"{len(found['missing'])} are missing, such as {found['missing'][0]}")
    lines += [f"fails now: {key}: {fault}" for key, fault in list(found["new_faults"].items())[:20]]
    return "\n".join(lines)
