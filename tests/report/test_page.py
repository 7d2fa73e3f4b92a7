import base64
import csv
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flows.report import exports, figures, page, wording

from .conftest import Built, Folder, Page, make

PLAIN = {"task": "HalfCheetah-v5", "algorithm": "sac", "env_steps": 30_000}
Render = Callable[[Folder], Built]


def test_the_page_makes_no_request(built: Built) -> None:
    for tag, attributes in built.page.elements:
        for name in (
            "src",
            "srcset",
            "href",
            "xlink:href",
            "action",
            "data",
            "poster",
            "background",
            "ping",
            "content",
        ):
            value = attributes.get(name, "")
            assert name in ("href", "content") or not value, f"<{tag} {name}>"
            assert name != "href" or name not in attributes or value.startswith(("#", "data:")), value[:80]
            assert "url=" not in value.lower()
    assert not {"iframe", "object", "embed", "img", "base", "form"} & {tag for tag, _ in built.page.elements}
    assert all(target.startswith("#") for target in re.findall(r"url\(\s*['\"]?([^)]*)", built.html))
    assert "@import" not in built.html
    assert "http:" not in built.html
    assert "https:" not in built.html
    policies = [meta["content"] for meta in built.page.named("meta") if "http-equiv" in meta]
    assert policies == [policy for policy in policies if policy.startswith("default-src 'none';")] != []


def test_the_page_needs_no_script(built: Built) -> None:
    assert [script["type"] for script in built.page.named("script")] == ["application/json"]
    assert not any(name.startswith("on") for _, attributes in built.page.elements for name in attributes)


def test_the_same_runs_give_the_same_bytes_anywhere(built: Built, tmp_path: Path) -> None:
    elsewhere = make(tmp_path / "some" / "other place").write_all()
    (tmp_path / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 30\n")
    script = (
        "import importlib.util, sys, pathlib\n"
        "spec = importlib.util.spec_from_file_location('fixtures', sys.argv[1])\n"
        "fixtures = importlib.util.module_from_spec(spec); spec.loader.exec_module(fixtures)\n"
        "fixtures.build(fixtures.make(pathlib.Path(sys.argv[2])).experiment)\n"
    )
    environment = {**os.environ, "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "7", "MPLCONFIGDIR": str(tmp_path)}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "LC_ALL": "C"}
    arguments = [str(Path(__file__).with_name("conftest.py")), str(elsewhere.experiment.directory)]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, env=environment, cwd=tmp_path, timeout=120)
    for name in ("index.html", "summary.json"):
        there = elsewhere.experiment.directory / "report" / name
        assert there.read_bytes() == (built.path.parent / name).read_bytes(), name


def test_the_page_names_no_path_of_this_machine(built: Built) -> None:
    assert str(built.folder.experiment.directory) not in built.html
    assert str(Path.cwd()) not in built.html


def test_no_punctuation_stands_alone(built: Built) -> None:
    assert re.search(r"\s[,.;](?!\d)", built.page.text) is None


def test_nothing_but_the_two_files_is_left_behind(built: Built) -> None:
    assert sorted(path.name for path in built.path.parent.iterdir()) == ["index.html", "summary.json"]


def test_hostile_names_are_shown_and_not_run(planned: Callable[..., Folder], render: Render) -> None:
    title = "</title><script>alert(1)</script> & $\\frac{1}{0}$ {{ 7 * 7 }}"
    arm = '"><img src=x onerror=alert(2)> $x^2$'
    command = "</script><script>alert(3)</script><!--"
    reason = "<svg onload=alert(4)>'\""
    folder = planned(arms={"plain": PLAIN}, seeds=[0, 1, 2])
    folder.experiment = replace(
        folder.experiment,
        title=title,
        arms={arm: folder.experiment.arms["plain"], "b": folder.experiment.arms["plain"]},
    )
    folder.write_all()
    path = folder.experiment.run_dir("b", 0) / "timing.json"
    machine = json.loads(path.read_text())
    machine["provenance"]["command"] = command
    machine["<b>key"] = reason
    path.write_text(json.dumps(machine))
    shutil.rmtree(folder.experiment.run_dir("b", 2))
    folder.fail("b", 2, reason)
    found = render(folder)

    assert [script["type"] for script in found.page.named("script")] == ["application/json"]
    assert not any(name.startswith("on") for _, attributes in found.page.elements for name in attributes)
    assert not {"img", "b"} & {tag for tag, _ in found.page.elements}
    for text in (title, arm, command, reason):
        assert " ".join(text.split()) in found.page.text
    (embedded,) = [text for text, inside in found.page.texts if "script" in inside]
    assert json.loads(embedded)["differing"]["b/0"]["provenance.command"] == command
    assert found.summary["title"] == title


def test_missing_runs_raise_the_banner_and_name_every_reason(folder: Folder, render: Render) -> None:
    shutil.rmtree(folder.experiment.run_dir("sac-lean", 0))
    folder.fail("sac-lean", 0, "critic_loss is not finite")
    shutil.rmtree(folder.experiment.run_dir("td3-lean", 2))
    (folder.experiment.run_dir("td3-speed", 1) / "evaluation.csv").unlink()
    found = render(folder)
    assert "Incomplete: 3 of 12 runs are not trained and evaluated." in found.page.text
    assert "critic_loss is not finite" in found.page.text
    assert "a nominal 95 % interval covers about 73 %" in found.page.text
    counts = {row["arm"]: row for row in found.summary["completeness"]["arms"]}
    assert counts["sac-lean"]["states"]["failed"] == 1
    assert counts["td3-lean"]["states"]["missing"] == 1
    assert (counts["td3-speed"]["states"]["finished"], counts["td3-speed"]["evaluated"]) == (3, 2)
    assert not found.summary["complete"]
    assert len(found.summary["completeness"]["exclusions"]) == 3


def test_stale_runs_are_counted_as_stale_and_not_as_missing(folder: Folder, render: Render) -> None:
    shutil.rmtree(folder.experiment.run_dir("td3-lean", 2))
    (folder.experiment.run_dir("sac-lean", 2) / "summary.json").write_text('{"env_steps": 10000}')
    text = render(folder).page.text
    assert "Incomplete: 2 of 12 runs are not trained and evaluated as planned." in text
    assert "1 is stale: trained otherwise than the plan now asks." in text
    grid = text[text.index("Every run of the plan.") : text.index("Left out, and why.")]
    assert "PlannedTrainedEvaluatedFailedMissingStale" in grid
    assert "stale322001" in grid  # planned, trained, evaluated, failed, missing, stale
    assert "missing322010" in grid


def test_a_complete_report_has_no_banner(built: Built) -> None:
    assert "Incomplete" not in built.page.text
    assert "Nothing is left out." in built.page.text
    assert "PlannedTrainedEvaluatedFailedMissing " in built.page.text
    assert built.summary["complete"] is True


def test_runs_that_no_rerun_repeats_are_named(planned: Callable[..., Folder], render: Render) -> None:
    arms = {"plain": PLAIN, "free": {**PLAIN, "collection": "async"}}
    text = render(planned(arms=arms, seeds=[0]).write_all()).page.text
    assert "Not reproducible, a rerun gives other numbers: free collects asynchronously." in text


def test_an_experiment_without_any_run_is_an_honest_page(planned: Callable[..., Folder], render: Render) -> None:
    found = render(planned())
    assert "Incomplete: 12 of 12 runs are not trained and evaluated." in found.page.text
    assert "No run has training progress to show." in found.page.text
    assert not any(verdict["decided"] for verdict in found.summary["verdicts"])
    check_structure(found.page)


def test_a_single_seed_has_no_interval_and_no_band(planned: Callable[..., Folder], render: Render) -> None:
    found = render(planned(arms={"a": PLAIN, "b": PLAIN}, seeds=[4]).write_all())
    assert "1 seed: no interval" in found.page.text
    for panel in found.summary["curves"]:
        for line in panel["axes"]["env_steps"]:
            assert len(line["mean"]) > 0
            assert set(line["low"]) == set(line["high"]) == {None}
    assert all(row["interval"] is None for panel in found.summary["scores"] for row in panel["rows"])
    assert found.summary["counts"]["decided"] == 0


def test_a_band_beyond_the_chart_is_said_to_be_cut(planned: Callable[..., Folder], render: Render) -> None:
    folder = planned(arms={"a": PLAIN}, seeds=[0, 1])
    for seed, level in ((0, 1.0), (1, 3.0)):
        folder.write("a", seed, level=level)
    assert "Bands are cut at the edge of the chart." in render(folder).page.text


def test_values_that_are_not_numbers_do_not_stop_the_report(folder: Folder, render: Render) -> None:
    def spoil(columns: dict[str, np.ndarray]) -> None:
        for values in list(columns.values())[3:]:
            values[4:9] = np.inf
            values[-1] = np.nan

    for file in ("curve.csv", "progress.csv", "timing.csv", "evaluation.csv"):
        folder.edit("sac-speed", 0, file, spoil)
    found = render(folder)
    assert "is not finite" in found.page.text
    rows = {row["arm"]: row for panel in found.summary["scores"] for row in panel["rows"]}
    assert rows["sac-speed"]["seeds"] == [1, 2]
    check_structure(found.page)


def test_constant_runs_get_no_test(planned: Callable[..., Folder], render: Render) -> None:
    folder = planned(arms={"a": PLAIN, "b": PLAIN})
    folder.write_all()
    for arm, seed in folder.experiment.runs:
        folder.edit(arm, seed, "curve.csv", lambda columns: columns["return_mean"].fill(7.25))
    found = render(folder)
    assert "no test applies" in found.page.text
    rows = {row["arm"]: row for panel in found.summary["scores"] for row in panel["rows"]}
    assert (rows["a"]["mean"], rows["a"]["std"]) == (7.25, 0.0)


def test_seeds_of_unequal_length_share_a_grid(planned: Callable[..., Folder], render: Render) -> None:
    folder = planned(arms={"a": PLAIN})
    for seed, points in ((0, 30), (1, 7), (2, 900)):
        folder.write("a", seed, points=points)
    found = render(folder)
    line = next(p for p in found.summary["curves"] if p["reward"])["axes"]["env_steps"][0]
    assert line["grid"][0] == pytest.approx(30_000 / 7, abs=1)
    assert len(line["grid"]) <= 300
    assert None not in line["mean"]
    assert line["n"] == 3


def test_no_drawn_line_has_more_than_300_points(planned: Callable[..., Folder], render: Render) -> None:
    folder = planned(arms={"a": PLAIN}, seeds=[0])
    folder.write("a", 0, points=1500)
    found = render(folder)
    paths = re.findall(r'<path d="([^"]*)"', found.html)
    lengths = [line.count("l") + 1 for path in paths for line in path.split("M")]
    assert 250 < max(lengths) <= 620  # a band has an upper and a lower edge


def test_the_page_and_the_summary_agree(built: Built) -> None:
    for verdict in built.summary["verdicts"]:
        assert verdict["sentence"] in built.page.text
    for panel in (*built.summary["scores"], *built.summary["yardsticks"]):
        for row in panel["rows"]:
            low, high = (wording.number(row["interval"][side]) for side in ("low", "high"))
            assert f"{wording.number(row['mean'])}" in built.page.text
            assert f"[{low}, {high}]" in built.page.text
    for matrix in built.summary["cross_rewards"]:
        for cells in matrix["rows"].values():
            assert all(wording.number(cell["mean"]) in built.page.text for cell in cells)
    for name, digest in built.summary["provenance"]["hashes"].items():
        assert name in built.page.text
        assert digest in built.page.text


def test_the_summary_is_sorted_and_strict_json(built: Built) -> None:
    text = (built.path.parent / "summary.json").read_text(encoding="utf-8")
    again = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False, indent=1, allow_nan=False)
    assert again + "\n" == text


def test_downloads_hold_what_the_page_shows(built: Built) -> None:
    saved = {
        a["download"]: base64.b64decode(a["href"].partition("base64,")[2])
        for a in built.page.named("a")
        if "download" in a
    }
    scores = list(csv.DictReader(io.StringIO(saved["scores.csv"].decode())))
    returns = {(row["arm"], int(row["seed"])): float(row["score"]) for row in scores if row["measure"] == "return"}
    expected = {
        (row["arm"], seed): score
        for panel in built.summary["scores"]
        for row in panel["rows"]
        for seed, score in zip(row["seeds"], row["scores"], strict=True)
    }
    assert returns == pytest.approx(expected, rel=1e-7)
    assert json.loads(saved["report.json"])["verdicts"] == built.summary["verdicts"]
    assert len(saved["scores.tex"].decode().splitlines()) == 5 + 4 + 2
    curve = list(csv.reader(io.StringIO(saved["curve-0-env-steps.csv"].decode())))
    assert len(curve) == 1 + 4 * 30


def test_saved_tables_run_no_formula_and_break_no_latex() -> None:
    assert exports.csv_text(["arm"], [["=HYPERLINK(1)"], ["-x"], [-1.5], [float("nan")]]).splitlines() == [
        "arm",
        "'=HYPERLINK(1)",
        "'-x",
        "-1.5",
        '""',
    ]
    assert exports._latex_text(r"a_b & 5% \input{x} −1") == r"a\_b \& 5\% \textbackslash{}input\{x\} $-$1"


def check_structure(page: Page) -> None:
    """What an accessibility checker looks for first."""
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for _, a in page.elements if a.get("href", "").startswith("#")]
    targets += [name for _, a in page.elements for name in a.get("aria-labelledby", "").split()]
    assert set(targets) <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all("scope" in header for header in page.named("th"))
    for drawing in page.named("svg"):
        assert drawing.get("aria-hidden") == "true" or drawing["role"] == "img"
    assert [html.get("lang") for html in page.named("html")] == ["en"]
    assert len(page.named("main")) == 1


def test_the_page_has_names_headings_and_landmarks(built: Built) -> None:
    check_structure(built.page)
    drawings = [svg for svg in built.page.named("svg") if svg.get("role") == "img"]
    texts = [" ".join(inside) for text, inside in built.page.texts if text.strip()]
    assert len(drawings) > 15
    assert sum(inside.endswith("svg title") for inside in texts) == len(drawings)
    assert sum(inside.endswith("svg desc") for inside in texts) == len(drawings)


def test_text_and_arms_keep_their_contrast_in_both_modes() -> None:
    style = page._source("style.css")
    light, dark = style.split("@media (prefers-color-scheme: dark)")[:2]
    for block in (light, dark.split("@media print")[0]):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block))
        for text in ("ink", "muted", "link", "bad"):
            assert contrast(colours[text], colours["paper"]) >= 4.5, text
        assert contrast(colours["bad"], colours["bad-paper"]) >= 4.5
        assert contrast(colours["good"], colours["good-paper"]) >= 4.5
        for index in range(figures.COLOURS):
            assert contrast(colours[f"arm-{index}"], colours["paper"]) >= 3, index


def contrast(first: str, second: str) -> float:
    """The contrast ratio of WCAG 2.2."""
    brighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_no_two_of_forty_arms_look_alike() -> None:
    looks = {(s.variable, str(s.dash), s.marker) for s in map(figures.style, range(40))}
    assert len(looks) == 40
    assert len({figures.style(index).variable for index in range(8)}) == 8


def test_an_arm_keeps_its_colour_in_every_chart(built: Built) -> None:
    for chart in re.findall(r"<svg viewBox.*?</svg>", built.html, re.DOTALL):
        title = re.search(r"<title[^>]*>(.*?)</title>", chart)
        if title and "Weighted reward terms of td3-lean" in title[1]:
            assert set(re.findall(r"var\(--arm-(\d)", chart)) == {"3"}
        if title and "reward standard" in title[1]:
            assert set(re.findall(r"var\(--arm-(\d)", chart)) == {"0", "2"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (812.345, "812.3"),
        (-1481.0, "−1\u202f481"),
        (12345.678, "12\u202f346"),
        (0.012345, "0.01235"),
        (3.2e-7, "3.20×10⁻⁷"),
        (float("nan"), "—"),
        (float("-inf"), "−∞"),
        (None, "—"),
        (1e12, "1.000×10¹²"),
        (9999.7, "10\u202f000"),
    ],
)
def test_numbers_are_shown_to_four_digits(value: float | None, shown: str) -> None:
    assert wording.number(value) == shown
