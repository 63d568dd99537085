#!/usr/bin/env bash
# One session on a GPU machine without package registries: wheels in .whl/, libraries that Nsight
# Systems' importer needs in .gpu-libs/ (libdw1, libelf1). Arguments go to collector.py, or to the
# script beside it that the first one names.
#
#   OUT=results benchmarks/gpu/run.sh --stages build,record,agree,kill,recover,launch
#   OUT=results benchmarks/gpu/run.sh burst.py --bundle FOLDER --size small
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${OUT:-results}
site=${TMPDIR:-/tmp}/rca-gpu-site
if compgen -G "$root/.whl/*.whl" >/dev/null && [[ ! -d $site ]]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$root"/.whl/*.whl
fi
# cupti-python and the libcupti that it needs lie apart: PyTorch's own must stay the one it finds.
counters=${TMPDIR:-/tmp}/rca-gpu-counters
if compgen -G "$root/.whl-counters/*.whl" >/dev/null && [[ ! -d $counters ]]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$counters" \
    "$root"/.whl-counters/*.whl
fi
if [[ -d $counters ]]; then export RCA_GPU_COUNTERS=$counters; fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
script=collector.py
if [[ ${1:-} == *.py ]]; then script=$1; shift; fi
exec python3 "$root/benchmarks/gpu/$script" --out "$out" "$@"
