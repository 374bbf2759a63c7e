"""The bench runs, names its rows, and its ratios are those of its rates."""

import json

from lab.cli import main


def test_bench_command(capsys):
    assert main(["bench", "rounding", "--mebibytes", "1", "--rounds", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {(row["implementation"], row["mode"], row["format"]): row for row in document["rows"]}
    assert rows["numpy copyto", "copy", "fp32"]["ratio_to_copy"] == 1
    for fmt in ("bf16", "fp16"):
        assert {mode for name, mode, of in rows if name == "lab" and of == fmt} >= {
            "RNE", "RTZ", "RNA", "RU", "RD", "RAZ", "RTO",
        }  # fmt: skip
    assert {"torch copy_", "ml_dtypes copyto", "gfloat round_ndarray"} <= {name for name, _, _ in rows}
    for row in rows.values():
        written = 4 if row["format"] == "fp32" or "float32" in row["implementation"] else 2
        moved = row["elements"] * (4 + written) / 1e9
        assert abs(row["gb_per_s"] - moved / (row["ms"] / 1e3)) < 0.02 * row["gb_per_s"] + 0.01
        assert row["ratio_to_copy"] > 0 and row["limit"]
    assert main(["bench", "rounding", "--mebibytes", "0"]) == 2
