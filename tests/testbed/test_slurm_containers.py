"""Jobs in containers on a real SLURM: what the ranks need is there, whatever is kept out.

With Apptainer itself where it is installed, and everywhere with a program of its name that does
with variables what Apptainer 1.4 does: nothing outside but APPTAINERENV_ gets in with `--cleanenv`,
and values are evaluated by a shell unless APPTAINER_NO_EVAL is set (verified with 1.4.5).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.testbed.scheduler import Site

APPTAINER = shutil.which("apptainer")
STAND_IN = f"""\
#!{sys.executable}
import os, subprocess, sys
words = sys.argv[2:]
while words[0].startswith("-"):
    words.pop(0)
assert os.path.isdir(words.pop(0)), "no such image"
env = {{"HOME": os.environ["HOME"], "PATH": os.defpath}}
if "--cleanenv" not in sys.argv:
    env |= {{k: v for k, v in os.environ.items() if not k.startswith("APPTAINER")}}
for name, value in os.environ.items():
    if name.startswith("APPTAINERENV_"):
        if os.environ.get("APPTAINER_NO_EVAL") != "1":
            value = subprocess.check_output(["sh", "-c", f'printf %s "{{value}}"'], text=True)
        env[name.removeprefix("APPTAINERENV_")] = value
os.execvpe(words[0], words, env)
"""
PROGRAM = """\
import json, os, sys, tempfile
names = ["RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "MASTER_ADDR"]
seen = {name: os.environ.get(name) for name in [*names, "TOKEN", "VALUE", "EXTRA", "UNSEEN"]}
with tempfile.NamedTemporaryFile("w") as file:
    seen["files"] = os.path.exists(file.name)
print(json.dumps(seen | {"args": sys.argv[1:], "cwd": os.getcwd()}))
"""
SECRET = "s3,c$HOME`id`\"' \\ $(id)"


def put_apptainer(site: Site, *, real: bool) -> None:
    """Put a program `apptainer` on the search path of the nodes, and an image into the site.

    The image is a directory with this machine's own system in it.
    """
    text = f'#!/bin/sh\nexec {APPTAINER} "$@"\n' if real else STAND_IN
    site.cluster.put("node*", "/usr/local/bin/apptainer", text)
    image = site.here / "image"
    for name in ("usr", "etc", "tmp", "proc", "sys", "dev", "root", "home", "var/tmp"):
        (image / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (image / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", image / "etc")


def in_image(site: Site) -> None:
    """Have the ranks run in the image, with nothing of the environment around it."""
    system = ["/usr", "/shared", sys.prefix, sys.base_prefix]
    container = {
        "runtime": "apptainer",
        "image": f"{site.path}/image",
        "mounts": [
            path for path in dict.fromkeys(system) if Path(path).exists() or path == "/shared"
        ],
        "options": ["--cleanenv"],
        "gpu": "none",
        "env": ["EXTRA"],
    }
    site.describe(
        "{host: 'node[1-2]', slots: 2}",
        gpus="none",  # of no interest here
        container=json.dumps(container),
        setup=json.dumps(["export EXTRA='of the setup' UNSEEN=1"]),
    )
    file = site.here / "c.yaml"
    file.write_text(f"{file.read_text()}secrets: [TOKEN]\n")


@pytest.mark.parametrize(
    "real",
    [
        False,
        pytest.param(True, marks=pytest.mark.skipif(APPTAINER is None, reason="no apptainer here")),
    ],
    ids=["stand-in", "apptainer"],
)
def test_variables_reach_the_ranks_of_a_container_without_an_environment(
    site: Site, real: bool
) -> None:
    put_apptainer(site, real=real)
    in_image(site)
    site.write("inside.py", PROGRAM)
    done = site.run(
        "slurm", "c.yaml", "--env", "VALUE=a,b $x", "inside.py", "a b", "$HOME", TOKEN=SECRET
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = [json.loads(text) for text in re.findall(r"\{.*\}$", done.stdout, re.M)]
    ranks = sorted(found, key=lambda one: int(one["RANK"]))
    places = [(one["SLURM_PROCID"], one["SLURM_NODEID"], one["SLURM_LOCALID"]) for one in ranks]
    assert places == [("0", "0", "0"), ("1", "0", "1"), ("2", "1", "0"), ("3", "1", "1")]
    for one in ranks:
        assert one["MASTER_ADDR"] == "node1"
        assert (one["TOKEN"], one["VALUE"], one["EXTRA"]) == (SECRET, "a,b $x", "of the setup")
        assert one["UNSEEN"] is None
        assert one["args"] == ["a b", "$HOME"]
        assert one["cwd"] == site.path
        assert one["files"]
