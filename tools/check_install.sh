#!/usr/bin/env bash
# make demo as on a machine where nothing was installed before: a fresh clone of HEAD, an environment with the oldest
# pip and setuptools that its Python was released with, no cache, no compiler, nothing that has to be built.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:?usage: tools/check_install.sh PYTHON [FLIGHTS]}
flights=${2:-20000}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in # what ensurepip of x.y.0 brings; from 3.12 on there is no setuptools
    3.11) seed="pip==22.3 setuptools==65.5.0" ;;
    3.12) seed="pip==23.2.1" ;;
    3.13) seed="pip==24.2" ;;
    *) seed="pip" ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git clone --quiet --no-hardlinks . "$folder/clone"
cd "$folder/clone"

unset PYTHONPATH VIRTUAL_ENV
export PIP_NO_CACHE_DIR=1 PIP_ONLY_BINARY=:all: CC=/bin/false CXX=/bin/false
echo "check-install: make demo with Python $version, $seed, in a fresh clone"
SECONDS=0
make --no-print-directory .venv/.demo PYTHON="$python" SEED="$seed"
echo "check-install: set up in $SECONDS s, $(du -sm .venv | cut -f1) MB"
make --no-print-directory demo PYTHON="$python" SEED="$seed" FLIGHTS="$flights"
test -s tablepuppet-demo.html
.venv/bin/tablepuppet --version
.venv/bin/python - <<'PYTHON'
from importlib.util import find_spec

brought = [name for name in ("torch", "ray", "polars", "wheel", "pytest") if find_spec(name)]
if brought:
    raise SystemExit(f"check-install: the demo needs none of these, but they were installed: {brought}")
PYTHON
echo "check-install: passed in $SECONDS s"
