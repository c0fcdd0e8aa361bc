#!/usr/bin/env bash
# The Python that the benchmarks run in, .cache/bench: that of the interop tests, and the peers that only benchmarks
# have (bench/requirements.txt); jemalloc for one of them, out of its Debian package. Again with everything there: < 1 s.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --tests
scripts/setup.sh --peers
stamp=.cache/bench/$(cat tests/interop/requirements.txt bench/requirements.txt | cksum | tr ' ' -)
[ -e "$stamp" ] && exit 0
interop=.cache/interop/bin/python
[ -x $interop ] || {
  printf '%s\n' 'the benchmarks use the Python of the interop tests.' '  got:  no .cache/interop' '  fix:  scripts/setup.sh --peers, with a network' >&2
  exit 1
}
echo "installing the peers of the benchmarks into .cache/bench"
mkdir -p .cache
$interop -m venv .cache/bench
# What the interop tests have installed is found there, and not installed again.
packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
echo "import site; site.addsitedir('$(packages $interop)')" >"$(packages .cache/bench/bin/python)/interop.pth"
pip=(.cache/bench/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore)
.cache/bench/bin/python -c 'import torch' 2>/dev/null || "${pip[@]}" torch==2.11.0  # where TORCH_DIR has no Python
"${pip[@]}" --no-deps -r bench/requirements.txt  # without: pip would install torch's CUDA libraries for megatron-core
if [[ $(ldconfig -p) != *'libjemalloc.so.2 '* ]] && command -v apt-get >/dev/null; then
  (cd .cache/bench && apt-get download -qq libjemalloc2 2>/dev/null && dpkg-deb -x libjemalloc2_*.deb jemalloc) ||
    echo "no jemalloc: the tuned PyTorch will be left out (apt-get install libjemalloc2)" >&2
fi
touch "$stamp"
