#!/usr/bin/env bash
# One session on a GPU machine without package registries: wheels in .whl/, libraries that Nsight
# Systems' importer needs in .gpu-libs/ (libdw1, libelf1). Arguments go to collector.py.
#
#   OUT=results benchmarks/gpu/run.sh --stages build,record,agree,kill,recover,launch
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${OUT:-results}
site=${TMPDIR:-/tmp}/rca-gpu-site
if compgen -G "$root/.whl/*.whl" >/dev/null && [[ ! -d $site ]]; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$root"/.whl/*.whl
fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec python3 "$root/benchmarks/gpu/collector.py" --out "$out" "$@"
